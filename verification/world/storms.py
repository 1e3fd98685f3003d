"""The invariant against message storms: unchanged words are repeated at their period, and no more often.

Each message that the product repeats has a timer (`protocol.times`). So in a window the number of equal words from one process to
another follows from the period, however many faults there are: a change makes new words. Numbers that grow by themselves (of
statuses, of hellos, of steps) are no part of the words: two processes that make each other speak again would have new numbers
each time.
"""

from __future__ import annotations

import msgspec

from elasticd.protocol.messages import (
    Acknowledged,
    AgentHeartbeat,
    AgentHello,
    Commit,
    Envelope,
    ForgetWorkers,
    HelloRefused,
    Order,
    Prepare,
    Prepared,
    Ready,
    StartWorker,
    StatusReceived,
    StopWorker,
    Suspend,
    WorkerExit,
    WorkerReport,
)
from elasticd.protocol.model import WorkerStatus
from elasticd.protocol.times import (
    HEARTBEAT_INTERVAL_S,
    RESEND_AFTER_S,
    WORKER_HEARTBEAT_S,
    WORKER_RETRY_S,
)

from .process import PEER_TIMEOUT_S

WINDOW_S = 10.0
Words = tuple[object, ...]

# Between two equal messages (s). An agent waits for a heartbeat interval between two hellos, since it learns of a gap by the
# answer to a heartbeat. Answers come as often as what they answer: a hello and a heartbeat are acknowledged, an end is forgotten,
# each status of a worker may make its agent repeat an order, and the controller repeat a stop, also of a worker that has ended.
PERIOD_S: dict[type, float] = {
    AgentHeartbeat: HEARTBEAT_INTERVAL_S,
    AgentHello: HEARTBEAT_INTERVAL_S,
    Acknowledged: HEARTBEAT_INTERVAL_S / 2,
    HelloRefused: HEARTBEAT_INTERVAL_S,
    WorkerExit: HEARTBEAT_INTERVAL_S,
    ForgetWorkers: HEARTBEAT_INTERVAL_S,
    WorkerStatus: WORKER_HEARTBEAT_S,
    WorkerReport: WORKER_HEARTBEAT_S,
    StatusReceived: WORKER_HEARTBEAT_S,
    StopWorker: WORKER_HEARTBEAT_S,
    Suspend: WORKER_HEARTBEAT_S,
    Ready: WORKER_RETRY_S,
    Prepared: WORKER_RETRY_S,
    Prepare: WORKER_RETRY_S,
    Commit: WORKER_RETRY_S,
}
# Requests of the controller to an agent: sent once in each session, and again after so long (s)
AGAIN_S: dict[type, float] = {Order: RESEND_AFTER_S, StartWorker: RESEND_AFTER_S}


def words(message: msgspec.Struct) -> Words:
    """Return the contents of a message without numbers that grow by themselves."""
    kind = type(message)
    match message:
        case WorkerStatus():
            return kind, *_told(message)
        case WorkerReport(status=status):
            return kind, *_told(status)
        case WorkerExit(worker=worker, uid=uid):
            return kind, worker, uid
        case AgentHello():
            return (kind,)
        case Acknowledged(session=session):
            return kind, bool(session)
        case AgentHeartbeat(troubles=troubles):
            return kind, troubles
        case Envelope(id=name):
            return kind, name
        case _:
            return kind, msgspec.msgpack.encode(message)


def _told(status: WorkerStatus) -> Words:
    state = status.phase, status.generation, status.order, status.floor, status.saved, status.saved_generation
    return status.worker, *state, status.save_failures, status.unheard, status.news, status.note


def most(message: msgspec.Struct, sessions: int, to_worker: bool) -> float:
    """Most equal messages within `WINDOW_S`. `sessions`: those that the controller has begun with the receiver in the window.

    A process that was stopped answers at once all that it got before the connection broke, in PEER_TIMEOUT_S.
    """
    if isinstance(message, Acknowledged) and not message.session:
        return float("inf")  # the controller asks an agent without a session for a hello, at each of its messages
    period_s = WORKER_HEARTBEAT_S if isinstance(message, Order) and to_worker else PERIOD_S.get(type(message))
    if period_s is not None:
        return 1 + (WINDOW_S + PEER_TIMEOUT_S) / period_s
    again_s = AGAIN_S.get(type(message))
    return 1 + WINDOW_S / again_s + sessions if again_s is not None else float("inf")
