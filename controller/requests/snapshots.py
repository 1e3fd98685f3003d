"""Requests of clients that upload snapshots, and the check of jobs that are to run in one."""

from __future__ import annotations

from ...protocol.errors import RequestRefused, UserError
from ...protocol.messages import OfferSnapshot, PutSnapshot, SnapshotWanted
from ...protocol.model import JobSpec
from ...protocol.principals import Principal
from ...protocol.snapshots import fault_of, part_bytes
from ..cluster import Cluster


def offer(cluster: Cluster, now: float, who: Principal, request: OfferSnapshot) -> SnapshotWanted:
    """Return the parts of the snapshot that the store lacks. Raises UserError, RequestRefused."""
    if reason := fault_of(request.snapshot):
        raise UserError(reason)
    return SnapshotWanted(parts=cluster.snapshots.offer(now, who.name, request.snapshot))


def put(cluster: Cluster, now: float, who: Principal, request: PutSnapshot) -> SnapshotWanted:
    """Store a part of a snapshot; return the parts still missing. Raises UserError, RequestRefused."""
    snapshot, part = request.snapshot, request.part
    if reason := fault_of(snapshot):
        raise UserError(reason)
    if len(request.data) != part_bytes(snapshot, part):
        raise UserError(f"part {part} of a snapshot has {len(request.data)} bytes, not as many as it should")
    cluster.keep_part(cluster.snapshots.put(now, who.name, snapshot, part), request.data)
    return SnapshotWanted(parts=cluster.snapshots.offer(now, who.name, snapshot))


def check(cluster: Cluster, who: Principal, spec: JobSpec) -> None:
    """Raise RequestRefused if the job's snapshot is incomplete in the store."""
    if spec.snapshot is not None and not cluster.snapshots.is_whole(who.name, spec.snapshot):
        raise RequestRefused(f"{spec.name}: the snapshot that it is to run in has not come; submit again")
