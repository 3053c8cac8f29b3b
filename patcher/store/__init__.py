"""The only code that writes to a target: `transaction` is the door, every other module owns one danger."""

STORE = ".rlpatch"
"""The folder beside a patched package that holds backups and journal; in git it ignores itself."""
