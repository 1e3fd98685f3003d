"""Replays a trace of jobs through the scheduler of real clusters, in virtual time."""

from .replay import Replay, simulate

__all__ = ["Replay", "simulate"]
