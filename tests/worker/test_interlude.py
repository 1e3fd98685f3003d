"""The script's own code between two steps: the worker's state machine meanwhile, and results that are kept."""

from __future__ import annotations

import pytest
import torch

from elasticd.protocol import exits, times
from elasticd.protocol.messages import Ready
from elasticd.worker import events as e
from elasticd.worker.interlude import FEWEST_PLACES, PLACES_KEPT, AgreedValues, BoundaryPoint, Interlude

from .worker_stories import ME, OTHER, STEPS_PER_EPOCH, Story, roster

PAUSE = times.PAUSE_TIMEOUT_S


def between_epochs() -> Story:
    story = Story()
    story.trains_alone(STEPS_PER_EPOCH - 1)
    story.tell(e.StepWanted(0))
    assert story.take() == [e.EndEpoch()]
    return story


def test_an_evaluation_may_take_longer_than_a_pause_as_long_as_it_goes_on() -> None:
    story = between_epochs()
    for _ in range(3):
        story.wait(PAUSE - 1)
        story.tell(e.Progressed(interruptible=True))
        assert story.take() == [e.Resume()]
    assert not story.all(e.EndProcess)
    story.wait(PAUSE + 1)
    (end,) = story.all(e.EndProcess)
    assert end.code == exits.HUNG


def test_whoever_waits_for_the_others_in_an_evaluation_outlives_one_that_hangs_and_then_goes_on_alone() -> None:
    story = between_epochs()
    story.tell(e.SharingBegun(resumes=True))
    story.wait(PAUSE + 1)
    assert not story.all(e.EndProcess)
    story.wait(times.others_timeout_s(times.FIRST_STEP_TIMEOUT_S, PAUSE) - PAUSE)
    assert story.all(e.Abandon)
    story.tell(e.SharingEnded())
    story.tell(e.Progressed(interruptible=True))
    assert story.take() == [e.Resume()]
    assert not story.all(e.EndProcess)


def test_a_job_preempted_in_an_evaluation_is_saved_at_once() -> None:
    story = between_epochs()
    story.suspend()
    story.tell(e.Progressed(interruptible=True))
    assert story.take() == [e.SaveCheckpoint(1, STEPS_PER_EPOCH - 1, 0, 1)]


def test_code_that_cannot_be_interrupted_comes_to_its_end_first() -> None:
    story = between_epochs()
    story.suspend()
    story.tell(e.Progressed(interruptible=False))
    assert story.take() == [e.Resume()]
    story.tell(e.StepWanted(1))
    assert story.take() == [e.SaveCheckpoint(1, STEPS_PER_EPOCH - 1, 1, 1)]


def lost_while_deciding(settled: int = 0, resumes: bool = True) -> Story:
    """A worker alone in its generation, which breaks; it knows so many decisions."""
    story = between_epochs()
    for _ in range(settled):
        story.tell(e.SharingBegun(resumes))
        story.tell(e.SharingEnded(settled=True))
    story.tell(e.SharingBegun(resumes))
    story.tell(e.CollectiveFailed("lost"))
    assert story.take() == [e.GiveUpStep(restore_buffers=False)]
    return story


@pytest.mark.parametrize("settled", [0, 2])
def test_a_worker_that_stands_still_in_a_decision_says_how_many_it_knows(settled: int) -> None:
    story = lost_while_deciding(settled)
    story.order(roster(5, OTHER, ME))
    ready = [said.message for said in story.all(e.SendLeader) if isinstance(said.message, Ready)][-1]
    assert (ready.applied, ready.settled) == (STEPS_PER_EPOCH - 1, settled)


def test_a_holder_goes_on_with_its_decision_in_the_next_generation() -> None:
    story = lost_while_deciding()
    entered, resume = story.follows(5, OTHER, ME, holders=(OTHER, ME))
    assert isinstance(entered, e.EnterGeneration)
    assert resume == e.Resume()
    story.tell(e.SharingBegun(resumes=True))
    story.tell(e.SharingEnded(settled=True))
    story.tell(e.StepWanted(1))
    (run,) = story.take()
    assert isinstance(run, e.RunStep)


@pytest.mark.parametrize("resumes", [True, False])
def test_one_that_does_not_know_a_decision_gets_the_state_of_one_that_does(resumes: bool) -> None:
    story = lost_while_deciding(resumes=resumes)
    _, receive = story.follows(5, OTHER, ME, holders=(OTHER,))
    assert receive == e.ReceiveState(keep_own=True)
    story.tell(e.StateArriving(STEPS_PER_EPOCH - 1))
    story.take()
    story.tell(e.StateTaken(STEPS_PER_EPOCH - 1, 1, settled=1))
    story.tell(e.WordRead(0))
    story.tell(e.StepApplied(STEPS_PER_EPOCH))
    story.tell(e.StepWanted(0))
    assert story.take() == [e.ExchangeValues()]
    story.tell(e.ValuesExchanged(1))
    assert story.take() == [e.Resume() if resumes else e.EndEpoch()]


def test_the_last_step_may_be_decided() -> None:
    story = Story()
    story.trains_alone(1)
    story.tell(e.EndDecided())
    story.tell(e.StepWanted(0))
    assert story.take() == [e.EndEpoch()]
    story.tell(e.LoopEnded(3))
    assert story.take() == [e.SaveCheckpoint(1, 1, 3, 1)], "the end is saved as that of any job"


# ---------------------------------------------------------------------------------------------------------- kept results


def test_settlements_come_back_as_they_were() -> None:
    agreed_values, other = AgreedValues(), AgreedValues()
    place = BoundaryPoint("end", 3)
    agreed_values.record(place, 0, b"evaluated", decision=False)
    agreed_values.record(place, 1, b"decided", decision=True)
    other.take(agreed_values.plain())
    assert [other.find(place, number) for number in range(3)] == [b"evaluated", b"decided", None]
    assert other.find(BoundaryPoint("begin", 3), 0) is None
    assert other.decisions == 1
    other.step_applied()
    assert (other.decisions, other.find(place, 1)) == (0, b"decided")


@pytest.mark.parametrize(("size", "kept"), [(10, PLACES_KEPT), (1 << 21, FEWEST_PLACES)])
def test_only_the_newest_settlements_are_kept(size: int, kept: int) -> None:
    agreed_values = AgreedValues()
    for number in range(100):
        agreed_values.record(BoundaryPoint("after", number), 0, bytes(size), decision=True)
    found = [number for number in range(100) if agreed_values.find(BoundaryPoint("after", number), 0) is not None]
    assert found == list(range(100 - kept, 100))


def test_what_an_epoch_has_begun_with_is_kept_for_those_who_join_in_it_many_steps_later() -> None:
    agreed_values = AgreedValues()
    agreed_values.record(BoundaryPoint("begin", 1), 0, b"loss", decision=False)
    for number in range(100):
        agreed_values.record(BoundaryPoint("after", number), 0, b"other", decision=False)
    assert agreed_values.find(BoundaryPoint("begin", 1), 0) == b"loss"


def test_code_that_has_changed_a_tensor_cannot_be_interrupted_any_more() -> None:
    weights = torch.zeros(3)
    interlude = Interlude({"counters": {}}, [weights.detach()], after_step=True)
    assert interlude.interruptible
    header = interlude.header({"applied": 4, "epoch": 1}, AgreedValues())
    assert header["counters"] == {"applied": 4, "epoch": 1, "owes_functions": 1}
    weights.add_(1)
    assert not interlude.interruptible
