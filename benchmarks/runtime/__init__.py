"""What elasticity costs, side by side with what it is bought instead of: `python -m benchmarks.runtime` (see `__main__`)."""
