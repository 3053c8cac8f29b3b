"""The commands that patch, or say what is patched."""
