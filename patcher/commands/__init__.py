"""What each command does: from the user's words to a report. Nothing here prints, and only the store writes."""
