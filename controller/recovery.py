"""A controller that starts finds what the one before it has recorded (cluster 3). Pure: listings in, state out."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from ..protocol.errors import OperatorError
from ..protocol.messages import EventView, Submitted
from ..protocol.model import ServerId
from .cluster import (
    ADOPTED,
    CLUSTER_KEY,
    KEPT_EVENTS,
    POLICY_KEY,
    AdoptionRecord,
    Cluster,
    ClusterRecord,
    PolicyRecord,
    ServerRecord,
    Session,
    event_key,
    job_key,
    server_key,
)
from .jobs import Job
from .policy import recover_policy
from .records import JobRecord, WorkerRecord
from .statuses import mended_progress, usable_measurement, usable_resize
from .throughput import PREFIX, KindRecord
from .validation import usable_rate


def recover(cluster: Cluster, now: float, records: Iterable[tuple[str, bytes]]) -> None:
    """Fill `cluster` from (key, value) records. Raises OperatorError for a value that is no record of this version.

    Servers are taken for absent until their agents have said hello; nothing is decided before all have, or their leases
    have run out.
    """
    jobs: list[JobRecord] = []
    events: list[EventView] = []
    kinds: list[KindRecord] = []
    policy: PolicyRecord | None = None
    for key, value in records:
        try:
            if key.startswith("/jobs/"):
                jobs.append(msgspec.msgpack.decode(value, type=JobRecord))
            elif key.startswith("/events/"):
                events.append(msgspec.msgpack.decode(value, type=EventView))
            elif key.startswith(PREFIX):
                kinds.append(_mended_kind(msgspec.msgpack.decode(value, type=KindRecord), now))
            elif key.startswith("/servers/"):
                known = msgspec.msgpack.decode(value, type=ServerRecord)
                name = known.server.server
                cluster.sessions[name] = Session(known.server, alive=False, last_heard_s=now, agent=known.agent)
                cluster.awaited.add(name)
            elif key == CLUSTER_KEY:
                itself = msgspec.msgpack.decode(value, type=ClusterRecord)
                cluster.id, cluster.first_job = itself.id, itself.first_job
            elif key.startswith(ADOPTED):
                adopted = msgspec.msgpack.decode(value, type=AdoptionRecord)
                cluster.adopted[ServerId(key.removeprefix(ADOPTED))] = adopted.agent
            elif key == POLICY_KEY:
                policy = msgspec.msgpack.decode(value, type=PolicyRecord)
        except msgspec.MsgspecError as error:
            raise OperatorError(f"the store's record {key} cannot be read: {error}") from None
    if not cluster.id:
        cluster.id = f"{cluster.rng.getrandbits(128):032x}"
        cluster.record_itself()
    cluster.history.recover(kinds)
    for record in sorted(jobs, key=_number):
        _recover_job(cluster, now, record)
    cluster.events.extend(sorted(events, key=lambda event: event.number)[-KEPT_EVENTS:])
    cluster.next_job = max(cluster.first_job, max((_number(record) for record in jobs), default=0) + 1)
    cluster.next_event = max((event.number for event in events), default=0) + 1
    if policy is not None and (trouble := recover_policy(cluster, policy)):
        cluster.tell(now, "policy", None, trouble)
        cluster.warn(trouble)
    if not cluster.awaited:
        cluster.stir_all()


def mended(record: JobRecord, now: float) -> JobRecord:
    """`record` without figures that nobody can reckon with, which an older version may have recorded."""
    spec = record.spec
    rates = {share: rate for share, rate in spec.throughput.items() if usable_rate(share, rate)}
    started_s, finished_s, counted_s = record.started_s, record.finished_s, record.counted_s
    return replace(
        record,
        spec=replace(spec, throughput=rates) if rates != spec.throughput else spec,
        submitted_s=_time(record.submitted_s, now),
        started_s=None if started_s is None else _time(started_s, now),
        finished_s=None if finished_s is None else _time(finished_s, now),
        counted_s=None if counted_s is None else min(_time(counted_s, now), now),
        attained_gpu_s=_sum(record.attained_gpu_s),
        executed_s=_sum(record.executed_s),
        workers=tuple(_not_after(entry, now) for entry in record.workers),
        shares=tuple(change for change in record.shares if math.isfinite(change.time_s)),
        progress=mended_progress(record.progress) if record.progress is not None else None,
        measured=tuple(entry for entry in record.measured if usable_measurement(entry)),
        resizes=tuple(resize for resize in record.resizes if usable_resize(resize)),
    )


def _mended_kind(record: KindRecord, now: float) -> KindRecord:
    measured = tuple(entry for entry in record.measured if usable_measurement(entry))
    return replace(record, updated_s=_time(record.updated_s, now), measured=measured)


def _time(time_s: float, now: float) -> float:
    return time_s if math.isfinite(time_s) else now


def _not_after(entry: WorkerRecord, now: float) -> WorkerRecord:
    """The clock may have been set back since."""
    started_s, joined_s = entry.started_s, entry.joined_s
    if (started_s or 0.0) <= now and (joined_s or 0.0) <= now:
        return entry
    return replace(
        entry,
        started_s=min(started_s, now) if started_s is not None else None,
        joined_s=min(joined_s, now) if joined_s is not None else None,
    )


def _sum(seconds: float) -> float:
    return seconds if 0 <= seconds < math.inf else 0.0


def _recover_job(cluster: Cluster, now: float, written: JobRecord) -> None:
    record = mended(written, now)
    progress = record.progress
    step = progress.step if progress is not None and progress.step is not None else -1
    job = Job(record, best_applied=max(record.best_at_restart, step))
    job.begin_timers(now)
    cluster.add_job(job, written)
    cluster.remember_answer(record.request, Submitted(job=record.job))


def _number(record: JobRecord) -> int:
    return int(record.job.rpartition("-")[2])


# ----------------------------------------------------------------------------------------------- is the one equal to the other?

# Timers of jobs that follow from what is recorded; others begin when agents have spoken.
LASTING = ("restart", "hold", "rest")


def durable(cluster: Cluster) -> dict[str, bytes]:
    """All keys and values that the store must hold, after a turn, for the next controller to know as much."""
    found = {event_key(event.number): msgspec.msgpack.encode(event) for event in cluster.events}
    found |= {job_key(name): msgspec.msgpack.encode(job.kept) for name, job in cluster.jobs.items()}
    for name, session in cluster.sessions.items():
        found[server_key(name)] = msgspec.msgpack.encode(ServerRecord(server=session.server, agent=session.agent))
    found[CLUSTER_KEY] = msgspec.msgpack.encode(cluster.record)
    found |= {ADOPTED + name: msgspec.msgpack.encode(AdoptionRecord(agent=a)) for name, a in cluster.adopted.items()}
    found |= {PREFIX + record.fingerprint: msgspec.msgpack.encode(record) for record in cluster.history.records()}
    if cluster.decider.record is not None:
        found[POLICY_KEY] = msgspec.msgpack.encode(cluster.decider.record)
    return found


def differences(before: Cluster, after: Cluster) -> tuple[str, ...]:
    """In what a controller that has just recovered differs from the one before it, in words: durable facts, and the timers that
    follow from them. Empty if the one is as good as the other."""
    kept, found = durable(before), durable(after)
    odd = [key for key in sorted({*kept, *found}) if kept.get(key) != found.get(key)]
    for name in before.jobs.keys() & after.jobs.keys():
        waits = [[timer for timer in LASTING if timer in cluster.jobs[name].timers()] for cluster in (before, after)]
        if waits[0] != waits[1]:
            odd.append(f"{name} waits for {waits[0]} before, for {waits[1]} after")
    return tuple(odd)
