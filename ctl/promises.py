"""Texts about the state of a job's deadline."""

from __future__ import annotations

import time

from ..protocol.messages import PromiseState, PromiseView
from ..protocol.texts import changes, gpu_count
from .formatting import printable, span
from .tables import Cell

STYLES = {
    PromiseState.HOLDS: "green",
    PromiseState.PROVISIONAL: "",
    PromiseState.BREAKS: "red",
    PromiseState.NONE: "yellow",
}


def moment(unix_s: float, now_s: float) -> str:
    """Return the local time, with the date where it is not today's."""
    when = time.localtime(unix_s)
    same_day = time.localtime(now_s)[:3] == when[:3]
    return time.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M", when)


def deadline_line(promise: PromiseView, now_s: float, eta_s: float | None = None, with_ways: bool = True) -> str:
    """Return the deadline, the plan, and the time to spare. eta_s: the job's remaining time at its present pace.

    with_ways: add the changes that would keep the deadline, or would have kept it.
    """
    left_s = promise.deadline_s - now_s
    when = f"in {span(left_s)}" if left_s >= 0 else f"{span(-left_s)} ago"
    due = f"{moment(promise.deadline_s, now_s)}, {when}{', soft' if promise.soft else ''}"
    spare_s = left_s - eta_s if eta_s is not None else 0.0
    pace = f"; at its present pace {span(spare_s)} to spare" if spare_s > 0 else ""
    return f"{due}: {_standing(promise, now_s, with_ways)}{pace}"


def _standing(promise: PromiseView, now_s: float, with_ways: bool) -> str:
    planned = f"planned end {moment(promise.planned_s, now_s)}" if promise.planned_s is not None else ""
    match promise.state:
        case PromiseState.HOLDS:
            assert promise.planned_s is not None
            kept = f", with the {gpu_count(promise.least_gpus)} that it needs at most" if promise.least_gpus else ""
            return f"holds; {planned}{kept}"
        case PromiseState.PROVISIONAL:
            known = f", by {moment(promise.final_by_s, now_s)}" if promise.final_by_s is not None else ""
            return f"provisional until {printable(promise.waits_for)} is known{known}"
        case PromiseState.BREAKS:
            late = f"ends {span(promise.planned_s - promise.deadline_s)} late" if promise.planned_s else "ends late"
            return f"{late}, as things are" + (
                f"; {printable(promise.saved_by)}" if promise.saved_by and with_ways else ""
            )
        case PromiseState.NONE:
            why = printable(promise.saved_by) or "there is no room for it beside the promises to other jobs"
            saves = _would_have_saved(promise, now_s)
            return f"not promised: {why}" + (f"; {saves}" if saves and with_ways else "")


def saves_deadline(promise: PromiseView, now_s: float) -> str:
    """Return the changes that would keep a deadline, or would have kept it; "": it holds, or none are known."""
    return printable(promise.saved_by) if promise.state is PromiseState.BREAKS else _would_have_saved(promise, now_s)


def _would_have_saved(promise: PromiseView, now_s: float) -> str:
    """Return the changes with which an unpromised deadline would have been promised, and when; "": none are known."""
    offer = promise.offer
    if offer is None or promise.offered_s is None:
        return ""
    deadline = f"of {moment(offer.deadline_s, now_s)}" if offer.deadline_s is not None else ""
    ways = "; or ".join(changes(offer, deadline, " left"))
    return f"what would have saved it at {moment(promise.offered_s, now_s)}: {ways}" if ways else ""


def slack(promise: PromiseView | None, now_s: float, eta_s: float | None) -> Cell:
    """Return the time to spare at the present pace, or else by the plan; for a table."""
    if promise is None:
        return Cell("-")
    style = STYLES[promise.state]
    end_s = now_s + eta_s if eta_s is not None else promise.planned_s
    if end_s is None:
        return Cell("?" if promise.state is PromiseState.PROVISIONAL else "none", style)
    spare_s = promise.deadline_s - end_s
    return Cell(span(spare_s) if spare_s >= 0 else f"-{span(-spare_s)}", style)
