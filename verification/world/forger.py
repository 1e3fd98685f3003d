"""A compromised server: its agent reports workers that run elsewhere, or nowhere.

The agent is otherwise correct: its own workers train, and its own reports are true. Every second it adds a forged message, and
its hellos name workers of other servers. It knows the uids of all jobs, as if it had run them. Only its first hello to a new
controller is honest, since from such hellos a controller learns that its store was restored (`forgery`).

A forgery changes no record of any job. A forged status of a worker that is recorded on another server is counted.

Seeds with two of the remainders have such a server, besides their other entries. Its random numbers come from a separate stream.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec

from elasticd.controller.jobs.job import Job
from elasticd.protocol.messages import (
    AgentHeartbeat,
    AgentHello,
    LocalWorker,
    ToControllerFromAgent,
    WorkerExit,
    WorkerReport,
)
from elasticd.protocol.model import JobId, ServerId, WorkerId, WorkerPhase, WorkerStatus

from .agent import Agent
from .forged import PID, REASON
from .plan import Fault, Kind, Plan
from .process import State
from .testbed import Testbed
from .violation import Violation

EVERY, SEEDS = 20, (5, 16)  # seeds with these remainders modulo EVERY: one of each weather
FORGERIES = 4  # times that a server is compromised
SHORTEST_S, LONGEST_S = 30.0, 120.0
LIES_EVERY_S = 1.0
STEP, GENERATION, NUMBER = 10**6, 10**5, 10**4
NOTHING = "a forged report changes nothing"


def with_forger(plan: Plan) -> Plan:
    """`plan` with a compromised server if its seed has one of the remainders, else `plan` unchanged."""
    if plan.seed % EVERY not in SEEDS or not plan.faults:
        return plan
    chance = random.Random(f"{plan.seed}/forger")
    faults = [
        Fault(
            round(chance.uniform(5, plan.storm_s), 3),
            Kind.FORGE,
            chance.randrange(1000),
            round(chance.uniform(SHORTEST_S, LONGEST_S), 1),
        )
        for _ in range(FORGERIES)
    ]
    return replace(plan, faults=tuple(sorted((*plan.faults, *faults), key=lambda fault: fault.at)))


class Forger:
    """The attacker on a compromised server."""

    def __init__(self, world: Testbed, agent: Agent, until: float, earlier: Forger | None) -> None:
        """`earlier`: the previous attacker on the same server."""
        self._world, self._agent, self._until = world, agent, until
        agent.provokes = True
        self._chance = random.Random(f"{world.seed}/forger/{agent.name}/{until}")
        self._named: set[WorkerId] = set() if earlier is None else earlier._named  # workers that it has made up
        self._lie()

    @property
    def _over(self) -> bool:
        return self._world.timeline.now >= self._until

    def _lie(self) -> None:
        if self._over:
            return
        self._world.after(LIES_EVERY_S, self._lie)
        status = self._made_up()
        controller = self._world.controller
        if status is None or not self._agent.alive or not controller.answers:
            return
        uid = self._chance.choice((self._uid(status.job), self._uid(status.job), ""))
        lie = self._chance.choice(_LIES)(status, uid)
        if self._world.story.on:
            self._world.story.say(f"{self._agent.name} forges a {type(lie).__name__} about {status.worker}")
        self._world.network.send(self._agent, controller, self._arrives, lie, status)

    def _uid(self, job: JobId) -> str:
        known = self._world.controller.machine.cluster.jobs.get(job)
        return known.uid if known is not None else ""

    def _made_up(self) -> WorkerStatus | None:
        """Return a forged status of a worker that runs elsewhere, or that does not exist."""
        others = [worker for worker in self._world.workers() if worker.host != self._agent.host]
        if not others:
            return None
        chance, worker = self._chance, self._chance.choice(others)
        real = WorkerId(worker.name)
        name = chance.choice((real, real, WorkerId(f"{worker.job}.{NUMBER + chance.randrange(100)}")))
        generation = chance.choice((1, 2, 3, GENERATION))
        self._named.add(name)
        return WorkerStatus(
            job=worker.job, worker=name, pid=PID, address="nowhere", phase=chance.choice(_PHASES), generation=generation,
            order=generation, floor=1, applied=STEP, sequence=10**9, saved=STEP, saved_generation=generation,
            note=REASON,
        )  # fmt: skip

    def _arrives(self, lie: ToControllerFromAgent, status: WorkerStatus) -> None:
        """Deliver a forgery to the controller. Raises Violation if a job's record changes by it, or if it is not counted."""
        controller, server = self._world.controller, self._agent.server.server
        if controller.state is not State.RUNNING or controller.trouble:
            return
        cluster = controller.machine.cluster
        before, counted = _records(cluster.jobs), forged(self._world, server)
        session, job = cluster.servers.sessions.get(server), cluster.jobs.get(status.job)
        entry = job.known_worker(status.worker) if job is not None else None
        speaks = session is not None and session.alive and session.agent == self._agent.identity
        is_others = entry is not None and entry.gpu.server != server
        self._world.forgers.add(server)
        controller.from_agent(server, lie, self._agent.identity)
        changed = [name for name, record in _records(cluster.jobs).items() if before.get(name) != record]
        text = f"{server} says of {status.worker}: {type(lie).__name__}"
        if changed:
            raise Violation(NOTHING, f"{text}; it changes {', '.join(changed)}")
        # then the status may be true of a lost generation, and no forgery
        lost = job is not None and job.record.lost_generations != (0, 0)
        if speaks and is_others and not lost and forged(self._world, server) == counted:
            raise Violation("a forged report is counted", text)

    def hello(self, hello: AgentHello, first: bool) -> AgentHello:
        """Return a hello of the agent with forgeries. `first`: to this controller."""
        if first:  # honest: the made-up workers were ordered to stop, and reported as ended
            kept = tuple(ended for ended in hello.exited if ended.worker not in self._named)
            hello = msgspec.structs.replace(hello, exited=kept)
        status = self._made_up()
        if self._over or status is None:
            return hello
        self._world.forgers.add(self._agent.server.server)
        uid = "" if first else self._uid(status.job)
        local = LocalWorker(worker=status.worker, job=status.job, uid=uid, gpu=0)
        return msgspec.structs.replace(
            hello,
            workers=(*hello.workers, status),
            exited=(*hello.exited, _exit(status, uid)),
            processes=(*hello.processes, local),
            newest_event=hello.newest_event if first else 10**9,
        )


def forged(world: Testbed, server: ServerId) -> int:
    """Number of reports of a server that the controller has rejected as forged."""
    found = world.controller.machine.cluster.servers.forged.get(server)
    return found.count if found is not None else 0


def _records(jobs: Mapping[JobId, Job]) -> dict[JobId, object]:
    """Return the parts of jobs that a forgery could change; without times, which move for all jobs while a controller is away."""
    return {
        name: (
            *(job.record.phase, job.record.generation, job.record.committed, job.record.target, job.record.overtaken),
            *((entry.worker, entry.state, entry.pid, entry.stopping) for entry in job.workers),
        )
        for name, job in jobs.items()
    }


def _exit(status: WorkerStatus, uid: str) -> WorkerExit:
    return WorkerExit(
        job=status.job, worker=status.worker, exit_code=0, reason=REASON, phase=status.phase, status=status, uid=uid
    )


_PHASES = (WorkerPhase.TRAINING, WorkerPhase.FINISHED, WorkerPhase.BROKEN, WorkerPhase.LEFT)
_LIES: tuple[Callable[[WorkerStatus, str], ToControllerFromAgent], ...] = (
    _exit,
    lambda status, uid: WorkerReport(status=status, uid=uid),
    lambda status, uid: AgentHeartbeat(server=ServerId("any"), starting=(status.worker,)),
    lambda status, uid: AgentHeartbeat(server=ServerId("any"), reports=(WorkerReport(status=status, uid=uid),)),
)
