"""The commands that read what was recorded: ``traces``, ``analyse``, ``report``, ``compare``, ``timeline``."""
