"""The work of each command: from the user's words to a report. Nothing here prints, and only the store writes."""
