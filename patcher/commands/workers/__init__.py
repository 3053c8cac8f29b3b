"""Workers of a run: where they stand (``watch``), and a window while they run (``trigger``)."""
