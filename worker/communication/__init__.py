"""Data plane between the workers of one generation: rendezvous, process groups, collectives and state transfers."""
