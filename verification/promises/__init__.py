"""Deadline guarantees under random workloads, in simulations: no admitted job may be late."""
