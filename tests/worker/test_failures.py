"""A step with a failed communicator: repeated steps, and the remaining holders of the state."""

from __future__ import annotations

from typing import Any

from elasticd.protocol import exits
from elasticd.protocol.model import WorkerPhase
from elasticd.worker import events as e

from .worker_stories import ME, OTHER, Story


def test_a_failure_repeats_the_step_in_progress_and_nothing_else() -> None:
    story = Story()
    story.trains_alone(2)
    assert story.begin_step().step == 3
    story.tell(e.PartComputed())
    story.tell(e.CollectiveFailed("peer lost"))
    assert story.take() == [e.GiveUpStep(restore_buffers=True)]
    assert (story.status.phase, story.status.applied, story.status.note) == (WorkerPhase.BROKEN, 2, "peer lost")
    enter, run = story.follows(5, OTHER, ME, holders=(ME, OTHER))
    assert isinstance(enter, e.EnterGeneration)
    assert (run.step, run.send) == (3, False)


def test_a_joiner_whose_source_dies_before_the_values_come_is_no_holder() -> None:
    story = Story()
    story.joins(4, registers_values=True)
    story.tell(e.StepWanted(1))
    assert story.take() == [e.ExchangeValues()]
    story.tell(e.CollectiveFailed("peer lost"))
    assert story.take() == [e.GiveUpStep(restore_buffers=False)]
    assert story.status.applied is None
    assert story.follows(5, OTHER, ME, holders=(OTHER,))[-1] == e.ReceiveState(keep_own=False)


def test_a_joiner_whose_source_dies_in_the_transfer_has_nothing() -> None:
    story = Story()
    story.arrive()
    story.follows(3, OTHER, ME, holders=(OTHER,))
    story.tell(e.StateArriving(4))
    story.tell(e.CollectiveFailed("peer lost"))
    assert story.take()[-1] == e.GiveUpStep(restore_buffers=False)
    assert story.status.applied is None


def test_a_joiner_without_registered_values_holds_the_state_as_soon_as_it_has_applied_the_step() -> None:
    story = Story()
    story.joins(4)
    story.tell(e.StepWanted(1))
    story.tell(e.CollectiveFailed("peer lost"))
    assert story.status.applied == 5


def test_a_survivor_keeps_its_own_state_until_the_newer_one_is_there() -> None:
    story = Story()
    story.trains_alone(2)
    story.begin_step()
    story.tell(e.CollectiveFailed("peer lost"))
    story.take()
    assert story.follows(5, OTHER, ME, holders=(OTHER,))[-1] == e.ReceiveState(keep_own=True)
    story.tell(e.StateArriving(3))
    story.tell(e.CollectiveFailed("peer lost"))
    assert story.status.applied == 2


def test_a_newcomer_that_lost_its_initial_values_to_a_lost_state_loads_a_checkpoint() -> None:
    story = Story()
    story.arrive()
    story.follows(3, OTHER, ME, holders=(OTHER,))
    story.tell(e.StateArriving(4))
    story.tell(e.CollectiveFailed("peer lost"))
    story.take()
    assert story.alone(5)[-1] == e.LoadCheckpoint(5)
    story.tell(e.CheckpointLoaded(2, 0))
    assert story.take() == [e.EnterLoop(0)]


def test_a_newcomer_that_lost_its_initial_values_ends_where_there_is_no_checkpoint() -> None:
    story = Story()
    story.arrive()
    story.follows(3, OTHER, ME, holders=(OTHER,))
    story.tell(e.StateArriving(4))
    story.tell(e.CollectiveFailed("peer lost"))
    story.take()
    story.alone(5)
    story.tell(e.CheckpointMissing())
    assert "initial values" in story.status.note
    assert [end.code for end in story.all(e.EndProcess)] == [exits.SPOILED]


def joins_to_prove_itself() -> Any:
    """A newcomer with the whole state after step 5, whose results have not been compared yet."""
    story = Story()
    story.tell(e.Arrived(12, 4, 8, registers_values=True, proves=True))
    story.follows(3, OTHER, ME, holders=(OTHER,))
    story.tell(e.StateArriving(4))
    story.tell(e.StateTaken(4, 1))
    story.tell(e.WordRead(0))
    story.tell(e.StepApplied(5))
    story.tell(e.StepWanted(1))
    assert story.take()[-1] == e.ExchangeValues()
    story.tell(e.ValuesExchanged(1))
    assert story.take() == [e.EnterLoop(1)]
    story.epoch = 1
    return story


def test_a_newcomer_holds_the_state_and_hosts_once_it_has_computed_a_step_as_the_others_do() -> None:
    story = joins_to_prove_itself()
    run = story.begin_step()
    assert (run.step, run.ranges) == (6, (range(4), range(0)))
    assert story.status.applied == 4, "it is no holder of the state after step 5 yet"
    story.tell(e.PartComputed())
    story.tell(e.WordRead(0))
    story.tell(e.StepApplied(6))
    assert story.status.applied == 6
    assert story.begin_step().ranges == (range(2), range(2, 4))


def test_a_newcomer_whose_proving_step_fails_receives_the_state_again() -> None:
    story = joins_to_prove_itself()
    story.begin_step()
    story.tell(e.CollectiveFailed("peer lost"))
    story.take()
    assert story.status.applied is None
    assert story.follows(5, OTHER, ME, holders=(OTHER,))[-1] == e.ReceiveState(keep_own=False)


def holder_of_a_newcomer() -> Any:
    """A worker that has sent the state after step 0 to a newcomer, and its registered values after step 1; both are in step 2."""
    story = Story()
    story.tell(e.Arrived(12, 4, 8, registers_values=True, proves=True))
    story.alone()
    story.tell(e.CheckpointMissing())
    story.take()
    story.step()
    story.begin_step()
    story.tell(e.CollectiveFailed("lost"))
    story.take()
    story.follows(5, OTHER, ME, holders=(ME,))
    story.tell(e.PartComputed())
    story.tell(e.WordRead(0))
    story.tell(e.StepApplied(1))
    story.tell(e.StepWanted(0))
    assert story.take() == [e.ExchangeValues()]
    story.tell(e.ValuesExchanged(0))
    assert story.take() == [e.RunStep(2, (range(0), range(4)), 0, send=False)]
    return story


def test_who_has_handed_the_state_on_still_holds_it_while_the_newcomer_proves_itself() -> None:
    story = holder_of_a_newcomer()
    story.tell(e.CollectiveFailed("the newcomer is lost"))
    story.take()
    assert story.status.applied == 1
    story.suspend(ME)
    assert story.take() == [e.SaveCheckpoint(1, 1, 0, 5)]
