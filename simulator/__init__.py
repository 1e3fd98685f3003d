"""Replays a trace of jobs through the scheduler of real clusters, in virtual time."""
