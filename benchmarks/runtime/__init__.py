"""Cost of elasticity, side by side with the alternatives: `python -m benchmarks.runtime` (see `__main__`)."""
