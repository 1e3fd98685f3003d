"""Layout of a job's state in the store, divided so that the amount written follows the amount changed. Pure.

Theory of operation
-------------------
The state of a job with few workers is one record, `/jobs/ID/state`, as in all earlier versions: its `JobRecord`, which
includes the workers. For a job with many workers, each change of one worker would rewrite a hundred kilobytes. So the
state of such a job is *parted*: each worker, living or past, has a record of its own, as have each order and the lists
that grow long. The remaining head is less than a kilobyte. All parts are written in the same commit.

====================================  =========================================================
`/jobs/ID/state`                      the head, with the number of workers that have own records
`/jobs/ID/state/worker/NAME`          one worker; in the state ENDED it is one of `JobRecord.past`
`/jobs/ID/state/order/GENERATION`     one order
`/jobs/ID/state/part/FIELD`           one field of `JobRecord` (`PARTS`)
====================================  =========================================================

A job is parted once it has more than `WHOLE` workers, and whole again when it has none: while it waits, and in the
archive. An earlier version cannot read a head, and refuses to start. Otherwise it would start workers on GPUs that are
in use. Before a downgrade, the large jobs must be paused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from ...protocol.errors import OperatorError
from ...protocol.messages import ShareChange
from ...protocol.model import GpuAddress, JobId, Resize, WorkerId, worker_number
from ...scheduler.speedup_curve import Measured
from ..records import job_of_state, state_key
from .job import Job
from .records import JobRecord, OrderRecord, Progress, WorkerRecord, WorkerState

WHOLE = 16  # most workers of a job that is not parted
WORKER, ORDER, PART = "/worker/", "/order/", "/part/"  # follow the key of the head
PARTS: Mapping[str, msgspec.msgpack.Decoder[Any]] = {
    "target": msgspec.msgpack.Decoder(tuple[GpuAddress, ...]),
    "shares": msgspec.msgpack.Decoder(tuple[ShareChange, ...]),
    "resizes": msgspec.msgpack.Decoder(tuple[Resize, ...]),
    "measured": msgspec.msgpack.Decoder(tuple[Measured, ...]),
    "progress": msgspec.msgpack.Decoder(Progress),
}
NOTHING = JobRecord()
# Values of these fields in a head.
APART: Mapping[str, Any] = {name: getattr(NOTHING, name) for name in (*PARTS, "orders", "past")}

_HEAD = msgspec.msgpack.Decoder(JobRecord)
_WORKER = msgspec.msgpack.Decoder(WorkerRecord)
_ORDER = msgspec.msgpack.Decoder(OrderRecord)


@dataclass
class Written:
    """State of a job as the store holds it."""

    record: JobRecord = NOTHING  # without the workers
    # Living and past workers of a parted state.
    workers: dict[WorkerId, WorkerRecord] = field(default_factory=dict)
    whole: tuple[WorkerRecord, ...] = ()  # living workers of a state in one record
    parted: bool = False
    head: JobRecord | None = None  # head of a parted state; None: the head must be written


@dataclass(frozen=True)
class Changes:
    """Writes that bring the store up to date. `puts`: values to be encoded, by key."""

    puts: dict[str, Any]
    deletes: tuple[str, ...]


def changes(job: Job, before: Written | None, most: int = WHOLE) -> tuple[Changes | None, Written]:
    """Return the writes that the store lacks for the state of `job` (None if none), and the stored state after them.

    `most`: the most workers of a job that is not parted.
    """
    table, record = job.workers, job.record
    if before is not None and before.record is record and not table.unwritten:
        return None, before
    unwritten = table.take_unwritten()
    parted = len(table) > most or (before is not None and before.parted and len(table) > 0)
    if not parted:
        now = Written(record, whole=tuple(table))
        if before is not None and not before.parted and (before.record, before.whole) == (record, now.whole):
            return None, now
        gone = tuple(_keys(job.id, before)) if before is not None and before.parted else ()
        return Changes({state_key(job.id): whole(job)}, gone), now
    if before is None or not before.parted:
        before, unwritten = Written(), dict.fromkeys(entry.worker for entry in table)
    found, head = _parts(job, before, unwritten)
    now = Written(record, before.workers, parted=True, head=head)
    return (found if found.puts or found.deletes else None), now


def contents(job: Job, parted: bool) -> dict[str, Any]:
    """Return the complete stored contents for the state of `job`, by key."""
    if not parted:
        return {state_key(job.id): whole(job)}
    return _parts(job, Written(), dict.fromkeys(entry.worker for entry in job.workers))[0].puts


def whole(job: Job) -> JobRecord:
    """Return the state of `job` in one record."""
    return replace(job.record, stored_workers=tuple(job.workers)) if len(job.workers) else job.record


def _parts(job: Job, known: Written, unwritten: dict[WorkerId, None]) -> tuple[Changes, JobRecord]:
    """Return the writes for parts that differ from `known`, and the head. `known.workers` is updated in place."""
    here, record, before = state_key(job.id), job.record, known.record
    puts: dict[str, Any] = {}
    deletes: list[str] = []
    head = known.head
    if head is None or record is not before or head.stored_workers != len(job.workers):
        head = replace(record, stored_workers=len(job.workers), **APART)
    if head != known.head:
        puts[here] = head
    for name in PARTS:
        value = getattr(record, name)
        if value is not getattr(before, name) and value != getattr(before, name):
            if value == APART[name]:
                deletes.append(here + PART + name)
            else:
                puts[here + PART + name] = value
    if record.orders is not before.orders:
        given = {order.generation: order for order in before.orders}
        for order in record.orders:
            if order != given.pop(order.generation, None):
                puts[_order_key(job.id, order.generation)] = order
        deletes += [_order_key(job.id, generation) for generation in given]
    past: dict[WorkerId, WorkerRecord] = {}
    if record.past is not before.past:
        past = {entry.worker: entry for entry in record.past}
        unwritten = unwritten | dict.fromkeys([*past, *(entry.worker for entry in before.past)])
    for worker in unwritten:
        entry = job.workers.get(worker) or past.get(worker)
        if entry is None:
            if known.workers.pop(worker, None) is not None:
                deletes.append(here + WORKER + worker)
        elif known.workers.get(worker) != entry:
            known.workers[worker] = puts[here + WORKER + worker] = entry
    return Changes(puts, tuple(deletes)), head


def _keys(job: JobId, known: Written) -> Iterator[str]:
    """Yield the keys of a parted state, except the key of the head."""
    here = state_key(job)
    yield from (here + PART + name for name in PARTS if getattr(known.record, name) != APART[name])
    yield from (_order_key(job, order.generation) for order in known.record.orders)
    yield from (here + WORKER + worker for worker in known.workers)


def _order_key(job: JobId, generation: int) -> str:
    return f"{state_key(job)}{ORDER}{generation:012d}"


# ---------------------------------------------------------------------------------------------------------------- reading


def is_head(value: bytes) -> bool:
    """Return whether the value under the key of a job's state is only the head of the state."""
    return isinstance(_HEAD.decode(value).stored_workers, int)


class States:
    """States of jobs, assembled from the records of a store."""

    def __init__(self, records: Iterable[tuple[str, bytes]] = ()) -> None:
        self._heads: dict[JobId, bytes] = {}
        self._parts: dict[JobId, dict[str, bytes]] = {}  # per job: the parts by the rest of the key
        for key, value in records:
            self.put(key, value)

    def put(self, key: str, value: bytes | None) -> JobId | None:
        """Take over the value under `key` (None: deleted); return the job if the key belongs to a job's state."""
        job = job_of_state(key)
        if job is None:
            return None
        rest = key[len(state_key(job)) :]
        if value is None:
            if rest:
                self._parts.get(job, {}).pop(rest, None)
            else:
                self._heads.pop(job, None)
        elif rest:
            self._parts.setdefault(job, {})[rest] = value
        else:
            self._heads[job] = value
        return job

    def __iter__(self) -> Iterator[JobId]:
        return iter(self._heads)

    def get(self, job: JobId) -> Written | None:
        """Return the state of `job`; None if there is none.

        Raises OperatorError if the state cannot be read, or lacks a part.
        """
        head = self._heads.get(job)
        if head is None:
            return None
        key = state_key(job)
        try:
            record = _HEAD.decode(head)
            if not isinstance(record.stored_workers, int):
                return Written(replace(record, stored_workers=()), whole=record.stored_workers)
            fields: dict[str, Any] = {}
            orders: list[OrderRecord] = []
            workers: dict[WorkerId, WorkerRecord] = {}
            for rest, value in sorted(self._parts.get(job, {}).items()):
                key = state_key(job) + rest
                if rest.startswith(WORKER):
                    entry = _WORKER.decode(value)
                    workers[entry.worker] = entry
                elif rest.startswith(ORDER):
                    orders.append(_ORDER.decode(value))
                elif (name := rest.removeprefix(PART)) in PARTS:
                    fields[name] = PARTS[name].decode(value)
        except msgspec.MsgspecError as error:
            raise OperatorError(f"the store's record {key} cannot be read: {error}") from None
        past = [entry for entry in workers.values() if entry.state is WorkerState.ENDED]
        if len(workers) - len(past) != record.stored_workers:
            raise OperatorError(
                f"the store's record {state_key(job)} tells of {record.stored_workers} workers, and there are records of "
                f"{len(workers) - len(past)}: restore the store from a backup"
            )
        past.sort(key=lambda entry: (entry.end, entry.ended_s or 0.0, worker_number(entry.worker)))
        order = sorted(orders, key=lambda order: order.generation)
        found = replace(record, stored_workers=(), orders=tuple(order), past=tuple(past), **fields)
        return Written(found, workers, parted=True, head=record)


def whole_of(state: Written) -> JobRecord:
    """Return the state in one record that includes the workers."""
    return replace(state.record, stored_workers=living(state))


def workers_of(record: JobRecord) -> tuple[WorkerRecord, ...]:
    """Return the workers in a record that is not parted."""
    assert not isinstance(record.stored_workers, int), "it is whole"
    return record.stored_workers


def living(state: Written) -> tuple[WorkerRecord, ...]:
    """Return the workers with processes that may be alive, in the order in which they were named."""
    if not state.parted:
        return state.whole
    alive = [entry for entry in state.workers.values() if entry.state is not WorkerState.ENDED]
    return tuple(sorted(alive, key=lambda entry: worker_number(entry.worker)))
