"""The policies that can be simulated: those of the scheduler."""

from __future__ import annotations

from ..controller.scheduling.policies import POLICIES, Policy, load_policy

__all__ = ["NAMES", "Policy", "load_policy"]

NAMES = tuple(kind.name for kind in POLICIES)
