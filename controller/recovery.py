"""A controller that starts finds what the one before it has recorded (cluster 3). Pure: listings in, state out."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..protocol.errors import OperatorError
from ..protocol.messages import EventView, Submitted
from .cluster import KEPT_EVENTS, Cluster, ServerRecord, Session
from .jobs import Job, JobRecord
from .throughput import PREFIX, KindRecord


def recover(cluster: Cluster, now: float, records: Iterable[tuple[str, bytes]]) -> None:
    """Fill `cluster` from (key, value) records. Raises OperatorError for a value that is no record of this version.

    Servers are taken for absent until their agents have said hello; nothing is decided before all have, or their leases
    have run out.
    """
    jobs: list[JobRecord] = []
    events: list[EventView] = []
    kinds: list[KindRecord] = []
    for key, value in records:
        try:
            if key.startswith("/jobs/"):
                jobs.append(msgspec.msgpack.decode(value, type=JobRecord))
            elif key.startswith("/events/"):
                events.append(msgspec.msgpack.decode(value, type=EventView))
            elif key.startswith(PREFIX):
                kinds.append(msgspec.msgpack.decode(value, type=KindRecord))
            elif key.startswith("/servers/"):
                server = msgspec.msgpack.decode(value, type=ServerRecord).server
                cluster.sessions[server.server] = Session(server=server, alive=False, last_heard_s=now)
                cluster.awaited.add(server.server)
        except msgspec.MsgspecError as error:
            raise OperatorError(f"the store's record {key} cannot be read: {error}") from None
    cluster.history.recover(kinds)
    for record in sorted(jobs, key=_number):
        _recover_job(cluster, record)
    cluster.events.extend(sorted(events, key=lambda event: event.number)[-KEPT_EVENTS:])
    cluster.next_job = max((_number(record) for record in jobs), default=0) + 1
    cluster.next_event = max((event.number for event in events), default=0) + 1
    if not cluster.awaited:
        cluster.stir_all()


def _recover_job(cluster: Cluster, record: JobRecord) -> None:
    progress = record.progress
    step = progress.step if progress is not None and progress.step is not None else -1
    job = Job(record, best_applied=max(record.best_at_restart, step))
    cluster.add_job(job, recorded=True)
    cluster.remember_answer(record.request, Submitted(job=record.job))


def _number(record: JobRecord) -> int:
    return int(record.job.rpartition("-")[2])
