"""Statuses that come twice: the second one bears the number of the first, and says something else.

A status is known by its number, which grows with each that a worker tells. What a number has said first stands, at the agent and
at the controller: whatever says it once more, by a fault or on purpose, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from elasticd.agent.events import Action, SendWorker
from elasticd.protocol.messages import AgentHeartbeat, StatusReceived, ToControllerFromAgent, WorkerReport
from elasticd.protocol.model import ServerId, WorkerPhase, WorkerStatus

from .process import State
from .violation import Violation

if TYPE_CHECKING:
    from .cluster import World

PID = 999  # by which the second one is known
INVARIANT = "of two statuses with one number the first counts"


def other_contents(status: WorkerStatus) -> WorkerStatus:
    """What comes in the place of a status that comes twice."""
    return msgspec.structs.replace(status, pid=PID, phase=WorkerPhase.FINISHED, applied=10**6, saved=10**6)


def doubled(world: World, call: Callable[..., None], arguments: tuple[Any, ...]) -> Callable[[], None]:
    """What a message does that comes for the second time."""
    if call == world.controller.from_agent:
        server, message, identity = arguments
        match message:
            case WorkerReport():
                return partial(_again, world, server, _other(message), identity)
            case AgentHeartbeat(reports=reports) if reports:
                other = msgspec.structs.replace(message, reports=tuple(map(_other, reports)))
                return partial(_again, world, server, other, identity)
    return partial(call, *arguments)


def _other(report: WorkerReport) -> WorkerReport:
    return msgspec.structs.replace(report, status=other_contents(report.status))


def _again(world: World, server: ServerId, message: ToControllerFromAgent, identity: str) -> None:
    """Raises Violation if the controller takes in what it knows by its number. What it does not know is left out."""
    controller = world.controller
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
    """What an agent does with a status that comes twice. Raises Violation if it is more than an answer."""
    received = [SendWorker(status.worker, StatusReceived(sequence=status.sequence))]
    done = [type(action).__name__ for action in actions if action not in received]
    if done:
        text = f"{status.worker}, number {status.sequence}, at {agent}: {', '.join(done)}"
        raise Violation(INVARIANT, text)
