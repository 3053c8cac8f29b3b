"""Is another profiler switched on? `detect` answers; the other modules read environments, scripts and commands."""
