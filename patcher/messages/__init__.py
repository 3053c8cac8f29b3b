"""Values that become text at the edge: a problem, a note, the next command, the report of a command, a table."""
