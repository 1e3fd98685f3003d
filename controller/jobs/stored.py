"""In which parts the state of a job stands in the store, so that what is written follows what has changed. Pure.

Theory of operation
-------------------
The state of a job with few workers is one record, `/jobs/ID/state`, as in all earlier versions: its `JobRecord`, with its workers
in it. Of a job with more workers that would be a hundred kilobytes for each word of one of them. So it is *parted*: each worker,
living or past, has a record of its own, each order too, and the lists that grow long. What is left, the head, is less than a
kilobyte. All of it is in the same commit, as ever.

====================================  =========================================================
`/jobs/ID/state`                      the head; it says how many workers have records of their own
`/jobs/ID/state/worker/NAME`          one worker; in the state ENDED it is one of `JobRecord.past`
`/jobs/ID/state/order/GENERATION`     one order
`/jobs/ID/state/part/FIELD`           one field of `JobRecord` (`PARTS`)
====================================  =========================================================

A job is parted as soon as it has more than `WHOLE` workers, and whole again when it has none: while it waits, and in the archive.
An earlier version cannot read a head, and refuses to start: it would know nothing of the workers, and start others on their GPUs.
To go back to one, the large jobs are paused first.
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

WHOLE = 16  # a job with more workers than these is parted
WORKER, ORDER, PART = "/worker/", "/order/", "/part/"  # after the key of the head
PARTS: Mapping[str, msgspec.msgpack.Decoder[Any]] = {
    "target": msgspec.msgpack.Decoder(tuple[GpuAddress, ...]),
    "shares": msgspec.msgpack.Decoder(tuple[ShareChange, ...]),
    "resizes": msgspec.msgpack.Decoder(tuple[Resize, ...]),
    "measured": msgspec.msgpack.Decoder(tuple[Measured, ...]),
    "progress": msgspec.msgpack.Decoder(Progress),
}
NOTHING = JobRecord()
APART: Mapping[str, Any] = {name: getattr(NOTHING, name) for name in (*PARTS, "orders", "past")}  # not in a head

_HEAD = msgspec.msgpack.Decoder(JobRecord)
_WORKER = msgspec.msgpack.Decoder(WorkerRecord)
_ORDER = msgspec.msgpack.Decoder(OrderRecord)


@dataclass
class Written:
    """What the store holds of the state of a job."""

    record: JobRecord = NOTHING  # without its workers
    workers: dict[WorkerId, WorkerRecord] = field(default_factory=dict)  # of a parted one: the living and the past
    whole: tuple[WorkerRecord, ...] = ()  # of a whole one: the living
    parted: bool = False
    head: JobRecord | None = None  # of a parted one; None: it is to be written


@dataclass(frozen=True)
class Changes:
    """What brings the store up to date. `puts`: values to be encoded, by key."""

    puts: dict[str, Any]
    deletes: tuple[str, ...]


def changes(job: Job, before: Written | None, most: int = WHOLE) -> tuple[Changes | None, Written]:
    """What of the state of `job` the store does not hold yet, and what it holds then. `most`: workers of a whole job."""
    table, record = job.workers, job.record
    if before is not None and before.record is record and not table.unwritten:
        return None, before
    unwritten, table.unwritten = table.unwritten, {}
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
    """All that the store holds of the state of `job`, by key."""
    if not parted:
        return {state_key(job.id): whole(job)}
    return _parts(job, Written(), dict.fromkeys(entry.worker for entry in job.workers))[0].puts


def whole(job: Job) -> JobRecord:
    """The state of `job` in one record."""
    return replace(job.record, stored_workers=tuple(job.workers)) if len(job.workers) else job.record


def _parts(job: Job, known: Written, unwritten: dict[WorkerId, None]) -> tuple[Changes, JobRecord]:
    """The parts that differ from what is `known`, whose workers are brought up to date; and the head."""
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
    """Those of a parted state, besides the head's."""
    here = state_key(job)
    yield from (here + PART + name for name in PARTS if getattr(known.record, name) != APART[name])
    yield from (_order_key(job, order.generation) for order in known.record.orders)
    yield from (here + WORKER + worker for worker in known.workers)


def _order_key(job: JobId, generation: int) -> str:
    return f"{state_key(job)}{ORDER}{generation:012d}"


# ---------------------------------------------------------------------------------------------------------------- reading


def is_head(value: bytes) -> bool:
    """Is this, under the key of a job's state, not all of the state?"""
    return isinstance(_HEAD.decode(value).stored_workers, int)


class States:
    """The states of jobs, put together from the records of a store."""

    def __init__(self, records: Iterable[tuple[str, bytes]] = ()) -> None:
        self._heads: dict[JobId, bytes] = {}
        self._parts: dict[JobId, dict[str, bytes]] = {}  # by the rest of the key
        for key, value in records:
            self.put(key, value)

    def put(self, key: str, value: bytes | None) -> JobId | None:
        """This is recorded under `key`; None: nothing is any more. Returns the job, if it is of a job's state."""
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
        """The state of `job`; None: there is none. Raises OperatorError if it cannot be read, or a part of it is missing."""
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
    """The state in one record, with the workers in it."""
    return replace(state.record, stored_workers=living(state))


def workers_of(record: JobRecord) -> tuple[WorkerRecord, ...]:
    """The workers in a record that is whole."""
    assert not isinstance(record.stored_workers, int), "it is whole"
    return record.stored_workers


def living(state: Written) -> tuple[WorkerRecord, ...]:
    """The workers whose processes may live, in the order in which they were named."""
    if not state.parted:
        return state.whole
    alive = [entry for entry in state.workers.values() if entry.state is not WorkerState.ENDED]
    return tuple(sorted(alive, key=lambda entry: worker_number(entry.worker)))
