"""Does the simulator say what a real cluster does (AFS 5.1, Fig. 15)? `python -m benchmarks.conformance` (see `__main__`)."""
