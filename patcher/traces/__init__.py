"""From a trace to its cause: sources → model → findings → page, each a value; a new format is one module here."""
