"""GPUs that are temporarily out of use for loans, or for reservations of the policy file. All of these are cordons."""

from __future__ import annotations

from collections.abc import Iterator

from ..protocol.model import GpuAddress, ServerId
from ..scheduler.view import Use
from .cluster import Cluster
from .records import Cordon
from .taints import NOTHING_OVERRULED

RESERVATION = "reservation-"  # prefix of the loan's name for a reservation


def lent(cluster: Cluster) -> Iterator[tuple[ServerId, Cordon]]:
    """Yield server and cordon of each loan and reservation, one cordon per GPU."""
    for server, record in cluster.servers.overruled.items():
        for cordon in record.cordons:
            if cordon.loan:
                yield server, cordon


def use_of(cluster: Cluster, gpu: GpuAddress) -> Use:
    """Return why a GPU that no job holds is unavailable."""
    loans = [
        cordon.loan
        for cordon in cluster.servers.overruled.get(gpu.server, NOTHING_OVERRULED).cordons
        if cordon.loan and cordon.covers(gpu.index)
    ]
    if not loans:
        return Use.BARRED
    return Use.RESERVED if any(loan.startswith(RESERVATION) for loan in loans) else Use.LENT


def taken(cluster: Cluster) -> dict[str, int]:
    """Return the number of GPUs that are out of use for each reservation, by its name."""
    found: dict[str, int] = {}
    for _, cordon in lent(cluster):
        if cordon.loan.startswith(RESERVATION):
            name = cordon.loan.removeprefix(RESERVATION)
            found[name] = found.get(name, 0) + 1
    return found


def back_at(cluster: Cluster) -> dict[GpuAddress, tuple[str, float]]:
    """Return the GPUs that are out of use for loans and reservations alone: the one that ends last, and its end (Unix time)."""
    found: dict[GpuAddress, tuple[str, float]] = {}
    for server, cordon in lent(cluster):
        gpu = GpuAddress(server=server, index=cordon.gpu) if cordon.gpu is not None else None
        session = cluster.servers.sessions.get(server)
        if gpu is None or session is None or not session.alive or not cluster.servers.fit(server):
            continue
        taint = cluster.servers.taint(gpu)
        cordons = [one for one in cluster.servers.overruled[server].cordons if one.covers(gpu.index)]
        if taint is None or taint.fault is not None or not all(one.loan and one.until_s is not None for one in cordons):
            continue
        found[gpu] = max(((one.loan, one.until_s or 0.0) for one in cordons), key=lambda one: one[1])
    return found
