"""Modules that `elasticctl check` loads before it forks a script's processes: those of `warm`, and this library itself."""

from __future__ import annotations

from . import api
from .rehearsal import run
from .warm import prepare, renew

__all__ = ["api", "prepare", "renew", "run"]
