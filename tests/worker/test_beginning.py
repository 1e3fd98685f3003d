"""Start of a worker: the first holder loads a checkpoint or starts from scratch, a joiner receives the state."""

from __future__ import annotations

import pytest

from elasticd.protocol import exits
from elasticd.protocol.model import GpuAddress, Member, Roster, ServerId
from elasticd.worker import events as e

from .worker_stories import ME, OTHER, STEPS, THIRD, Story


def test_the_first_holder_loads_a_checkpoint_and_goes_on_after_it() -> None:
    story = Story(checkpoint_step=5)
    story.arrive()
    enter, load = story.alone()
    assert isinstance(enter, e.EnterGeneration)
    assert load == e.LoadCheckpoint(1)
    story.tell(e.CheckpointLoaded(5, 1))
    assert story.take() == [e.EnterLoop(1)]
    story.epoch = 1
    assert story.begin_step().step == 6
    assert (story.status.applied, story.status.saved) == (5, 5)


def test_the_first_holder_begins_anew_where_there_is_no_checkpoint() -> None:
    story = Story()
    story.trains_alone()
    run = story.begin_step()
    assert (run.step, run.ranges) == (0, (range(4),))
    assert story.status.applied == -1


def test_without_checkpoints_nothing_is_loaded() -> None:
    story = Story(checkpoint_every_s=None)
    story.arrive()
    assert story.alone()[1:] == [e.EnterLoop(0)]


@pytest.mark.parametrize("found", [e.CheckpointMissing(), e.CheckpointLoaded(6, 1)])
def test_a_first_holder_that_does_not_see_the_jobs_checkpoint_ends_and_says_so(found: e.Event) -> None:
    story = Story(checkpoint_step=7)
    story.arrive()
    story.alone()
    story.tell(found)
    status = story.status
    assert "a checkpoint of step 7" in status.note
    (end,) = story.all(e.EndProcess)
    assert end.code == exits.NO_CHECKPOINT
    assert "a checkpoint of step 7" in end.reason
    assert story.take() == []


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before_and_says_how_many_steps_are_lost() -> None:
    story = Story(checkpoint_step=7)
    story.arrive()
    story.alone()
    story.tell(e.CheckpointLoaded(5, 1, damaged=7, reason="step-7.pt: cut off"))
    assert story.take() == [e.EnterLoop(1)]
    told = "the checkpoint of step 7 is damaged: back to that of step 5, 2 steps are lost"
    assert told in story.status.note
    assert story.status.news == f"{told} (step-7.pt: cut off)"


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (e.CheckpointMissing(where="/mnt/runs"), "finds none in /mnt/runs: is its directory mounted"),
        (
            e.CheckpointMissing("step-7.pt: cut off", damaged=7),
            "all that are there are damaged (step-7.pt: cut off): put one",
        ),
        (
            e.CheckpointLoaded(3, 0, damaged=5, reason="cut off"),
            "can read is that of step 3 (cut off): is its directory",
        ),
    ],
)
def test_a_checkpoint_that_is_not_there_is_waited_for_with_what_to_do(found: e.Event, words: str) -> None:
    story = Story(checkpoint_step=7)
    story.arrive()
    story.alone()
    story.tell(found)
    assert words in story.status.note
    (end,) = story.all(e.EndProcess)
    assert end.code == exits.NO_CHECKPOINT


def test_a_joiner_hosts_nothing_in_its_first_step_and_its_share_from_the_next_one_on() -> None:
    story = Story()
    story.arrive()
    enter, receive = story.follows(3, OTHER, ME, holders=(OTHER,))
    assert isinstance(enter, e.EnterGeneration)
    assert [(t.source_rank, t.target_rank) for t in enter.transfers] == [(0, 1)]
    assert receive == e.ReceiveState(keep_own=False)
    story.tell(e.StateArriving(4))
    assert story.take() == [e.JoinStep(5, (range(4), range(0)), 0)]
    story.tell(e.StateTaken(4, 1))
    story.tell(e.WordRead(0))
    story.tell(e.StepApplied(5))
    story.tell(e.StepWanted(1))
    assert story.take() == [e.ExchangeValues()]
    story.tell(e.ValuesExchanged(1))
    assert story.take() == [e.EnterLoop(1)]
    story.epoch = 1
    assert story.begin_step().ranges == (range(2), range(2, 4))
    assert story.status.applied == 5


def test_where_bodies_run_together_a_joiner_takes_the_state_before_the_step_and_hosts_in_it() -> None:
    story = Story()
    story.tell(e.Arrived(STEPS, 4, 8, registers_values=True, divided=True, together=True))
    story.follows(3, OTHER, ME, holders=(OTHER,))
    story.tell(e.StateArriving(4))
    assert story.take() == [e.TakeState()]
    story.tell(e.StateTaken(4, 1))
    story.tell(e.StepWanted(1))
    assert story.take() == [e.EnterLoop(1)]
    story.tell(e.StepWanted(1))
    assert story.take() == [e.RunStep(5, (range(2), range(2, 4)), 0, send=False)]
    story.tell(e.PartComputed())
    story.tell(e.WordRead(0))
    story.tell(e.StepApplied(5))
    story.tell(e.StepWanted(1))
    assert story.take() == [e.ExchangeValues()], "as after any first step"
    story.tell(e.ValuesExchanged(1))
    assert story.take() == [e.RunStep(6, (range(2), range(2, 4)), 0, send=False)]
    assert story.machine.applied == 5, "it counts as a holder"


def test_where_bodies_run_together_a_joiner_that_forwards_the_state_does_not_send_it_again_in_its_step() -> None:
    story = Story()
    story.tell(e.Arrived(STEPS, 4, 8, registers_values=True, divided=True, together=True))
    here, there = (
        Member(worker=each, gpu=GpuAddress(server=ServerId("t"), index=index)) for index, each in enumerate((ME, THIRD))
    )
    leader = Member(worker=OTHER, gpu=GpuAddress(server=ServerId("s"), index=0))
    enter, _ = story.follow(Roster(generation=3, members=(leader, here, there), leader=OTHER), (OTHER,))
    assert isinstance(enter, e.EnterGeneration)
    assert [(t.source_rank, t.target_rank) for t in enter.transfers] == [(0, 1), (1, 2)]
    story.tell(e.StateArriving(4))
    story.tell(e.StateTaken(4, 1))
    story.tell(e.StepWanted(1))
    story.take()
    story.tell(e.StepWanted(1))
    (run,) = story.take()
    assert isinstance(run, e.RunStep)
    assert not run.send


def test_a_joiner_of_a_job_without_steps_left_takes_the_state_without_one() -> None:
    story = Story()
    story.arrive()
    story.follows(3, OTHER, ME, holders=(OTHER,))
    story.tell(e.StateArriving(STEPS - 1))
    assert story.take() == [e.TakeState()]
    story.tell(e.StateTaken(STEPS - 1, 3))
    story.tell(e.StepWanted(3))
    assert story.take() == [e.EnterLoop(3)]


def test_a_holder_computes_and_sends_in_the_first_step_and_then_all_host() -> None:
    story = Story()
    story.trains_alone(0)
    story.begin_step()
    story.tell(e.CollectiveFailed("lost"))
    assert story.take() == [e.GiveUpStep(restore_buffers=True)]
    enter, run = story.follows(5, OTHER, ME, holders=(ME,))
    assert isinstance(enter, e.EnterGeneration)
    assert run == e.RunStep(1, (range(0), range(4)), 0, send=True)
    story.tell(e.PartComputed())
    story.tell(e.WordRead(0))
    story.tell(e.StepApplied(1))
    story.tell(e.StepWanted(0))
    assert story.take() == [e.ExchangeValues()]
    story.tell(e.ValuesExchanged(0))
    assert story.take() == [e.RunStep(2, (range(2), range(2, 4)), 0, send=False)]


def test_a_checkpoint_that_cannot_be_read_is_told_by_who_begins_anew() -> None:
    story = Story()
    story.arrive()
    story.alone()
    story.tell(e.CheckpointMissing("/checkpoints cannot be listed: stale file handle"))
    assert story.take() == [e.EnterLoop(0)]
    assert "stale file handle" in story.status.note
