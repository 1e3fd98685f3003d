"""Benchmarks against real clusters and in simulation. Run one with `make`; each prints a table and writes JSON."""
