"""Timed reservations (`scheduler.quotas.reservations`): GPUs that the policy file takes out of use for some time.

Each reservation is a loan (`lending`) that begins and ends by itself. If too few GPUs are available at its beginning,
because gangs keep theirs, the loan takes the available ones, and more as they become free. A changed policy file takes
effect at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...protocol.messages import EventKind, ReservationView
from ...protocol.model import GpuAddress
from ...protocol.texts import gpu_count, span
from ...scheduler.quotas.reservations import TimedReservation, next_s
from ..cluster import Cluster
from ..loans import RESERVATION, lent, taken
from ..reconcile.tainted import give_back
from .lending import able_to_lend, take

MOST_WHERE = 1000  # characters of the list of GPUs in an event


def keep_reservations(cluster: Cluster, now: float) -> None:
    """Take the GPUs of reservations that are due, and return those that are not reserved any more."""
    reservations = cluster.planning.decider.scheduler.stages.reservations
    if cluster.servers.awaited:
        return
    cluster.planning.examined_reservations(now)
    if not reservations and not any(True for _ in _taken(cluster)):
        return
    due = {RESERVATION + one.name: one for one in reservations if one.from_s <= now < one.to_s}
    for loan in sorted({loan for loan, _, _ in _taken(cluster)}):
        _give_back(cluster, now, loan, due.get(loan))
    for loan, one in due.items():
        _take(cluster, now, loan, one)


def begins_s(cluster: Cluster) -> float:
    """Return when the next unexamined reservation begins (Unix time); inf if there is none."""
    return next_s(cluster.planning.decider.scheduler.stages.reservations, cluster.planning.reservations_s)


def reservation_views(cluster: Cluster, now: float) -> tuple[ReservationView, ...]:
    """Return the reservations that are not over, in the order of their beginnings."""
    there = taken(cluster)
    found = [one for one in cluster.planning.decider.scheduler.stages.reservations if one.to_s > now]
    return tuple(
        ReservationView(
            name=one.name, gpus=one.gpus, from_s=one.from_s, to_s=one.to_s, taken_gpus=there.get(one.name, 0)
        )
        for one in sorted(found, key=lambda one: (one.from_s, one.name))
    )


def _taken(cluster: Cluster) -> Iterator[tuple[str, GpuAddress, float]]:
    """Yield the loan, the GPU, and the end (Unix time) of each reserved GPU."""
    for server, cordon in lent(cluster):
        if cordon.loan.startswith(RESERVATION) and cordon.gpu is not None:
            until_s = cordon.until_s if cordon.until_s is not None else math.inf
            yield cordon.loan, GpuAddress(server=server, index=cordon.gpu), until_s


def _give_back(cluster: Cluster, now: float, loan: str, one: TimedReservation | None) -> None:
    """Return GPUs that are not reserved any more, or until another time."""
    theirs = [(gpu, until_s) for name, gpu, until_s in _taken(cluster) if name == loan]
    kept = [gpu for gpu, until_s in theirs if one is not None and until_s == one.to_s][: one.gpus if one else 0]
    back = [gpu for gpu, _ in theirs if gpu not in kept]
    if back:
        give_back(cluster, now, loan, back)
        text = f"{gpu_count(len(back))} of {loan} used again: the policy has changed"
        cluster.history.add(now, EventKind.LOAN_ENDED, None, text)


def _take(cluster: Cluster, now: float, loan: str, one: TimedReservation) -> None:
    has = sum(1 for name, _, _ in _taken(cluster) if name == loan)
    gpus = able_to_lend(cluster)[: one.gpus - has]
    if not gpus:
        return
    where = ", ".join(map(str, take(cluster, now, gpus, loan, f"reserved ({one.name})", "the policy", one.to_s)))
    of = "" if has + len(gpus) == one.gpus else f" of {one.gpus}"
    text = f"{gpu_count(len(gpus))}{of} taken for {loan}, for {span(one.to_s - now)}: {where}"
    cluster.history.add(now, EventKind.LENT, None, text[:MOST_WHERE])
