"""What is there to patch, and where: `find` answers; every other module owns one way of being installed."""
