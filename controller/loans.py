"""Which GPUs are out of use for a while, and for what: loans, and reservations of the policy file. All are cordons."""

from __future__ import annotations

from collections.abc import Iterator

from ..protocol.model import GpuAddress, ServerId
from ..scheduler.view import Use
from .bars import NOTHING_OVERRULED
from .cluster import Cluster
from .records import Cordon

RESERVATION = "reservation-"  # begins the name of the loan of one


def lent(cluster: Cluster) -> Iterator[tuple[ServerId, Cordon]]:
    """A cordon for each GPU."""
    for server, record in cluster.overruled.items():
        for cordon in record.cordons:
            if cordon.loan:
                yield server, cordon


def use_of(cluster: Cluster, gpu: GpuAddress) -> Use:
    """Why a GPU that no job holds is not to be had."""
    loans = [
        cordon.loan
        for cordon in cluster.overruled.get(gpu.server, NOTHING_OVERRULED).cordons
        if cordon.loan and cordon.covers(gpu.index)
    ]
    if not loans:
        return Use.BARRED
    return Use.RESERVED if any(loan.startswith(RESERVATION) for loan in loans) else Use.LENT


def taken(cluster: Cluster) -> dict[str, int]:
    """By name of a reservation, how many GPUs are out of use for it."""
    found: dict[str, int] = {}
    for _, cordon in lent(cluster):
        if cordon.loan.startswith(RESERVATION):
            name = cordon.loan.removeprefix(RESERVATION)
            found[name] = found.get(name, 0) + 1
    return found
