"""``diagnose``: read a run, or follow one and ask its workers for the windows that are lacking."""
