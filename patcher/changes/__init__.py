"""The change of a file: edits that are put in, the marks around them, and the state in which they are found later."""
