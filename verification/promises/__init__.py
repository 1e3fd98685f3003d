"""Promises of deadlines under random workloads, in simulations: no admitted job may be late."""
