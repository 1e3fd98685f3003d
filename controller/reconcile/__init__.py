"""Reconciliation: scheduling decisions, and the steps that bring each job nearer to its target."""
