"""What rlpatch knows (``list``, ``explain``) and shows of itself (``demo``)."""
