"""What was recorded: ``traces``, ``analyse``, ``report`` and ``compare``."""
