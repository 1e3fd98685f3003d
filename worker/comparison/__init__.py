"""Comparison of workers: their states, micro-batches computed twice, saved files, and changes that no other worker makes."""
