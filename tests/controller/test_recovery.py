"""Whole lives of jobs, with workers that follow the membership rules: every job ends as it should, whatever crashes."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from elasticd.controller.events import AgentMessage, Event
from elasticd.protocol.messages import (
    Acknowledged,
    AgentHeartbeat,
    Cancel,
    EventKind,
    GetJob,
    Order,
    Scale,
    Submit,
    Submitted,
)
from elasticd.protocol.model import GpuRange, JobId, JobPhase, ServerId, Steady, WorkerId, WorkerPhase
from elasticd.scheduler.measuring import Measuring

from .world import World, job_spec

STILL = (WorkerPhase.READY, WorkerPhase.BROKEN)


class Crash(Exception):
    """The controller has just died."""


class LivingWorld(World):
    """Workers that prepare, commit, break and leave as the membership state machine does; a controller that may crash."""

    def __init__(self, servers: dict[str, int], crash_at: int | None = None, recorded: bool = True) -> None:
        self.records = 0
        self.crash_at = crash_at
        self.recorded = recorded  # True: the crash comes after the record; False: before it
        self.rosters: dict[tuple[JobId, int], tuple[WorkerId, ...]] = {}
        super().__init__(servers)

    # -- crashes

    def before_record(self) -> None:
        self.records += 1
        if self.records == self.crash_at and not self.recorded:
            raise Crash

    def after_record(self) -> None:
        if self.records == self.crash_at and self.recorded:
            raise Crash

    def feed(self, event: Event) -> Any:
        try:
            return super().feed(event)
        except Crash:
            self.restart()
            return []

    def ask(self, request: Any, request_id: str = "", turn: bool = True, **others: Any) -> Any:
        """Send a request as a client does, until it is answered."""
        name = request_id or f"r{next(self.ids)}"
        for _ in range(3):
            answer = super().ask(request, name, turn, **others)
            if answer is not None:
                return answer
        if isinstance(request, Scale) and self.machine.cluster.servers.awaited:
            return None  # no answer before its servers are back; the client gives up
        raise AssertionError(f"{request} was never answered")

    def deliver(self, server: ServerId, message: Any, identity: str = "") -> None:
        super().deliver(server, message, identity)
        agent = self.agents[server]
        if isinstance(message, Order):
            self.rosters[message.job, message.generation] = message.roster.workers
        elif isinstance(message, Acknowledged) and message.sent > agent.received and agent.connected:
            agent.missed = True

    def heal_sessions(self) -> None:
        for name, agent in self.agents.items():
            self.feed(AgentMessage(name, AgentHeartbeat(server=name)))
            if not agent.connected or getattr(agent, "missed", False):
                agent.missed = False
                self.hello(name)
        self.turn()

    # -- workers

    def phase(self, worker: str) -> WorkerPhase | None:
        status = self.find(worker)[1].status
        return status.phase if status is not None else None

    def processes(self, job: str) -> dict[str, Any]:
        return {w: p for agent in self.agents.values() for w, p in agent.running.items() if p.job == job}

    def say(self, worker: str, phase: WorkerPhase, generation: int, applied: int | None) -> None:
        if worker in self.processes(worker.rpartition(".")[0]):
            self.report(worker, phase, generation, applied)

    def live(self, worker: str) -> None:
        """Let one worker take its next step."""
        process = self.processes(worker.rpartition(".")[0]).get(worker)
        if process is None:
            return
        status = process.status
        if process.stopping:
            self.exit(worker, -15)
        elif status is None:
            self.report(worker, WorkerPhase.STARTING)
        elif status.phase is WorkerPhase.STARTING:
            self.report(worker, WorkerPhase.READY)
        elif status.phase in (WorkerPhase.LEFT, WorkerPhase.FINISHED):
            self.exit(worker, 0)
        elif status.phase in STILL:
            if process.order is not None and process.order.generation > status.order:
                self.report(worker, status.phase, status.generation, status.applied)
        elif status.phase is WorkerPhase.TRAINING:
            order = process.order
            told = order is not None and status.generation in order.broken
            alive = set(self.processes(process.job))
            members = set(self.rosters[process.job, status.generation])
            broken = any(
                w not in alive or self.processes(process.job)[w].status.generation < status.generation
                or self.phase(w) is WorkerPhase.BROKEN
                for w in members
            )  # fmt: skip
            if told or broken:
                self.report(worker, WorkerPhase.BROKEN, status.generation, status.applied)
            else:
                self.report(worker, WorkerPhase.TRAINING, status.generation, (status.applied or 0) + 1)

    def try_commit(self, job: str) -> None:
        """The leader that knows the newest order commits it, if all that it needs are present."""
        processes = self.processes(job)
        orders = [p.order for p in processes.values() if p.order is not None]
        if not orders:
            return
        order = max(orders, key=lambda order: order.generation)
        members = order.roster.workers
        if any(w not in processes or processes[w].status is None for w in members):
            return
        if any(processes[w].order is None or processes[w].order.generation != order.generation for w in members):
            return
        statuses = {w: processes[w].status for w in members}
        leader = statuses[order.roster.leader]
        if leader.generation >= order.generation or any(
            s.phase in (WorkerPhase.STARTING, WorkerPhase.LEFT, WorkerPhase.FINISHED) for s in statuses.values()
        ):
            return
        if leader.phase is WorkerPhase.TRAINING:
            base = leader.generation
            group = self.rosters[JobId(job), base]
            if any(w not in processes or processes[w].status.generation != base for w in group):
                return
            if any(processes[w].status.phase is not WorkerPhase.TRAINING for w in group):
                return
            if any(s.phase is WorkerPhase.TRAINING and s.generation != base for s in statuses.values()):
                return
        else:
            if any(s.phase not in STILL for s in statuses.values()):
                return
            group = ()
        applied = max((s.applied for s in statuses.values() if s.applied is not None), default=0)
        for worker in members:
            self.say(worker, WorkerPhase.TRAINING, order.generation, applied)
        for worker in group:
            if worker not in members:
                self.say(worker, WorkerPhase.LEFT, leader.generation, applied)

    def go_on(self, rounds: int = 40) -> None:
        """No more losses: all processes do what is due, until nothing changes."""
        for _ in range(rounds):
            self.heal_sessions()
            for job in list(self.machine.cluster.jobs):
                for worker in list(self.processes(job)):
                    self.live(worker)
                self.try_commit(job)
            self.pass_time(1.0)

    def check(self) -> None:
        for job in self.machine.cluster.jobs.values():
            if job.final:
                continue
            newest = job.newest
            if not job.record.target:
                assert job.record.phase is JobPhase.PENDING, self.story()
                assert job.waiting_reason, f"nobody knows why {job.id} waits\n{self.story()}"
                continue
            assert newest is not None, f"{job.id} was never ordered\n{self.story()}"
            places = {member.gpu for member in newest.roster.members}
            assert places == set(job.record.target), f"{job.id} never got there\n{self.story()}"
            assert job.record.committed == newest.generation, f"{job.id} never committed\n{self.story()}"

    def finish_all(self) -> None:
        for _ in range(20):
            for job in [job for job in self.machine.cluster.jobs.values() if not job.final]:
                for worker in self.roster(job.id):
                    if worker in self.processes(job.id) and self.phase(worker) is WorkerPhase.TRAINING:
                        self.say(worker, WorkerPhase.FINISHED, job.record.committed, 999)
            self.go_on(4)
        assert all(job.final for job in self.machine.cluster.jobs.values()), self.story()
        left = [worker for agent in self.agents.values() for worker in agent.running]
        assert left == [], f"{left} still run\n{self.story()}"


def scenario(world: LivingWorld) -> None:
    """A job is submitted, grows, shrinks, loses a worker, competes with another one, and both end."""
    answer = world.ask(Submit(spec=job_spec(low=1, high=2)), "submit-1")
    assert isinstance(answer, Submitted)
    world.go_on(6)
    world.ask(Scale(job=answer.job, share=3), "scale-1")
    world.go_on(6)
    world.ask(Scale(job=answer.job, share=2), "scale-2")
    world.go_on(4)
    victim = world.roster(answer.job)[-1]
    if victim in world.processes(answer.job):
        world.exit(victim, -9)
    other = world.ask(Submit(spec=job_spec("other", 1, 4)), "submit-2")
    world.go_on(8)
    world.ask(Cancel(job=other.job), "cancel-1")
    world.go_on(6)
    world.check()
    job = world.job(answer.job)
    assert (job.share_gpus, job.record.restarts) == (2, 0), world.story()
    assert world.job(other.job).record.phase is JobPhase.CANCELLED
    world.finish_all()
    assert world.job(answer.job).record.phase is JobPhase.FINISHED
    assert len(world.machine.cluster.jobs) == 2


def records_of_the_scenario() -> int:
    world = LivingWorld({"s1": 2, "s2": 2})
    scenario(world)
    return world.records


@pytest.mark.parametrize("recorded", [True, False])
def test_a_crash_at_any_record_changes_nothing_for_the_jobs(recorded):
    total = records_of_the_scenario()
    assert total > 20
    for crash_at in range(1, total + 1):
        world = LivingWorld({"s1": 2, "s2": 2}, crash_at, recorded)
        try:
            scenario(world)
        except AssertionError as error:
            raise AssertionError(f"crash at record {crash_at} of {total}: {error}") from error


def test_nothing_is_decided_after_a_restart_until_the_servers_are_back_or_given_up():
    world = LivingWorld({"s1": 1, "s2": 1})
    job = world.submit(job_spec(low=1, high=2))
    world.go_on(4)
    roster = world.roster(job.id)
    world.restart(hello=False)
    world.sent.clear()
    world.turn(after_s=5)
    assert world.sent == []
    assert "waits for s1, s2" in world.ask(GetJob(job=job.id)).job.reason
    world.hello("s1")
    world.turn(after_s=6)
    assert world.roster(job.id)  # s2 was given up, s1 continues alone
    lost = [m.worker for m in world.job(job.id).newest.roster.members if m.gpu.server == "s2"]
    assert lost == []
    assert set(world.roster(job.id)) < set(roster)


def test_a_restarted_controller_goes_on_where_the_last_one_was_without_touching_the_job():
    world = LivingWorld({"s1": 2})
    job = world.submit(job_spec(low=2, high=2))
    world.go_on(4)
    generation, roster = job.record.generation, world.roster(job.id)
    world.restart()
    world.go_on(4)
    again = world.job(job.id)
    assert (again.record.generation, world.roster(job.id)) == (generation, roster)
    assert again.record.phase is JobPhase.RUNNING
    assert EventKind.LOST not in world.kinds(job.id)


def disturb(world: LivingWorld, rng: random.Random) -> None:
    """One random event of a cluster."""
    jobs = [job for job in world.machine.cluster.jobs.values() if not job.final]
    workers = [w for agent in world.agents.values() for w in agent.running]
    kind = rng.choice(["submit", "scale", "scale", "cancel", "live", "live", "live", "live", "commit", "commit", "commit",
                       "kill", "away", "back", "restart", "time", "lose"])  # fmt: skip
    if kind == "submit" and len(jobs) < 3:
        low = rng.randint(1, 2)
        world.ask(Submit(spec=job_spec(low=low, high=rng.randint(low, 4))))
    elif kind == "scale" and jobs:
        world.ask(Scale(job=rng.choice(jobs).id, share=rng.choice([None, 1, 2, 3])))
    elif kind == "cancel" and jobs and rng.random() < 0.2:
        world.ask(Cancel(job=rng.choice(jobs).id))
    elif kind == "live" and workers:
        world.live(rng.choice(workers))
    elif kind == "commit" and jobs:
        world.try_commit(rng.choice(jobs).id)
    elif kind == "kill" and workers and rng.random() < 0.4:
        world.exit(rng.choice(workers), rng.choice([-9, -9, None]))
    elif kind == "away" and rng.random() < 0.2:
        world.agents[ServerId(rng.choice(sorted(world.agents)))].connected = False
    elif kind == "back":
        world.heal_sessions()
    elif kind == "restart" and rng.random() < 0.2:
        world.restart()
    elif kind == "time":
        world.turn(after_s=rng.choice([0.1, 1.0, 4.0]))
    elif kind == "lose":  # the next message to an agent is lost
        world.lose_next = True


class HostileWorld(LivingWorld):
    """Messages to agents may be lost."""

    lose_next = False

    def deliver(self, server: ServerId, message: Any, identity: str = "") -> None:
        if self.lose_next and not isinstance(message, Acknowledged):
            self.lose_next = False
            if isinstance(message, Order):
                self.rosters[message.job, message.generation] = message.roster.workers
            self.sent.append((server, message))
            return
        super().deliver(server, message, identity)


class MeasuredWorld(HostileWorld):
    """Workers report random speeds, constant for each share, and different for each job."""

    def ask(self, request: Any, request_id: str = "", turn: bool = True, **others: Any) -> Any:
        if isinstance(request, Submit):
            spec = replace(request.spec, model=f"model {next(self.ids)}", gpus=GpuRange(min=1, max=4))
            request = Submit(spec=spec)
        return super().ask(request, request_id, turn, **others)

    def report(self, worker: str, phase: WorkerPhase, generation: int = 0, *arguments: Any, **others: Any) -> None:
        if phase is WorkerPhase.TRAINING:
            job = JobId(worker.rpartition(".")[0])
            share = len(self.rosters[job, generation])
            step_s = random.Random(f"{self.seed} {job} {share}").uniform(0.01, 0.1)
            others["steady"] = Steady(generation=generation, step_s=step_s, steps=32)
        super().report(worker, phase, generation, *arguments, **others)


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.integers(20, 120))
@example(seed=1, length=38)  # two jobs must change places while the GPUs of an earlier decision are still occupied
def test_whatever_happens_jobs_that_are_measured_come_to_rest_with_their_gpus_and_end(seed, length):
    rng = random.Random(seed)
    world = MeasuredWorld({"s1": 3, "s2": 2})
    world.seed = seed
    world.settings |= {"max_restarts": 1000, "measuring": Measuring(longest_s=5.0)}
    world.restart()
    for _ in range(length):
        disturb(world, rng)
    world.lose_next = False
    for agent in world.agents.values():
        agent.missed = True
    world.heal_sessions()
    for job in [job for job in world.machine.cluster.jobs.values() if not job.final]:
        world.ask(Scale(job=job.id, share=None))
    world.go_on(80)
    world.check()
    assert all(job.profiling is None for job in world.machine.cluster.jobs.values()), world.story()
    world.finish_all()


def test_jobs_that_are_left_to_change_places_stay_where_they_are_and_train_on():
    """As when the only way out of an exchange is lost: each job is placed where the other is, and neither can leave."""
    world = LivingWorld({"s1": 1, "s2": 1})
    one, other = (world.submit(job_spec(low=1, high=1)) for _ in range(2))
    world.go_on(6)
    world.check()
    places, workers = [job.record.target for job in (one, other)], [world.roster(job.id) for job in (one, other)]
    assert len({*places[0], *places[1]}) == 2
    one.update(target=places[1])
    other.update(target=places[0])
    world.machine.cluster.jobs.mark_all_dirty()
    world.go_on(6)
    world.check()
    assert [job.record.target for job in (one, other)] == places
    assert [world.roster(job.id) for job in (one, other)] == workers
    world.finish_all()


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.integers(20, 120))
def test_whatever_happens_every_job_gets_its_gpus_and_ends(seed, length):
    rng = random.Random(seed)
    world = HostileWorld({"s1": 2, "s2": 2})
    world.settings["max_restarts"] = 1000
    world.restart()
    for _ in range(length):
        disturb(world, rng)
    world.lose_next = False
    for agent in world.agents.values():
        agent.missed = True
    world.go_on(60)
    world.check()
    world.finish_all()


def test_an_event_of_a_kind_that_only_a_later_version_knows_stays_in_the_history() -> None:
    world = World()
    world.submit()
    key = min(key for key in world.store if key.startswith("/events/"))
    event = msgspec.msgpack.decode(world.store[key])
    world.store[key] = msgspec.msgpack.encode({**event, "kind": "teleported"})
    world.restart()
    first = world.machine.cluster.history.events[0]
    assert (first.kind, first.text) == (EventKind.OTHER, event["text"])
