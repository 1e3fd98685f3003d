"""Loans of GPUs: the jobs that leave them, refused loans, and the return."""

from __future__ import annotations

import pytest

from elasticd.protocol.messages import (
    CordonServer,
    EndLoan,
    EventKind,
    GetJob,
    GetServers,
    GpusLent,
    LendGpus,
    LoanEnded,
    Refused,
    RemoveServer,
    Scale,
    ServerState,
    ServerUncordoned,
    Submit,
    UncordonServer,
)
from elasticd.protocol.model import CordonKind, Deadline, ServerId
from elasticd.protocol.principals import Principal, Role

from .world import World, job_spec, one_running


def lent(world, gpus: int, for_s: float = 60.0, **changes) -> GpusLent:
    answer = world.ask(LendGpus(gpus=gpus, for_s=for_s, **changes))
    assert isinstance(answer, GpusLent), answer
    return answer


def test_free_gpus_are_lent_first_and_nobody_is_disturbed() -> None:
    world = World({"s1": 4, "s2": 4})
    job = one_running(world, 4)
    before = job.record.target
    loan = lent(world, 4)
    assert not set(loan.gpus) & set(before)
    world.turn()
    assert (job.record.target, job.record.generation) == (before, 1)


def test_an_elastic_job_shrinks_at_once_and_grows_again_when_the_time_is_over() -> None:
    world = World({"s1": 4})
    job = one_running(world, 4)
    loan = lent(world, 3, for_s=30.0)
    world.settle(job.id, 20)
    assert len(job.record.target) == 1
    assert not set(loan.gpus) & set(job.record.target)
    assert job.record.restarts == 0
    world.pass_time(31.0)
    world.settle(job.id, 60)
    assert len(job.record.target) == 4
    assert "loan-" in world.story()
    assert world.kinds().count(EventKind.LOAN_ENDED) == 1


@pytest.mark.parametrize("scaled", [False, True], ids=["by the policy", "by a share that was set"])
def test_what_is_lent_is_left_with_the_next_step_though_its_job_is_to_move_elsewhere(scaled: bool) -> None:
    world = World({"s1": 3, "s2": 3})
    jobs = [world.submit(job_spec(name, 1, 3)) for name in ("first", "second")]
    _all_settle(world, jobs)
    for job in jobs if scaled else ():
        world.ask(Scale(job=job.id, share=3))
    assert [len(job.record.target) for job in jobs] == [3, 3]
    (gpu,) = lent(world, 1).gpus
    job = next(job for job in jobs if any(entry.gpu == gpu for entry in job.workers))
    (lost,) = [entry.worker for entry in job.workers if entry.gpu == gpu]
    trained = {entry.worker for entry in job.workers if entry.trained}
    assert set(world.roster(job.id)) == trained - {lost}, "nobody who still has to start is waited for"
    world.commit(job.id, 20)
    assert gpu not in [entry.gpu for entry in job.workers]
    assert world.kinds().count(EventKind.DRAINED) == 1
    _all_settle(world, jobs)
    assert sorted(len(job.record.target) for job in jobs) == [2, 3]
    assert [job.share_gpus for job in jobs] == [len(job.record.target) for job in jobs]
    assert [job.record.restarts for job in jobs] == [0, 0]


def _all_settle(world, jobs) -> None:
    """Workers with started peers arrive and commit the current orders, until there are no more."""
    for _ in range(8):
        for job in jobs:
            world.reap()
            world.arrive(job.id)
            if set(world.roster(job.id)) <= set(world.running(job.id)):
                world.commit(job.id, 30)


def test_a_loan_is_ended_by_hand() -> None:
    world = World({"s1": 4})
    loan = lent(world, 2)
    ended = world.ask(EndLoan(loan=loan.loan))
    assert ended == LoanEnded(loan=loan.loan, gpus=loan.gpus)
    again = world.ask(EndLoan(loan=loan.loan))
    assert isinstance(again, Refused)
    assert f"there is no loan '{loan.loan}'" in again.reason
    assert world.ask(GetServers()).servers[0].cordons == ()


def test_a_loan_outlasts_its_controller_and_ends_in_time() -> None:
    world = World({"s1": 4})
    loan = lent(world, 2, for_s=20.0)
    world.restart()
    assert [cordon.loan for cordon in world.ask(GetServers()).servers[0].cordons] == [loan.loan] * 2
    world.pass_time(21.0)
    assert world.ask(GetServers()).servers[0].cordons == ()


def test_gangs_keep_their_gpus() -> None:
    world = World({"s1": 4})
    gang = world.submit(job_spec("gang", 3, 3, restarts=0))
    world.turn()
    assert len(gang.own_gpus) == 3
    refused = world.ask(LendGpus(gpus=2, for_s=60.0))
    assert isinstance(refused, Refused)
    assert refused.reason == "2 GPUs cannot be lent: 1 of 4 can be had; 3 belong to jobs that cannot be resized"
    assert len(lent(world, 1).gpus) == 1


def test_what_is_promised_is_lent_only_if_somebody_insists() -> None:
    world = World({"s1": 4})
    rates = {1: 1.0, 2: 2.0, 4: 4.0}
    spec = job_spec("due", 1, 4, max_steps=140, throughput=rates, deadline=Deadline(in_s=60.0))
    assert not isinstance(world.ask(Submit(spec=spec)), Refused)
    world.settle("due-1", 5)
    refused = world.ask(LendGpus(gpus=3, for_s=100.0))
    assert isinstance(refused, Refused)
    assert "the deadlines of due-1 would be missed" in refused.reason
    assert len(lent(world, 1, for_s=5.0).gpus) == 1
    assert len(lent(world, 2, for_s=100.0, force=True).gpus) == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpus": 0}, "0 GPUs cannot be lent: at least 1"),
        ({"for_s": 0.0}, "cannot be lent for 0 s"),
        ({"for_s": 1e9}, "1 s to 31 days"),
        ({"reason": "a\nb"}, "a reason is one line"),
    ],
)
def test_a_wrong_wish_is_refused_in_a_sentence(changes, words) -> None:
    world = World({"s1": 4})
    refused = world.ask(LendGpus(**{"gpus": 1, "for_s": 60.0, **changes}))
    assert isinstance(refused, Refused)
    assert words in refused.reason


def test_users_lend_nothing() -> None:
    world = World({"s1": 4})
    refused = world.ask(LendGpus(gpus=1, for_s=60.0), who=Principal(role=Role.USER, name="alice"))
    assert refused.not_allowed


@pytest.mark.parametrize("kind", list(CordonKind))
@pytest.mark.parametrize("gpu", [None, 0])
def test_a_cordon_or_drain_of_what_is_lent_and_its_end_leave_the_loan_alone(kind: CordonKind, gpu: int | None) -> None:
    world = World({"s1": 2})
    loan = lent(world, 2)
    world.ask(CordonServer(server=ServerId("s1"), gpu=gpu, kind=kind))
    answer = world.ask(UncordonServer(server=ServerId("s1"), gpu=gpu))
    assert isinstance(answer, ServerUncordoned)
    assert EventKind.LOAN_ENDED not in world.kinds()
    assert all(f"lent ({loan.loan})" in still for still in answer.still)
    assert answer.still
    (view,) = world.ask(GetServers()).servers
    assert [(cordon.loan, cordon.gpu) for cordon in view.cordons] == [(loan.loan, 0), (loan.loan, 1)]
    assert not world.submit(job_spec(high=1)).record.target
    assert world.ask(EndLoan(loan=loan.loan)) == LoanEnded(loan=loan.loan, gpus=loan.gpus)


def test_a_single_gpu_is_taken_back_from_its_loan_with_an_event() -> None:
    world = World({"s1": 2})
    loan = lent(world, 2)
    world.ask(UncordonServer(server=ServerId("s1"), gpu=1))
    (view,) = world.ask(GetServers()).servers
    assert [cordon.gpu for cordon in view.cordons] == [0]
    assert f"s1:1 of {loan.loan} is used again" in world.story()


def test_a_job_that_waits_for_gpus_that_are_lent_is_told_so_and_nobody_else_is_blamed() -> None:
    world = World({"s1": 2, "s2": 2})
    gang = world.submit(job_spec("gang", 1, 1, restarts=0))
    assert gang.record.target
    loan = lent(world, 3)
    waiting = world.submit(job_spec("waiting", 1, 1, restarts=0))
    reason = world.ask(GetJob(job=waiting.id)).job.reason
    assert reason == "waits for 1 GPU: 1 of 4 belongs to jobs that cannot be resized, and 3 are lent"
    assert f"lent ({loan.loan}), by operator:local" in {
        taken.why for taken in world.ask(GetJob(job=waiting.id, explain=True)).explanation.taken
    }


def test_a_server_whose_gpus_are_all_lent_is_not_called_unfit() -> None:
    world = World({"s1": 2})
    loan = lent(world, 2)
    (view,) = world.ask(GetServers()).servers
    assert view.state is ServerState.ALIVE
    assert view.trouble == f"no new work here: lent ({loan.loan}), by operator:local"


def test_a_server_that_is_removed_while_its_gpus_are_lent_ends_that_with_an_event() -> None:
    world = World({"s1": 2, "s2": 2})
    loan = lent(world, 4)
    world.ask(RemoveServer(server=ServerId("s1")))
    assert f"{loan.loan} has 2 GPUs fewer: server s1 is removed" in world.story()
