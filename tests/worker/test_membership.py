"""Rules of the membership state machine, one by one. `make world` tests whole histories."""

from __future__ import annotations

import pytest

from elasticd.protocol.errors import InvalidTransition
from elasticd.protocol.messages import Commit, Order, Prepare, Prepared, Ready
from elasticd.protocol.model import GpuAddress, JobId, Member, Roster, ServerId, WorkerId, WorkerPhase
from elasticd.worker.membership import machine as m

JOB = JobId("job-1")


def worker(number: int) -> WorkerId:
    return WorkerId(f"{JOB}.{number}")


def order(generation: int, *numbers: int, broken: tuple[int, ...] = ()) -> Order:
    """An order led by worker 0."""
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


def test_a_new_job_begins_with_its_leader_as_the_only_holder() -> None:
    leader = m.Membership(JOB, worker(0))
    leader.handle(0.0, m.Arrived())
    leader.handle(0.0, m.OrderReceived(order(1, 0, 1)))
    leader.handle(0.0, ready(1, 1, 0, None))
    leader.handle(0.0, m.GroupBuilt(1, 1))
    actions = leader.handle(0.0, prepared(1, 1, 0, None))
    assert [action.holders for action in actions if isinstance(action, m.Switch)] == [(worker(0),)]


def test_a_worker_that_has_left_has_nothing_more_to_report() -> None:
    """Its process then ends, as after a finished training, once its last report is acknowledged."""
    leaver = follower_in_generation_1()
    leaver.handle(0.0, m.OrderReceived(order(2, 0)))
    leaver.handle(0.0, m.StepStarted(last=False))
    leaver.handle(0.0, m.WordRead(2))
    leaver.handle(0.0, m.StepApplied(0))
    assert m.Leave() in leaver.handle(0.0, m.BoundaryReached())
    assert leaver.over
    assert leaver.handle(0.0, m.LoopEnded()) == []
    assert leaver.phase is WorkerPhase.LEFT


def test_an_order_that_is_older_than_another_is_dropped() -> None:
    for machine in (leader_in_generation_1(), follower_in_generation_1()):
        machine.handle(0.0, m.OrderReceived(order(3, 0, 1)))
        assert machine.handle(0.0, m.OrderReceived(order(2, 0, 1, 2))) == []


def test_a_follower_that_hears_of_an_order_before_its_leader_need_not_say_ready_twice() -> None:
    leader = leader_in_generation_1()
    assert leader.handle(0.0, ready(1, 2, 1, -1)) == []
    actions = leader.handle(0.0, m.OrderReceived(order(2, 0, 1)))
    assert any(isinstance(action, m.SendFollower) and isinstance(action.message, Prepare) for action in actions)


def test_an_event_that_only_a_bug_can_send_changes_nothing() -> None:
    machine = m.Membership(JOB, worker(0))
    machine.handle(0.0, m.Arrived())
    with pytest.raises(InvalidTransition):
        machine.handle(0.0, m.Arrived())
    with pytest.raises(InvalidTransition):
        machine.handle(0.0, m.CollectiveFailed("no collective yet"))
    assert machine.phase is WorkerPhase.READY


def test_a_newcomer_asks_the_leader_of_an_overtaken_order_whether_it_had_been_committed() -> None:
    """Its leader may have committed just before; then the others wait for the newcomer in their next step."""
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
    assert prepared in newcomer.handle(deadline, m.WorkerTick())
    assert prepared in newcomer.handle(deadline, order(4, [new], new)), "it is not in the newest roster"
    actions = newcomer.handle(deadline, m.PeerSaid(Commit(job=JOB, generation=2, attempt=1)))
    assert any(isinstance(action, m.Switch) and action.roster.generation == 2 for action in actions)


@pytest.mark.parametrize("late", [ready(1, 2, 0, -1), prepared(1, 2, 0, -1)])
def test_a_leader_whose_number_is_in_flight_keeps_what_it_has_prepared_whoever_stumbles(late: m.PeerSaid) -> None:
    leader = leader_in_generation_1()
    for event in (m.OrderReceived(order(2, 0, 1)), ready(1, 2, 1, -1), m.GroupBuilt(2, 1), prepared(1, 2, 1, -1)):
        leader.handle(0.0, event)
    assert leader.handle(0.0, m.StepStarted(last=False)) == [m.Propose(2, (worker(0), worker(1)))]
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


def test_a_leader_and_a_member_that_do_not_reach_each_other_both_say_so() -> None:
    members = tuple(Member(worker=worker(i), gpu=GpuAddress(server=ServerId(f"s{i}"), index=0)) for i in range(2))
    order = Order(job=JOB, roster=Roster(generation=1, members=members, leader=worker(0)), leader_address="tcp://s0:1")
    leads, follows = m.Membership(JOB, worker(0)), m.Membership(JOB, worker(1))
    for machine in (leads, follows):
        machine.handle(0.0, m.OrderReceived(order))
    assert leads.unheard == (worker(1),)
    assert follows.unheard == (), "it is busy, and has not asked for anybody"
    leads.handle(1.0, m.Arrived())
    (said,) = [action.message for action in follows.handle(1.0, m.Arrived()) if isinstance(action, m.SendLeader)]
    assert follows.unheard == (worker(0),)
    (prepare,) = [
        action.message for action in leads.handle(2.0, m.PeerSaid(said)) if isinstance(action, m.SendFollower)
    ]
    assert leads.unheard == (worker(1),), "it has not said yet that it is prepared"
    follows.handle(2.0, m.PeerSaid(prepare))
    assert follows.unheard == ()


def test_a_prepare_of_an_earlier_attempt_that_comes_late_does_not_take_the_place_of_the_newer_one() -> None:
    follower = follower_in_generation_1()
    follower.handle(0.0, m.OrderReceived(order(2, 0, 1)))

    def prepare(attempt: int) -> m.PeerSaid:
        return m.PeerSaid(Prepare(job=JOB, generation=2, attempt=attempt, base=1, holders=(worker(0), worker(1))))

    (build,) = follower.handle(0.0, prepare(2))
    assert isinstance(build, m.BuildGroup)
    assert build.attempt == 2
    assert follower.handle(0.1, prepare(1)) == []
    assert follower.handle(0.1, m.GroupBuilt(2, 1)) == [], "so does a communicator of the earlier one"
    assert follower.handle(0.1, m.GroupFailed(2, 1, "reset by peer")) == []
    (said,) = follower.handle(0.2, m.GroupBuilt(2, 2))
    assert isinstance(said, m.SendLeader)
    assert isinstance(said.message, Prepared)
    assert (said.message.attempt, said.message.error) == (2, "")
    assert follower.handle(0.3, prepare(1)) == [said], "what stands is told again"


@pytest.mark.parametrize(("attempt", "follows"), [(1, False), (2, True)])
def test_a_commit_is_of_the_attempt_that_stands(attempt: int, follows: bool) -> None:
    newcomer = m.Membership(JOB, worker(1))
    newcomer.handle(0.0, m.Arrived())
    newcomer.handle(0.0, m.OrderReceived(order(2, 0, 1)))
    newcomer.handle(0.0, m.PeerSaid(Prepare(job=JOB, generation=2, attempt=2, base=0, holders=(worker(0),))))
    newcomer.handle(0.0, m.GroupBuilt(2, 2))
    actions = newcomer.handle(0.0, m.PeerSaid(Commit(job=JOB, generation=2, attempt=attempt)))
    assert any(isinstance(action, m.Switch) for action in actions) == follows


def test_a_worker_is_over_once_its_loop_has_ended_and_not_before() -> None:
    for machine in (leader_in_generation_1(), follower_in_generation_1()):
        assert not machine.over
        machine.handle(0.0, m.LoopEnded())
        assert machine.over
        assert machine.phase is WorkerPhase.FINISHED
