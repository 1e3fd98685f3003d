"""Transfer of snapshots, part by part, to the agents of servers where their jobs have workers."""

from __future__ import annotations

from ...protocol.messages import ReadSnapshot, SnapshotPart
from ...protocol.model import ServerId
from ...protocol.snapshots import parts_of
from ..cluster import Cluster
from ..events import AgentMessage
from ..jobs.job import Job
from ..snapshots import id_of, key_of


def read(cluster: Cluster, server: ServerId, asked: AgentMessage, request: ReadSnapshot) -> None:
    """Handle the request of `server`'s agent for a part of a snapshot."""
    job = cluster.jobs.get(request.job)
    if job is None or not _may_have(job, server, request.uid):
        cluster.servers.send(server, _part(request, b"", f"job {request.job[:80]} has no worker on server {server}"))
        return
    snapshot = job.spec.snapshot
    if snapshot is None or not 0 <= request.part < parts_of(snapshot):
        cluster.servers.send(server, _part(request, b"", "the job has no such snapshot"))
        return
    cluster.fetch(asked, (key_of(id_of(job.submission.owner, snapshot), request.part),))


def on_fetched(cluster: Cluster, asked: AgentMessage, records: tuple[tuple[str, bytes | None], ...]) -> None:
    """Send the part, after it was read from the store."""
    request = asked.message
    assert isinstance(request, ReadSnapshot)
    ((_, data),) = records
    error = "" if data is not None else "the snapshot is not in the store any more"
    cluster.servers.send(asked.server, _part(request, data or b"", error))


def _may_have(job: Job, server: ServerId, uid: str) -> bool:
    here = any(entry.gpu.server == server for entry in job.workers)
    return here and job.has_uid(uid) and not job.final


def _part(request: ReadSnapshot, data: bytes, error: str) -> SnapshotPart:
    return SnapshotPart(job=request.job, part=request.part, data=data, uid=request.uid, error=error)
