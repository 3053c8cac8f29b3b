"""The commands that tell of rlpatch itself: ``list``, ``explain`` and ``demo``."""
