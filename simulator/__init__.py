"""Replay of a trace of jobs through the scheduler of real clusters, in virtual time."""

from .replay import Replay, Replays, simulate

__all__ = ["Replay", "Replays", "simulate"]
