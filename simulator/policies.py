"""The policies that can be simulated, and the stages around them: those of the scheduler."""

from __future__ import annotations

from ..controller.scheduling.describe import RuleView, rules
from ..controller.scheduling.options import WrongOption
from ..controller.scheduling.policies import POLICIES, Policy, load_policy
from ..controller.scheduling.scheduler import (
    Scheduler,
    Stages,
    load_scheduler,
    load_stages,
)

__all__ = [
    "NAMES",
    "Policy",
    "RuleView",
    "Scheduler",
    "Stages",
    "WrongOption",
    "load_policy",
    "load_scheduler",
    "load_stages",
    "rules",
]

NAMES = tuple(kind.name for kind in POLICIES)
