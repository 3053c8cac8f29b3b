import sys

# Where bytecode may not be kept, as in many a container, each process of a run compiles pytest's plugins, the tests and all
# of rlpatch again. What the tests themselves import keeps it, in folders that git ignores.
sys.dont_write_bytecode = False
