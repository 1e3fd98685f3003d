"""Messages that no correct agent sends: from unknown servers, and about workers that run elsewhere.

Messages of stale or foreign peers change no record of any job.
"""

from __future__ import annotations

from elasticd.controller.events import AgentMessage
from elasticd.controller.jobs.records import JobRecord
from elasticd.protocol.messages import AgentHeartbeat, ToControllerFromAgent, WorkerExit, WorkerReport
from elasticd.protocol.model import JobId, ServerId, WorkerId, WorkerPhase, WorkerStatus

from .process import State
from .testbed import Testbed
from .violation import Violation
from .worker import Worker


def speak(world: Testbed, worker: Worker, who: int) -> None:
    """Report on a running worker as a foreign agent. Raises Violation if a job's record changes."""
    controller = world.controller
    if controller.state is not State.RUNNING or controller.trouble:
        return
    others = [agent for agent in world.agents if agent.host != worker.host]
    liar = others[who % len(others)]
    message = _lie(worker, who)
    peers = [("ghost", "nobody"), (liar.server.server, liar.record.agent), (worker.gpu.server, "nobody")]
    server, agent = peers[who % len(peers)]
    if (server, agent) == (liar.server.server, liar.record.agent):
        world.forgers.add(liar.server.server)
    before = _records(world)
    controller.take(AgentMessage(ServerId(server), message, agent))
    changed = [job for job, record in _records(world).items() if before.get(job) != record]
    if changed:
        text = f"{type(message).__name__} about {worker.name} from {server}#{agent} changes {', '.join(changed)}"
        raise Violation("what a stale or foreign peer says changes nothing", text)


def _lie(worker: Worker, who: int) -> ToControllerFromAgent:
    name = WorkerId(worker.name)
    status = WorkerStatus(
        job=worker.job,
        worker=name,
        pid=1,
        address="nowhere",
        phase=WorkerPhase.FINISHED,
        generation=1 + who % 3,
        order=1,
        floor=1,
        applied=10**6,
        sequence=10**9,
    )
    lies: tuple[ToControllerFromAgent, ...] = (
        WorkerExit(job=worker.job, worker=name, exit_code=0, reason="it is not so", phase=WorkerPhase.FINISHED),
        WorkerReport(status=status),
        AgentHeartbeat(server=ServerId("ghost")),
    )
    return lies[who // 7 % len(lies)]


def _records(world: Testbed) -> dict[JobId, JobRecord]:
    return {name: job.record for name, job in world.controller.machine.cluster.jobs.items()}
