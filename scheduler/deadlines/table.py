"""Conversion of the scheduler's view to promises: the rows with promises, and the GPUs that may be promised."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np
from msgspec import structs

from ..manual import shares_by_hand
from ..view import UNKNOWN_S, ClusterView, Floats, Ints, JobTable, Schedules
from .levels import Levels, levels_of
from .promises import Plan, Promise
from .reserve import reserved_gpus
from .verdict import Situation

DAY_S = 86_400.0

Part = Annotated[float, msgspec.Meta(ge=0, le=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e7)]


class Terms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """On which terms deadlines are promised.

    `powers`: true: shares are powers of two, so that buddy placement finds a block for each (ElasticFlow 4.3); false:
    any number of GPUs. `margin_s`: jobs are planned to end so many seconds before their deadlines. `start_s`: how many
    seconds a job stands still when it gets its first GPUs. `resize_s`: how many seconds at each further change of its
    GPUs. `failures_per_server_day`: how often a server fails; GPUs are kept in reserve for that. `failure_s`: how many
    seconds a failed server is away. `failure_chance`: how likely it may be that more servers are away than the reserve
    has.
    """

    powers: bool = True
    margin_s: Seconds = 1.0
    start_s: Seconds = 5.0
    resize_s: Seconds = 0.5
    failures_per_server_day: Annotated[float, msgspec.Meta(ge=0, le=1000)] = 0.0
    failure_s: Seconds = DAY_S
    failure_chance: Part = 0.01

    def reserve(self, view: ClusterView) -> int:
        """Return the number of the view's GPUs that are not promised."""
        if not self.failures_per_server_day:
            return 0
        per_s = self.failures_per_server_day / DAY_S
        return reserved_gpus([len(server.gpus) for server in view.servers], per_s, self.failure_s, self.failure_chance)


DEFAULT_TERMS = Terms(powers=False)


def due(jobs: JobTable) -> Ints:
    """Return the rows with deadlines, soft ones included, and known lengths."""
    return np.flatnonzero((jobs.deadline_s < math.inf) & (jobs.left_s < UNKNOWN_S))


def promises(
    jobs: JobTable, rows: Sequence[int], gpus: int, now: float, terms: Terms, new: bool = False
) -> list[Promise]:
    """Return the promises of these rows, which are their keys; `gpus`: no job has more.

    `new`: the jobs have not been admitted yet, so they have to end a margin before their deadlines. Jobs with promises
    may use up their margin if there is no other way.
    """
    at = np.asarray(rows, dtype=np.int64)
    columns = (
        jobs.left_s[at],
        jobs.deadline_s[at] - terms.margin_s,
        jobs.share[at],
        jobs.priority[at],
        jobs.soft[at],
        _lead_s(jobs, at, now, terms.start_s),
        jobs.curve[at],
        jobs.min_gpus[at],
        np.minimum(jobs.max_gpus[at], gpus),
    )
    known: dict[tuple[int, int, int], Levels] = {}
    schedules = jobs.schedules
    found = []
    change_s = max(terms.start_s, terms.resize_s)  # the job may be interrupted, and start again
    for key, left_s, deadline_s, share, priority, soft, lead_s, curve, least, most in zip(
        at.tolist(), *[column.tolist() for column in columns], strict=True
    ):
        if (levels := known.get((curve, least, most))) is None:
            levels = known[curve, least, most] = levels_of(jobs.curves, curve, least, most, terms.powers)
        found.append(
            Promise(
                key=key,
                left_s=left_s,
                deadline_s=deadline_s,
                levels=levels,
                grace_s=0.0 if new else terms.margin_s,
                share=share,
                lead_s=lead_s,
                change_s=change_s,
                priority=priority,
                soft=bool(soft),
                schedule=schedules.get(jobs.name(key)) if schedules else None,
            )
        )
    return found


def _lead_s(jobs: JobTable, rows: Ints, now: float, start_s: float) -> Floats:
    """Return how long these rows stand still before they work, in seconds. `start_s`: for jobs without GPUs."""
    found: Floats = np.where(jobs.share[rows] > 0, np.maximum(jobs.still_until_s[rows] - now, 0.0), start_s)
    return found


def situation(view: ClusterView, newcomers: Sequence[int], terms: Terms) -> tuple[Situation, list[Promise]]:
    """Return the promises that have been given, and those that newcomers ask for.

    `newcomers`: rows of the view that are to be decided; those without deadlines, or of unknown length, are left out.
    All others of the view with hard deadlines have promises. Keys are rows. GPUs that are held by hand, or for a job
    that waits for many at once (`reservation`), are not promised.
    """
    jobs, new = view.jobs, set(newcomers)
    rows = due(jobs)
    hard = [row for row in rows.tolist() if row not in new and not jobs.soft[row] and row not in view.manual_shares]
    held = int(shares_by_hand(view).sum()) if view.manual_shares else 0
    if view.reservation is not None:
        held += view.reservation.gpus
    gpus = max(0, view.total_gpus - held - terms.reserve(view))
    asked = [row for row in rows.tolist() if row in new]
    return (
        Situation(view.now, gpus, promises(jobs, hard, gpus, view.now, terms)),
        promises(jobs, asked, gpus, view.now, terms, new=True),
    )


def schedules(jobs: JobTable, plan: Plan) -> Schedules:
    """Return the schedules of the rows with promises in this plan, from which the next plan may continue."""
    return {
        jobs.name(row): filled.schedule
        for row, filled in plan.found.items()
        if filled.schedule is not None and not jobs.soft[row]
    }


def told_deadline_s(planned_s: float, terms: Terms) -> float:
    """Return a deadline as shown to users, given one of a `Promise` or an `Offer`."""
    return planned_s + terms.margin_s


def with_deadline(promise: Promise, deadline_s: float, terms: Terms) -> Promise:
    """Return the same job with a deadline as given by a user."""
    return structs.replace(promise, deadline_s=deadline_s - terms.margin_s)
