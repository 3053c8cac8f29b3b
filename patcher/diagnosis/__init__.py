"""The diagnosis of a whole rollout: seconds from its timeline, classes of kernels from a few recorded iterations."""
