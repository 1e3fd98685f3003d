"""Measurements against real clusters. Run one with `make`; each prints a table and writes JSON."""
