"""Replay of a trace of jobs through the scheduler of real clusters, in virtual time."""

from .replay import Replay, simulate
from .telling import Telling

__all__ = ["Replay", "Telling", "simulate"]
