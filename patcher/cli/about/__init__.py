"""The commands that say what rlpatch can do."""
