"""Is another profiler switched on? `look` answers; the other modules read environments, scripts and commands."""
