"""Allowances of promises for the costs of GPU changes, which a simulation knows, whatever a policy file states.

A promise that counts with shorter pauses than the real ones is broken for certain.
"""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec.structs import replace

from ..scheduler.deadlines.table import DeadlineTerms
from .costs import Costs

P = TypeVar("P")


def covering(part: P, costs: Costs) -> P:
    """Return the same policy or admission; if it promises deadlines, on terms that cover these costs."""
    terms: Any = getattr(part, "parameters", None)
    if not isinstance(terms, DeadlineTerms):
        return part
    made: Any = type(part)
    covers: P = made(covered(terms, costs))
    return covers


def covered(terms: DeadlineTerms, costs: Costs) -> DeadlineTerms:
    """Return the terms with allowances and a margin for the largest costs of changes, starts and ends."""
    each = (costs, *costs.by_model.values())
    waits_s = max(one.release_s for one in each) + max(one.ready_s for one in each) if costs.releases else 0.0
    return replace(
        terms,
        start_s=max(terms.start_s, max(one.start_s for one in each) + waits_s),
        resize_s=max(terms.resize_s, max(one.ready_s + one.pause_s for one in each) + waits_s),
        margin_s=terms.margin_s + max(one.end_s for one in each),
    )
