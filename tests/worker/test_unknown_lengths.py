"""Epochs with an unknown number of steps: events tell the epoch of the next step."""

from __future__ import annotations

from elasticd.worker import events as e

from .worker_stories import ME, OTHER, Story

EPOCHS = 2


def arrived(max_steps: int | None = None) -> Story:
    story = Story()
    story.tell(e.Arrived(max_steps, None, 8, epochs=EPOCHS))
    return story


def alone(max_steps: int | None = None) -> Story:
    story = arrived(max_steps)
    story.alone()
    story.tell(e.CheckpointMissing())
    assert story.take() == [e.EnterLoop(0)]
    return story


def step(story: Story, next_epoch: int) -> int:
    """A step whose successor belongs to epoch `next_epoch`."""
    run = story.begin_step()
    story.tell(e.PartComputed())
    story.tell(e.WordRead(run.proposal))
    story.tell(e.StepApplied(run.step, next_epoch))
    return int(run.step)


def asks(story: Story, epoch: int) -> list[e.Instruction]:
    story.tell(e.StepWanted(epoch))
    return list(story.take())


def test_an_epoch_ends_when_the_step_to_come_belongs_to_the_next() -> None:
    story = alone()
    assert [step(story, 0), step(story, 0), step(story, 1)] == [0, 1, 2]
    assert asks(story, 0) == [e.EndEpoch()]
    assert step(story, 1) == 3
    assert step(story, 2) == 4
    assert asks(story, 1) == [e.EndEpoch()]
    story.tell(e.LoopEnded(EPOCHS))
    (save,) = story.take()
    assert (save.step, save.epoch) == (4, EPOCHS), "the checkpoint of the end"
    assert story.status.total_steps is None


def test_a_number_of_steps_that_the_job_says_ends_it_in_the_middle_of_an_epoch() -> None:
    story = alone(max_steps=2)
    assert [step(story, 0), step(story, 0)] == [0, 1]
    assert asks(story, 0) == [e.EndEpoch()]
    story.tell(e.LoopEnded(EPOCHS))
    assert [type(each) for each in story.take()] == [e.SaveCheckpoint]


def test_a_checkpoint_of_an_epochs_last_step_goes_on_in_the_next() -> None:
    story = arrived()
    story.alone()
    story.tell(e.CheckpointLoaded(7, 0, next_epoch=1))
    assert story.take() == [e.EnterLoop(0)]
    assert asks(story, 0) == [e.EndEpoch()]
    assert [type(each) for each in asks(story, 1)] == [e.RunStep]


def test_a_joiner_that_comes_after_the_last_step_takes_the_state_without_one() -> None:
    story = arrived()
    story.follows(3, OTHER, ME, holders=(OTHER,))
    story.tell(e.StateArriving(9, next_epoch=EPOCHS))
    assert story.take() == [e.TakeState()]
    story.tell(e.StateTaken(9, 1, next_epoch=EPOCHS))
    story.tell(e.StepWanted(1))
    assert e.ExchangeValues() not in story.take()


def test_a_joiner_in_the_middle_takes_part_in_the_step_and_knows_what_follows() -> None:
    story = arrived()
    story.follows(3, OTHER, ME, holders=(OTHER,))
    story.tell(e.StateArriving(9, next_epoch=1))
    (join,) = story.take()
    assert (type(join), join.step) == (e.JoinStep, 10)
    story.tell(e.StateTaken(9, 0, next_epoch=1))
    story.tell(e.WordRead(0))
    story.tell(e.StepApplied(10, next_epoch=1))
    assert asks(story, 0) == [e.ExchangeValues()]
    story.tell(e.ValuesExchanged(1))
    assert story.take() == [e.EnterLoop(1)]
    assert [type(each) for each in asks(story, 1)] == [e.RunStep]


def test_a_survivor_whose_newer_state_does_not_come_still_knows_its_own_epoch() -> None:
    story = alone()
    step(story, 0)
    story.begin_step()
    story.tell(e.CollectiveFailed("peer lost"))
    story.take()
    story.follows(5, OTHER, ME, holders=(OTHER,))
    story.tell(e.StateArriving(1, next_epoch=EPOCHS))
    story.tell(e.CollectiveFailed("peer lost"))
    story.take()
    assert story.status.applied == 0
    (_, run) = story.follows(6, OTHER, ME, holders=(OTHER, ME))
    assert (type(run), run.step) == (e.RunStep, 1)
