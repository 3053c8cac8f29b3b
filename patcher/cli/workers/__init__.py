"""The commands for a run that goes on."""
