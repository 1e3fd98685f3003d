"""What a worker says: to its agent, and to the other workers of its job."""

from __future__ import annotations

from ..model import JobId, WorkerId, WorkerStatus
from .base import Message


class Status(Message, frozen=True, kw_only=True):
    """A worker's status; also its heartbeat."""

    status: WorkerStatus


class Ready(Message, frozen=True, kw_only=True):
    """Follower -> leader: I act under order `generation`, and this is how far I am."""

    job: JobId
    generation: int
    worker: WorkerId
    base: int  # the generation that I am training in; 0: in none (newcomer, or my communicator is broken)
    applied: int | None
    settled: int = 0  # decisions that the script's workers have taken together since that step, which I know


class Prepare(Message, frozen=True, kw_only=True):
    """Leader -> follower: build communicator (`generation`, `attempt`). `holders` have the state of step `applied`."""

    job: JobId
    generation: int
    attempt: int
    base: int  # the generation that the switch starts from; 0: from none, all commit by message
    holders: tuple[WorkerId, ...]


class Prepared(Message, frozen=True, kw_only=True):
    """Follower -> leader: my communicator (`generation`, `attempt`) stands, or `error` says why not."""

    job: JobId
    generation: int
    attempt: int
    worker: WorkerId
    base: int  # as in Ready, and what it says now: it may have moved since
    applied: int | None
    settled: int = 0
    error: str = ""


class Commit(Message, frozen=True, kw_only=True):
    """Leader -> those who are not in the collective that carried the decision: switch now."""

    job: JobId
    generation: int
    attempt: int


class StoreSet(Message, frozen=True, kw_only=True):
    """Rendezvous: set `key`."""

    scope: str
    key: str
    value: bytes


class StoreGet(Message, frozen=True, kw_only=True):
    """Rendezvous: answer with the value of `key` as soon as it is there."""

    scope: str
    key: str


class StoreAdd(Message, frozen=True, kw_only=True):
    """Rendezvous: add to the counter `key`, answer with its new value in decimal digits."""

    scope: str
    key: str
    amount: int


class StoreValue(Message, frozen=True, kw_only=True):
    """Answer of the rendezvous. `cancelled`: the scope has been given up."""

    key: str
    value: bytes
    cancelled: bool = False
