"""The only code that writes to a target: `transaction` is the door, `filesystem` has what disks do to it."""

STORE = ".rlpatch"
"""The folder beside a patched package that holds backups and journal; in git it ignores itself."""

LOCK = "lock"
"""The file in it that flock locks."""

CLAIM = "lock.owner"
"""The link that stands for the lock where flock keeps nobody out, or only the processes of one host."""
