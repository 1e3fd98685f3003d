"""Time limits of a worker's training thread, and the distinction of hanging from waiting."""

from __future__ import annotations

import pytest

from elasticd.protocol import exits, times
from elasticd.worker import events as e
from elasticd.worker.training.limits import Durations

from .worker_stories import ME, OTHER, Story, roster


def test_a_worker_whose_own_part_of_a_step_does_not_come_ends_itself() -> None:
    story = Story()
    story.trains_alone(5)
    story.begin_step()
    story.wait(times.LEAST_STEP_TIMEOUT_S - 1)
    assert not story.all(e.EndProcess)
    story.wait(2.0)
    (end,) = story.all(e.EndProcess)
    assert end.code == exits.HUNG
    assert (
        end.reason
        == "job.1 has been computing its part of step 6 for 600 s, which is too long: it ends, to be replaced"
    )
    assert story.all(e.SendStatus)[-1].status.note == end.reason


def test_a_step_that_is_only_slow_is_given_twenty_times_what_it_takes() -> None:
    story = Story()
    story.trains_alone()
    for _ in range(4):
        story.step(takes_s=60.0)
    story.begin_step()
    story.wait(1199.0)
    assert not story.all(e.EndProcess)
    story.wait(2.0)
    assert story.all(e.EndProcess)


def test_the_first_steps_are_given_more() -> None:
    story = Story()
    story.trains_alone()
    story.begin_step()
    story.wait(times.FIRST_STEP_TIMEOUT_S - 1)
    assert not story.all(e.EndProcess)
    story.wait(2.0)
    assert story.all(e.EndProcess)


def test_a_jobs_own_limits_hold() -> None:
    story = Story(limits=e.Limits(step_timeout_s=5.0, pause_timeout_s=20.0))
    story.trains_alone()
    story.wait(19.0)
    assert not story.all(e.EndProcess)
    story.begin_step()
    story.wait(6.0)
    assert story.all(e.EndProcess)


def test_the_scripts_own_code_between_two_steps_has_a_limit_of_its_own() -> None:
    story = Story()
    story.trains_alone(5)
    story.wait(times.PAUSE_TIMEOUT_S - 1)
    assert not story.all(e.EndProcess)
    story.wait(2.0)
    assert [end.code for end in story.all(e.EndProcess)] == [exits.HUNG]


def test_one_that_waits_for_another_outlasts_it_and_then_only_recovers() -> None:
    story = Story()
    story.trains_alone(5)
    story.begin_step()
    story.tell(e.PartComputed())
    story.wait(times.PAUSE_TIMEOUT_S + times.FIRST_STEP_TIMEOUT_S)
    assert not story.all(e.Abandon)
    story.wait(times.OTHERS_MARGIN_S + 1)
    assert story.all(e.Abandon) == [e.Abandon(1)]
    story.tell(e.CollectiveFailed("abandoned"))
    assert story.take() == [e.GiveUpStep(restore_buffers=True)]
    story.wait(10_000.0)
    assert not story.all(e.EndProcess)


def test_each_evaluation_of_a_step_s_loss_has_the_time_of_a_part() -> None:
    story = Story()
    story.trains_alone(5)
    story.begin_step()
    for _ in range(5):
        story.wait(1.0)
        story.tell(e.PartComputed())
        story.wait(times.LEAST_STEP_TIMEOUT_S / 2)
        story.tell(e.Evaluated())
    assert not story.all(e.EndProcess)
    story.wait(times.LEAST_STEP_TIMEOUT_S + 1.0)
    assert [end.code for end in story.all(e.EndProcess)] == [exits.HUNG]


def test_a_joiner_waits_for_each_evaluation_as_for_a_part() -> None:
    story = Story()
    story.arrive()
    story.follows(3, OTHER, ME, holders=(OTHER,))
    story.tell(e.StateArriving(4))
    limit_s = times.others_timeout_s(times.FIRST_STEP_TIMEOUT_S, times.PAUSE_TIMEOUT_S)
    for _ in range(3):
        story.wait(limit_s - 1.0)
        story.tell(e.Evaluated())
    assert not story.all(e.Abandon)
    story.wait(limit_s + 1.0)
    assert story.all(e.Abandon)


def test_one_that_has_waited_for_longer_than_an_exchange_may_take_says_so() -> None:
    story = Story()
    story.trains_alone()
    for _ in range(4):
        story.step(takes_s=1.0)
    story.begin_step()
    story.wait(times.STALL_TIMEOUT_S + 1.0)
    assert story.status.waits_s == 0.0, "it computes its own part"
    story.tell(e.PartComputed())
    story.wait(times.STALL_TIMEOUT_S - 1.0)
    assert story.status.waits_s == 0.0
    story.wait(2.0)
    assert story.status.waits_s > times.STALL_TIMEOUT_S
    story.tell(e.WordRead(0))
    assert story.status.waits_s == 0.0, "all has come"


@pytest.mark.parametrize(
    ("limits", "step_s", "limit_s"),
    [
        (e.Limits(), 60.0, times.STALL_TIMEOUT_FACTOR * 60.0),
        (e.Limits(step_timeout_s=900.0), 60.0, 900.0),
        (e.Limits(step_timeout_s=5.0), 1.0, times.STALL_TIMEOUT_S),
    ],
    ids=["by what steps take", "by the job's own limit", "not by one for a short part"],
)
def test_how_long_an_exchange_may_take(limits: e.Limits, step_s: float, limit_s: float) -> None:
    story = Story(limits=limits)
    story.trains_alone()
    for _ in range(4):
        story.step(takes_s=step_s)
    story.begin_step()
    story.tell(e.PartComputed())
    story.wait(limit_s - 1.0)
    assert story.status.waits_s == 0.0
    story.wait(1.0)
    assert story.status.waits_s >= limit_s


def test_what_was_not_measured_yet_and_the_state_itself_have_time_by_its_size() -> None:
    durations, seconds = Durations(e.Limits()), 10 * times.STALL_TIMEOUT_S
    assert durations.stall_limit_s(4, state=False) == times.STALL_TIMEOUT_S
    durations.expect(int(seconds * times.SLOW_NETWORK_BYTES_S))
    assert durations.stall_limit_s(4, state=False) == seconds
    for _ in range(4):
        durations.step_ended(1.0)
    assert durations.stall_limit_s(4, state=False) == times.STALL_TIMEOUT_S
    assert durations.stall_limit_s(4, state=True) == seconds


def test_an_exchange_that_was_given_up_too_early_is_given_twice_the_time() -> None:
    story = Story(limits=e.Limits(step_timeout_s=5.0))
    story.trains_alone(2)
    story.begin_step()
    for generation, limit_s in ((2, 30.0), (3, 60.0), (4, 120.0)):
        story.tell(e.PartComputed())
        story.wait(limit_s - 1.0)
        assert story.status.waits_s == 0.0
        story.wait(2.0)
        assert story.status.waits_s > limit_s
        story.order(roster(generation, ME), broken=(generation - 1,))
        story.tell(e.CollectiveFailed("abandoned"))
        story.tell(e.GroupBuilt(generation, 1))
        assert isinstance(story.take()[-1], e.RunStep)


def test_what_the_update_takes_is_not_taken_for_waiting() -> None:
    story = Story()
    story.trains_alone(5)
    story.begin_step()
    story.tell(e.PartComputed())
    story.tell(e.WordRead(0))
    story.wait(times.PAUSE_TIMEOUT_S - 1)
    assert story.status.waits_s == 0.0
    assert not story.all(e.EndProcess)
    story.wait(2.0)
    assert [end.code for end in story.all(e.EndProcess)] == [exits.HUNG]


def test_one_that_does_not_come_out_of_an_abandoned_communicator_ends_itself() -> None:
    story = Story()
    story.trains_alone(5)
    story.begin_step()
    story.tell(e.PartComputed())
    story.order(roster(5, OTHER, ME), broken=(1,))
    assert story.all(e.Abandon)
    story.wait(times.COME_OUT_TIMEOUT_S + 1)
    assert [end.code for end in story.all(e.EndProcess)] == [exits.HUNG]


def test_a_process_that_was_stopped_itself_does_not_take_its_thread_for_hung() -> None:
    """SIGSTOP, a frozen container: the process's clock ran on, its thread's did not."""
    story = Story()
    story.trains_alone(5)
    story.begin_step()
    story.wait(10.0)
    story.now += 2 * times.FIRST_STEP_TIMEOUT_S
    story.tell(e.WorkerTick())
    story.wait(times.LEAST_STEP_TIMEOUT_S - 11.0)
    assert not story.all(e.EndProcess)
    story.wait(2.0)
    assert [end.code for end in story.all(e.EndProcess)] == [exits.HUNG]


def test_what_a_worker_once_waited_for_is_not_told_for_ever() -> None:
    story = Story()
    story.trains_alone(5)
    story.begin_step()
    story.tell(e.PartComputed())
    story.wait(times.others_timeout_s(times.FIRST_STEP_TIMEOUT_S, times.PAUSE_TIMEOUT_S) + 1)
    assert "too long" in story.status.note
    story.tell(e.CollectiveFailed("abandoned"))
    assert "too long" in story.status.note
    story.take()
    story.alone(2)
    assert story.status.note == ""


def test_a_preempted_worker_that_hangs_lets_the_others_out_of_the_step_before_it_ends() -> None:
    story = Story(limits=e.Limits(step_timeout_s=100.0))
    story.trains_alone(5)
    story.begin_step()
    story.wait(100.0 - times.SUSPEND_PATIENCE_S)
    story.suspend()
    story.acknowledges = False  # it waits for its agent, and the others do not
    story.wait(times.SUSPEND_PATIENCE_S)
    assert story.all(e.Abandon) == [e.Abandon(1)]
    assert "computing its part of step 6 for 100 s" in story.status.note
    story.wait(times.LAST_REPORT_TIMEOUT_S)
    assert [end.code for end in story.all(e.EndProcess)] == [exits.HUNG]


def test_an_exchange_that_ended_with_a_loss_does_not_lengthen_the_next_one() -> None:
    story = Story(limits=e.Limits(step_timeout_s=5.0))
    story.trains_alone(2)
    story.begin_step()
    story.tell(e.PartComputed())
    story.wait(1.0)
    story.order(roster(2, ME), broken=(1,))
    story.tell(e.CollectiveFailed("peer lost"))
    story.tell(e.GroupBuilt(2, 1))
    story.tell(e.PartComputed())
    story.wait(times.STALL_TIMEOUT_S + 1.0)
    assert story.status.waits_s > times.STALL_TIMEOUT_S
