"""Messages of a worker to its agent and to the other workers of its job."""

from __future__ import annotations

from ..model import JobId, WorkerId, WorkerStatus
from .base import Message


class Status(Message, frozen=True, kw_only=True):
    """A worker's status; also its heartbeat."""

    status: WorkerStatus


class Ready(Message, frozen=True, kw_only=True):
    """Follower -> leader: the follower acts under order `generation`; its progress."""

    job: JobId
    generation: int
    worker: WorkerId
    base: int  # generation in which the follower trains; 0: none (joining worker, or broken communicator)
    applied: int | None
    settled: int = 0  # number of values the script's workers have agreed on since that step, known to the follower


class Prepare(Message, frozen=True, kw_only=True):
    """Leader -> follower: build communicator (`generation`, `attempt`). `holders` have the state of step `applied`."""

    job: JobId
    generation: int
    attempt: int
    base: int  # the generation that the switch starts from; 0: from none, all commit by message
    holders: tuple[WorkerId, ...]


class Prepared(Message, frozen=True, kw_only=True):
    """Follower -> leader: the communicator (`generation`, `attempt`) stands, or `error` gives the reason for its
    failure.
    """

    job: JobId
    generation: int
    attempt: int
    worker: WorkerId
    base: int  # as in Ready, with the present value, which may have moved since
    applied: int | None
    settled: int = 0
    error: str = ""


class Commit(Message, frozen=True, kw_only=True):
    """Leader -> workers outside the collective that carried the decision: switch now."""

    job: JobId
    generation: int
    attempt: int


class StoreSet(Message, frozen=True, kw_only=True):
    """Rendezvous: set `key`."""

    scope: str
    key: str
    value: bytes


class StoreGet(Message, frozen=True, kw_only=True):
    """Rendezvous: answer with the value of `key` as soon as it is set."""

    scope: str
    key: str


class StoreAdd(Message, frozen=True, kw_only=True):
    """Rendezvous: add to the counter `key`, and answer with its new value in decimal digits."""

    scope: str
    key: str
    amount: int


class StoreValue(Message, frozen=True, kw_only=True):
    """Answer of the rendezvous. `cancelled`: the scope has been abandoned."""

    key: str
    value: bytes
    cancelled: bool = False
