"""Traces: what was recorded, its parsing, and from the trace to the cause."""
