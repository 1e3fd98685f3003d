"""Forecast of a waiting job's start, by simulations of the cluster's future (`simulator.forecast`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from ..protocol.errors import RequestRefused, UserError
from ..protocol.messages import GetOutlook, JobView, Outlook
from ..protocol.model import JobId, JobPhase, JobSpec
from .context import DECIDED_WITHIN_S, Context
from .promises import moment

if TYPE_CHECKING:
    from ..simulator.forecast import Starts

NEW = JobId("the new job")
AT_ONCE_S = 1.0


StartForecast: TypeAlias = tuple[str, dict[str, object]]


def of_job(
    shared: Context, job: JobView, simulate: Callable[[Outlook, JobId], StartForecast] | None = None
) -> StartForecast | None:
    """Return when a waiting job starts, as a phrase and as a document; None: it does not wait for GPUs alone.

    simulate: calls `simulated`, in another process for example; None: it is called here.
    """
    if job.phase is not JobPhase.PENDING or job.withheld is not None:
        return None
    found = _outlook(shared)
    if found is None or not (found.obstacle or any(each.job == job.job for each in found.jobs)):
        return None
    return (simulate or simulated)(found, job.job)


def of_spec(shared: Context, spec: JobSpec) -> StartForecast | None:
    """Return when a job would start if it were submitted, as `of_job` does."""
    if spec.after:
        return None
    from ..simulator.forecast import with_job

    found = _outlook(shared)
    if found is None:
        return None
    if not found.obstacle:
        found = with_job(found, NEW, spec)
    return simulated(found, NEW)


def _outlook(shared: Context) -> Outlook | None:
    try:
        return shared.ask(GetOutlook(), Outlook, DECIDED_WITHIN_S)
    except (RequestRefused, UserError):  # a controller of an older version does not understand the request
        return None


def simulated(found: Outlook, job: JobId) -> StartForecast:
    """Return when a job of the outlook starts, as a phrase and as a document, or why there is no forecast."""
    from ..simulator.forecast import TooLong, starts

    obstacle = found.obstacle
    if not obstacle:
        try:
            forecast = starts(found, job)
        except TooLong as error:
            obstacle = str(error)
        else:
            return phrase(forecast, found.time_s), document(forecast, found.time_s)
    return f"no forecast: {obstacle}", {"obstacle": obstacle}


def phrase(found: Starts, now_s: float) -> str:
    """Return "between 14:10:00 and 16:40:00, in 8 of 10 simulations", or the like."""
    low_s, high_s = found.interval_s
    if low_s == math.inf:
        return "never, in 9 of 10 simulations with the servers that are connected now"
    if high_s == math.inf:
        return f"not before {moment(now_s + low_s, now_s)}, if at all, in 9 of 10 simulations"
    if high_s <= AT_ONCE_S:
        return "at once, in 9 of 10 simulations"
    first, last = "now" if low_s <= AT_ONCE_S else moment(now_s + low_s, now_s), moment(now_s + high_s, now_s)
    return f"{f'at {first}' if first == last else f'between {first} and {last}'}, in 8 of 10 simulations"


def document(found: Starts, now_s: float) -> dict[str, object]:
    """Return the interval as a document for programs; a time that is never reached is null."""
    from ..simulator.forecast import CERTAIN

    low_s, high_s = found.interval_s
    return {
        "from_s": None if low_s == math.inf else now_s + low_s,
        "to_s": None if high_s == math.inf else now_s + high_s,
        "part": CERTAIN,
        "simulations": len(found.after_s),
    }
