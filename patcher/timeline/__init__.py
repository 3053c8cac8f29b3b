"""The timeline of a run: records that its processes wrote without a profiler, on one clock and explained by step."""
