"""Duplicate statuses: the second one has the number of the first and other contents.

A status is identified by its number, which grows with each status of a worker. The first contents of a number stand, at the agent
and at the controller: a repetition, by a fault or on purpose, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from elasticd.agent.events import Action, SendWorker
from elasticd.protocol.messages import AgentHeartbeat, StatusReceived, ToControllerFromAgent, WorkerReport
from elasticd.protocol.model import ServerId, WorkerPhase, WorkerStatus

from .controller import Controller
from .process import State
from .violation import Violation

PID = 999  # marks the second status
INVARIANT = "of two statuses with one number the first counts"


def other_contents(status: WorkerStatus) -> WorkerStatus:
    """Return a status with the same number and other contents."""
    return msgspec.structs.replace(status, pid=PID, phase=WorkerPhase.FINISHED, applied=10**6, saved=10**6)


def doubled(controller: Controller, call: Callable[..., None], arguments: tuple[Any, ...]) -> Callable[[], None]:
    """Return the call that delivers a duplicated message for the second time."""
    if call == controller.from_agent:
        server, message, identity = arguments
        match message:
            case WorkerReport():
                return partial(_again, controller, server, _other(message), identity)
            case AgentHeartbeat(reports=reports) if reports:
                other = msgspec.structs.replace(message, reports=tuple(map(_other, reports)))
                return partial(_again, controller, server, other, identity)
    return partial(call, *arguments)


def _other(report: WorkerReport) -> WorkerReport:
    return msgspec.structs.replace(report, status=other_contents(report.status))


def _again(controller: Controller, server: ServerId, message: ToControllerFromAgent, identity: str) -> None:
    """Deliver a known status again, with other contents. Raises Violation if the controller uses it; unknown statuses are left
    out.
    """
    if controller.state is not State.RUNNING:
        return
    reports = message.reports if isinstance(message, AgentHeartbeat) else (message,)
    statuses = [report.status for report in reports if isinstance(report, WorkerReport)]
    jobs = controller.machine.cluster.jobs
    for status in statuses:
        job = jobs.get(status.job)
        before = job.statuses.get(status.worker) if job is not None else None
        if before is None or before.sequence < status.sequence:
            return
    controller.from_agent(server, message, identity)
    for status in statuses:
        job = jobs.get(status.job)
        after = job.statuses.get(status.worker) if job is not None else None
        if after is not None and after.pid == PID:
            raise Violation(INVARIANT, f"{status.worker}, number {status.sequence}, at the controller")


def heard_again(agent: str, status: WorkerStatus, actions: list[Action]) -> None:
    """Check an agent's actions after a duplicate status. Raises Violation if they are more than an answer."""
    received = [SendWorker(status.worker, StatusReceived(sequence=status.sequence))]
    done = [type(action).__name__ for action in actions if action not in received]
    if done:
        text = f"{status.worker}, number {status.sequence}, at {agent}: {', '.join(done)}"
        raise Violation(INVARIANT, text)
