"""Messages to users about deadlines."""

from __future__ import annotations

import math

from ...protocol.texts import gpu_count
from ..view import ClusterView
from .decision import AdmissionDecision, Commitments, Offer
from .promises import Promise
from .table import DeadlineTerms, told_deadline_s

NAMED = 3  # limit of the jobs that a message names


def duration(seconds: float) -> str:
    """Return a duration in words: "45 s", "12 min", "3 h 5 min", "2 d 4 h"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours + (minutes >= 30), 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def refusal_message(
    view: ClusterView, situation: Commitments, job: Promise, verdict: AdmissionDecision, terms: DeadlineTerms
) -> str:
    """Return a sentence for the job's user: why a deadline is not promised, and what would be.

    Keys are rows of the view.
    """
    deadline_s = told_deadline_s(job.deadline_s, terms)
    ahead = sum(1 for one in situation.promised if one.deadline_s <= job.deadline_s)
    words = f"its deadline, in {duration(max(0.0, deadline_s - view.now))}, cannot be promised"
    fastest = job.levels.rates[job.levels.at_most(situation.gpus)] if len(job.levels) else 0.0
    if not fastest:
        words += (
            f": it needs at least {gpu_count(int(view.jobs.min_gpus[job.key]))}, and {situation.gpus} may be promised"
        )
    elif view.now + job.lead_s + job.left_s / fastest > job.deadline_s:
        alone_s = job.lead_s + job.left_s / fastest
        words += f": it would take {duration(alone_s)} even if it had the cluster for itself"
    else:
        words += f": {ahead} jobs with promises come before it, {len(situation.promised) - ahead} after it"
    return f"{words}{_offered(view, job, verdict.offer, terms)}"


def _offered(view: ClusterView, job: Promise, offer: Offer | None, terms: DeadlineTerms) -> str:
    if offer is None:
        return ""
    ways = []
    if offer.deadline_s < math.inf:
        ways.append(f"with a deadline in {duration(told_deadline_s(offer.deadline_s, terms) - view.now)}")
    if offer.left_s > 0:
        ways.append(f"with {math.floor(100 * offer.left_s / job.left_s)} % of its steps")
    if offer.more_gpus is not None:
        ways.append(f"with {gpu_count(offer.more_gpus)} more in the cluster")
    if offer.consent:
        names = ", ".join(view.jobs.name(row) for row in offer.consent[:NAMED])
        more = f" and {len(offer.consent) - NAMED} more" if len(offer.consent) > NAMED else ""
        ways.append(f"without the promises of {names}{more}")
    return f"; it would be {', or '.join(ways)}" if ways else ""
