"""The headings below which the options of a command stand in its help, in this order."""

WINDOW = "Window, one for each stage; of A:B, B itself is not recorded"
RECORDED = "What is recorded"
WHOSE = "Whose"
PLACE = "Where it is looked for"
PROFILERS = "Other profilers"
PARSED = "How it is parsed"
READ = "What of it is read"
WAITED = "Whom it waits for"
OUTPUT = "Output"

HEADINGS = (WINDOW, RECORDED, WHOSE, PLACE, PROFILERS, PARSED, READ, WAITED, OUTPUT)
