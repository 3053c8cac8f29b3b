"""The commands that read traces."""
