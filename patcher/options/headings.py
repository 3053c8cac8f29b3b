"""The headings below which the options of a command stand in its help, in this order."""

WINDOW = "Recording windows, one per stage; A:B does not include B"
RECORDED = "What is recorded"
WHOSE = "Ranks, roles and steps"
PLACE = "Where to look for packages"
PROFILERS = "Other profilers"
PARSED = "Parsing"
READ = "Data to read"
WAITED = "Waiting"
OUTPUT = "Output"

HEADINGS = (WINDOW, RECORDED, WHOSE, PLACE, PROFILERS, PARSED, READ, WAITED, OUTPUT)
