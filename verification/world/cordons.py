"""Cordons and drains as operators know them: the oracle's own record, independent of the controller's.

* After a cordon or drain is acknowledged, no worker is started there until an operator asks to lift it.
* An acknowledged cordon or drain is in the store.
* A job leaves a drained server if another place has room for all of it and nothing has disturbed it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from elasticd.controller.jobs.stored import workers_of
from elasticd.controller.records import OVERRULED, OverruleRecord
from elasticd.protocol.messages import (
    Answer,
    CordonServer,
    RemoveServer,
    Request,
    ServerCordoned,
    StartWorker,
    UncordonServer,
)
from elasticd.protocol.model import GpuAddress, JobId, JobPhase, ServerId

from .plan import Ending
from .testbed import Testbed
from .violation import Violation
from .worker import Worker

MOVED_S = 40.0  # within which a job leaves a drained server, besides the times of its own script
CALM_S = 20.0  # after a fault, before the next check
SHRINKS = "max-min"  # under this policy a job can shrink whenever it has more than its minimum


@dataclass
class _Said:
    """Known state of one server. `cordons`: by GPU (None: the whole server); True: a drain."""

    cordons: dict[int | None, bool] = field(default_factory=dict)
    lifted_s: float = float("-inf")  # time of the last request to lift something
    lifting: int = 0  # requests to lift that are not answered yet

    def cordoned(self, gpu: int) -> bool:
        return None in self.cordons or gpu in self.cordons

    def drained(self, gpu: int) -> bool:
        return self.cordons.get(None, False) or self.cordons.get(gpu, False)


class Cordons:
    """Checks cordons and drains at each request, answer and start."""

    def __init__(self, world: Testbed) -> None:
        self._world = world
        self._said: dict[ServerId, _Said] = {}
        self._asked_s: dict[str, float] = {}
        self._since: dict[tuple[JobId, ServerId], float] = {}  # since when the job could have been moved off the server
        self.drains_left = 0  # number of jobs that have left a drained server

    def asked(self, name: str, request: Request) -> None:
        """Take note of an operator's request."""
        self._asked_s[name] = self._world.timeline.now
        if isinstance(request, UncordonServer | RemoveServer):
            said = self._said.setdefault(request.server, _Said())
            said.lifting += 1
            said.lifted_s = self._world.timeline.now
            gpu = request.gpu if isinstance(request, UncordonServer) else None
            if gpu is None:
                said.cordons.clear()
            else:
                said.cordons.pop(gpu, None)

    def answered(self, name: str, request: Request | None, answer: Answer) -> None:
        """Take note of the answer to an operator's request."""
        if isinstance(request, UncordonServer | RemoveServer):
            self._said.setdefault(request.server, _Said()).lifting -= 1
        elif isinstance(request, CordonServer) and isinstance(answer, ServerCordoned):
            said = self._said.setdefault(request.server, _Said())
            if said.lifting or said.lifted_s >= self._asked_s.get(name, 0.0):
                return  # their order is unknown
            self._check_stored(name, request)
            said.cordons[request.gpu] = request.kind.drains

    def _check_stored(self, name: str, request: CordonServer) -> None:
        found = self._world.disk.get(OVERRULED + request.server)
        record = msgspec.msgpack.decode(found.value, type=OverruleRecord) if found is not None else OverruleRecord()
        if not any((one.gpu, one.kind) == (request.gpu, request.kind) for one in record.cordons):
            raise Violation("record, then act", f"{name} is acknowledged, and the store has {record}")

    def store_changed(self) -> None:
        """Forget acknowledged cordons, since the store was lost or restored."""
        self._said.clear()

    def starting(self, server: ServerId, start: StartWorker) -> None:
        """Check the GPUs on which the controller orders an agent to start a worker."""
        said = self._said.get(server)
        wrong = [gpu for gpu in start.gpus or (start.gpu,) if said is not None and said.cordoned(gpu)]
        if wrong:
            text = f"{start.worker} is started on {server}:{wrong[0]}, which an operator has cordoned"
            raise Violation("nothing is started on what is cordoned", text)

    # -- drains

    def look(self) -> None:
        """Check periodically that all jobs that can leave drained servers do."""
        now, found = self._world.timeline.now, {}
        for worker in self._world.workers() if any(map(self._drains, self._said.values())) else ():
            key = worker.job, worker.gpu.server
            said = self._said.get(worker.gpu.server)
            if said is not None and any(map(said.drained, _indices(worker))) and self._could_move(worker.job, said):
                found[key] = self._since.get(key, now)
        self.drains_left += len(self._since.keys() - found.keys())
        self._since = found
        for (job, server), since in found.items():
            if now - since > self._time_s(job):
                text = (
                    f"{job} is on {server}, which is drained, and there has been room elsewhere for {now - since:.0f} s"
                )
                raise Violation("a drain ends where there is room", text)

    @staticmethod
    def _drains(said: _Said) -> bool:
        return any(said.cordons.values())

    def _time_s(self, job: JobId) -> float:
        script = self._world.oracle.job(job).plan.script
        return MOVED_S + 2 * script.start_s + 4 * script.step_s + script.evaluate_s

    def _could_move(self, job: JobId, said: _Said) -> bool:
        """Return whether no job waits, and GPUs without a recent fault have room for the whole job."""
        world, known = self._world, self._world.oracle.job(job)
        record = known.record
        if record is None or known.uncertain or not known.joined or record.phase is not JobPhase.RUNNING:
            return False
        if known.plan.script.ending is not Ending.TRAINS or world.plan.types or known.plan.spec.gpus_per_server:
            return False
        if not world.controller.alive or world.controller.trouble:
            return False
        cluster = world.controller.machine.cluster
        if (
            cluster.servers.awaited
            or cluster.jobs.reserved
            or any(not live.record.target for live in cluster.jobs.index.live.values())
        ):
            return False
        calm_s = world.timeline.now - CALM_S
        names = [entry.worker for entry in workers_of(record)]
        if world.oracle.calm_since(*names) > calm_s or known.disturbed_at > calm_s:
            return False
        there = self._gpus(said, calm_s)
        own = sum(gpu in there for gpu in record.target)
        free = sum(cluster.jobs.index.on_gpu(gpu) is None for gpu in there)
        by_hand = any(live.record.manual_share is not None for live in cluster.jobs.index.live.values())
        shrinks = cluster.planning.policy.name == SHRINKS and not by_hand and own >= known.plan.spec.gpus.min
        return shrinks or own + free >= len(record.target)

    def _gpus(self, drained: _Said, calm_s: float) -> frozenset[GpuAddress]:
        """GPUs that the job may move to: usable ones on other servers without a fault for `calm_s`."""
        world, cluster = self._world, self._world.controller.machine.cluster
        return frozenset(
            agent.gpu(gpu.index)
            for agent in world.agents
            if agent.alive and agent.powered and world.oracle.calm_since(agent.name) <= calm_s
            if self._said.get(agent.server.server) is not drained
            for gpu in agent.server.gpus
            if cluster.servers.usable(agent.gpu(gpu.index))
        )


def _indices(worker: Worker) -> tuple[int, ...]:
    return tuple(int(device.rpartition(":")[2]) for device in worker.devices)
