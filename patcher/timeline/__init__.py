"""The timeline of a run: what its processes kept without a profiler, read, put on one clock, and explained by steps."""
