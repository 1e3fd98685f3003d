"""The membership machine: worked stories, and a stateful search over orders, crashes and delays."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from elasticd.protocol.errors import InvalidTransition
from elasticd.protocol.messages import Commit, Order, Prepare, Prepared, Ready
from elasticd.protocol.model import GpuAddress, Member, Roster, ServerId, WorkerId, WorkerPhase
from elasticd.worker import membership as m

_spec = importlib.util.spec_from_file_location("membership_world", Path(__file__).with_name("membership_world.py"))
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _module
_spec.loader.exec_module(_module)
World, JOB = _module.World, _module.JOB


def worker(number: int) -> WorkerId:
    return WorkerId(f"{JOB}.{number}")


def started(size: int, seed: int = 0) -> World:
    world = World()
    world.order([worker(i) for i in range(size)], worker(0))
    world.settle(random.Random(seed))
    return world


def test_a_new_job_begins_with_its_leader_as_the_only_holder() -> None:
    world = started(3)
    first = [line for line in world.story if "enters 1" in line]
    assert len(first) == 3
    assert all(f"holders ('{worker(0)}',)" in line for line in first)


@pytest.mark.parametrize("seed", range(20))
def test_growing_and_shrinking_keep_the_first_worker_stepping(seed: int) -> None:
    world = started(1, seed)
    world.order([worker(0), worker(1), worker(2)], worker(0))
    world.settle(random.Random(seed))
    world.order([worker(0)], worker(0))
    world.settle(random.Random(seed + 1))
    world.run(200, random.Random(seed))
    assert world.nodes[worker(1)].thread == world.nodes[worker(2)].thread == "gone"
    assert world.nodes[worker(1)].machine.phase is WorkerPhase.LEFT


def test_a_worker_that_has_left_has_nothing_more_to_report() -> None:
    """Its process ends through the same lines as one that has finished, which waits until its last report has come."""
    world = started(2)
    world.order([worker(0)], worker(0))
    world.settle(random.Random(0))
    leaver = world.nodes[worker(1)].machine
    assert leaver.over
    assert leaver.handle(0.0, m.LoopEnded()) == []
    assert leaver.phase is WorkerPhase.LEFT
    assert not world.nodes[worker(0)].machine.over


@pytest.mark.parametrize("seed", range(20))
def test_a_leader_can_leave_and_another_one_takes_over(seed: int) -> None:
    world = started(3, seed)
    world.order([worker(1), worker(2)], worker(1))
    world.settle(random.Random(seed))
    world.run(100, random.Random(seed))
    assert world.nodes[worker(0)].thread == "gone"


@pytest.mark.parametrize("seed", range(30))
def test_a_burst_of_orders_ends_in_the_last_one(seed: int) -> None:
    rng = random.Random(seed)
    world = started(2, seed)
    for size in (3, 1, 4, 2, 3):
        world.order([worker(i) for i in range(size)], worker(0))
        world.run(rng.randrange(12), rng)
        if any(not node.usable for node in world.nodes.values()):
            break  # somebody left in time: a controller starts new workers from here on
    world.order([name for name, node in world.nodes.items() if node.usable], worker(0))
    world.settle(rng)


@pytest.mark.parametrize("seed", range(40))
def test_survivors_go_on_from_their_own_state_when_any_member_dies(seed: int) -> None:
    rng = random.Random(seed)
    world = started(3, seed)
    world.run(rng.randrange(40), rng)
    victim = worker(rng.randrange(3))
    before = max(n.state for n in world.nodes.values() if n.state is not None and n.name != victim)
    world.crash(victim)
    world.settle(rng)
    assert min(n.state for n in world.nodes.values() if n.alive) >= before, "a survivor went back"


def test_an_event_that_only_a_bug_can_send_changes_nothing() -> None:
    machine = m.Membership(JOB, worker(0))
    machine.handle(0.0, m.Arrived())
    with pytest.raises(InvalidTransition):
        machine.handle(0.0, m.Arrived())
    with pytest.raises(InvalidTransition):
        machine.handle(0.0, m.CollectiveFailed("no collective yet"))
    assert machine.phase is WorkerPhase.READY


def test_stale_orders_and_messages_are_dropped() -> None:
    world = started(2)
    node = world.nodes[worker(1)]
    generation = node.machine.generation
    world.order([worker(0)], worker(0))
    old = world.rosters[generation]
    world.run(50, random.Random(1))
    for target in world.nodes.values():
        if target.thread != "gone":
            assert world.drive(target, m.OrderReceived(Order(job=JOB, roster=old, leader_address=worker(0)))) == []


def test_a_follower_that_hears_of_an_order_before_its_leader_need_not_say_ready_twice() -> None:
    world = started(2)
    world.run(30, random.Random(5))
    world.order([worker(0), worker(1)], worker(0))
    follower = world.nodes[worker(1)]
    world.deliver(("controller", follower.name))
    assert isinstance(world.channels[follower.name, worker(0)][-1], Ready)
    while world.channels[follower.name, worker(0)]:
        world.deliver((follower.name, worker(0)))
    world.deliver(("controller", worker(0)))
    assert isinstance(world.channels[worker(0), follower.name][-1], Prepare)


def test_a_newcomer_asks_the_leader_of_an_overtaken_order_whether_it_had_been_committed() -> None:
    """Its leader may have, just before; then those who train wait for the newcomer in their next step."""
    me, old, new = worker(1), worker(0), worker(2)

    def order(generation: int, workers: list[WorkerId], leader: WorkerId) -> m.OrderReceived:
        members = tuple(Member(worker=w, gpu=GpuAddress(server=ServerId("s"), index=i)) for i, w in enumerate(workers))
        roster = Roster(generation=generation, members=members, leader=leader)
        return m.OrderReceived(Order(job=JOB, roster=roster, leader_address=f"address of {leader}"))

    newcomer = m.Membership(JOB, me)
    newcomer.handle(0.0, m.Arrived())
    newcomer.handle(0.0, order(2, [old, me], old))
    newcomer.handle(0.0, m.PeerSaid(Prepare(job=JOB, generation=2, attempt=1, base=1, holders=(old,))))
    (prepared,) = newcomer.handle(0.0, m.GroupBuilt(2, 1))
    assert isinstance(prepared, m.SendLeader)
    assert prepared in newcomer.handle(0.1, order(3, [new, me], new))
    deadline = newcomer.next_deadline()
    assert deadline is not None
    assert prepared in newcomer.handle(deadline, m.TimePassed())
    assert prepared in newcomer.handle(deadline, order(4, [new], new)), "it is not in the newest roster"
    actions = newcomer.handle(deadline, m.PeerSaid(Commit(job=JOB, generation=2, attempt=1)))
    assert any(isinstance(action, m.Switch) and action.roster.generation == 2 for action in actions)


def order(generation: int, *numbers: int, broken: tuple[int, ...] = ()) -> Order:
    """Worker 0 leads."""
    members = tuple(
        Member(worker=worker(number), gpu=GpuAddress(server=ServerId("s"), index=number)) for number in numbers
    )
    roster = Roster(generation=generation, members=members, leader=worker(0))
    return Order(job=JOB, roster=roster, leader_address=worker(0), broken=broken)


def ready(number: int, generation: int, base: int, applied: int | None) -> m.PeerSaid:
    said = Ready(job=JOB, generation=generation, worker=worker(number), base=base, applied=applied)
    return m.PeerSaid(said)


def prepared(number: int, generation: int, base: int, applied: int | None) -> m.PeerSaid:
    said = Prepared(job=JOB, generation=generation, attempt=1, worker=worker(number), base=base, applied=applied)
    return m.PeerSaid(said)


def leader_in_generation_1() -> m.Membership:
    """Worker 0, which trains with worker 1 and leads."""
    machine = m.Membership(JOB, worker(0))
    for event in (
        m.Arrived(),
        m.OrderReceived(order(1, 0, 1)),
        ready(1, 1, 0, None),
        m.GroupBuilt(1, 1),
        prepared(1, 1, 0, None),
        m.StepApplied(-1),
    ):
        machine.handle(0.0, event)
    assert machine.generation == 1
    return machine


def follower_in_generation_1() -> m.Membership:
    """Worker 1, which trains with worker 0."""
    machine = m.Membership(JOB, worker(1))
    for event in (
        m.Arrived(),
        m.OrderReceived(order(1, 0, 1)),
        m.PeerSaid(Prepare(job=JOB, generation=1, attempt=1, base=0, holders=(worker(0), worker(1)))),
        m.GroupBuilt(1, 1),
        m.PeerSaid(Commit(job=JOB, generation=1, attempt=1)),
        m.StepApplied(-1),
    ):
        machine.handle(0.0, event)
    assert machine.generation == 1
    return machine


@pytest.mark.parametrize("late", [ready(1, 2, 0, -1), prepared(1, 2, 0, -1)])
def test_a_leader_whose_number_is_in_flight_keeps_what_it_has_prepared_whoever_stumbles(late: m.PeerSaid) -> None:
    leader = leader_in_generation_1()
    for event in (m.OrderReceived(order(2, 0, 1)), ready(1, 2, 1, -1), m.GroupBuilt(2, 1), prepared(1, 2, 1, -1)):
        leader.handle(0.0, event)
    assert leader.handle(0.0, m.StepStarted(last=False)) == [m.Propose(2)]
    assert leader.handle(0.0, late) == [], "worker 1 has missed the step, which may have decided all the same"
    leader.handle(0.0, m.WordRead(2))
    leader.handle(0.0, m.StepApplied(0))
    actions = leader.handle(0.0, m.BoundaryReached())
    assert [action.attempt for action in actions if isinstance(action, m.Switch)] == [1]


def test_a_leader_prepares_anew_when_its_number_was_in_flight_in_a_step_that_failed() -> None:
    leader = leader_in_generation_1()
    for event in (m.OrderReceived(order(2, 0, 1)), ready(1, 2, 1, -1), m.GroupBuilt(2, 1), prepared(1, 2, 1, -1)):
        leader.handle(0.0, event)
    leader.handle(0.0, m.StepStarted(last=False))
    leader.handle(0.0, ready(1, 2, 0, -1))
    actions = leader.handle(0.0, m.CollectiveFailed("peer lost"))
    assert [action.attempt for action in actions if isinstance(action, m.BuildGroup)] == [2]


def test_a_member_that_missed_the_step_of_a_decision_does_not_follow_it_as_a_holder() -> None:
    follower = follower_in_generation_1()
    follower.handle(0.0, m.OrderReceived(order(2, 0, 1)))
    holders = (worker(0), worker(1))
    follower.handle(0.0, m.PeerSaid(Prepare(job=JOB, generation=2, attempt=1, base=1, holders=holders)))
    follower.handle(0.0, m.GroupBuilt(2, 1))
    follower.handle(0.0, m.StepStarted(last=False))
    follower.handle(0.0, m.CollectiveFailed("peer lost"))
    assert follower.handle(0.0, m.PeerSaid(Commit(job=JOB, generation=2, attempt=1))) == []
    assert follower.phase is WorkerPhase.BROKEN


def test_a_follower_that_has_gone_on_since_it_was_ready_is_a_holder_of_the_next_attempt() -> None:
    leader = leader_in_generation_1()
    leader.handle(0.0, m.CollectiveFailed("peer lost"))
    leader.handle(0.0, m.OrderReceived(order(2, 0, 1, broken=(1,))))
    leader.handle(0.0, ready(1, 2, 0, None))
    leader.handle(0.0, m.GroupBuilt(2, 1))
    actions = leader.handle(0.0, prepared(1, 2, 0, 4))
    prepares = [a.message for a in actions if isinstance(a, m.SendFollower) and isinstance(a.message, Prepare)]
    assert [(message.attempt, message.holders) for message in prepares] == [(2, (worker(1),))]


class Churn(RuleBasedStateMachine):
    """Orders, crashes and delays in any mixture; in the end the newest order is always reached."""

    @initialize(size=st.integers(1, 4), seed=st.integers(0, 2**16))
    def begin(self, size: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = World()
        self.world.order([worker(i) for i in range(size)], worker(0))

    @rule(steps=st.integers(1, 60))
    def let_run(self, steps: int) -> None:
        self.world.run(steps, self.rng)

    @rule(grow=st.integers(0, 3), keep=st.integers(1, 4), change_leader=st.booleans())
    def resize(self, grow: int, keep: int, change_leader: bool) -> None:
        world = self.world
        usable = [w for w in world.rosters[world.newest].workers if world.nodes[w].usable]
        holders = [w for w in usable if world.nodes[w].machine.applied is not None]
        kept = (holders + [w for w in usable if w not in holders])[:keep]
        if not kept or (not holders and world.committed()):
            return
        leaders = [w for w in kept if w in holders] or kept
        leader = leaders[-1] if change_leader else leaders[0]
        new = [worker(len(world.nodes) + i) for i in range(grow)]
        world.order([*kept, *new], leader)

    @precondition(lambda self: sum(n.alive for n in self.world.nodes.values()) > 1)
    @rule(which=st.integers(0, 10))
    def crash(self, which: int) -> None:
        alive = [n.name for n in self.world.nodes.values() if n.usable]
        if alive:
            self.world.crash(alive[which % len(alive)])

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle(self.rng)


Churn.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(
        Phase.reuse,
        Phase.generate,
    ),  # a failure prints its story; shrinking a schedule takes minutes and says less
)
TestChurn = Churn.TestCase
