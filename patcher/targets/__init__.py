"""The search for what can be patched: `find` answers; every other module owns one way of being installed."""
