"""Batches that grow, and the accuracy in the end (Elan III, VI-B)."""
