"""Values that become text at the edge: a problem, a note, the next command, a report, a table; and its language."""
