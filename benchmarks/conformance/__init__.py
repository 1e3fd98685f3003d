"""Comparison of the simulator with a real cluster (AFS 5.1, Fig. 15). `python -m benchmarks.conformance` (see `__main__`)."""
