"""The end of a worker's script, regular and irregular."""

from __future__ import annotations

import pytest

from elasticd.protocol import times
from elasticd.protocol.errors import InvalidTransition
from elasticd.protocol.messages import Prepare
from elasticd.protocol.model import WorkerPhase
from elasticd.worker import events as e

from .worker_stories import ME, OTHER, STEPS, STEPS_PER_EPOCH, Story, roster


def test_the_leader_saves_the_end_before_it_has_finished() -> None:
    story = Story()
    story.trains_alone(STEPS - 1)
    story.tell(e.StepWanted(2))
    assert story.take() == [e.EndEpoch()]
    story.tell(e.LoopEnded(3))
    assert story.take() == [e.SaveCheckpoint(1, STEPS - 1, 3, 1)]
    assert story.status.phase is WorkerPhase.TRAINING
    story.tell(e.CheckpointSaved(1))
    assert story.take() == []
    assert story.status.phase is WorkerPhase.FINISHED
    assert story.take() == [e.Continue()]


def test_a_loop_left_by_break_saves_nothing_and_has_finished() -> None:
    story = Story()
    story.trains_alone(2)
    story.begin_step()
    story.tell(e.LoopEnded(3))
    assert story.status.phase is WorkerPhase.FINISHED
    assert story.take() == [e.Continue()]


def test_a_script_that_ends_in_the_middle_has_not_finished() -> None:
    story = Story()
    story.trains_alone(2)
    story.begin_step()
    story.tell(e.ScriptEnded("SystemExit: 0"))
    assert story.status.phase is WorkerPhase.TRAINING
    assert story.status.note == "the script ended without having finished: SystemExit: 0"
    assert story.take() == [e.Continue()]


def test_a_holder_completes_its_transfers_before_it_finishes() -> None:
    story = Story()
    story.trains_alone(2)
    story.begin_step()
    story.tell(e.CollectiveFailed("lost"))
    story.take()
    story.follows(5, OTHER, ME, holders=(ME,))
    story.tell(e.LoopEnded(3))
    assert story.take() == [e.CompleteTransfers()]
    story.tell(e.TransfersCompleted())
    story.wait(1.0)
    assert story.take() == [e.Continue()]


def test_a_worker_that_is_over_only_reports() -> None:
    """Its agent may have restarted. Its control thread sleeps in between."""
    story = Story()
    story.trains_alone(2)
    story.tell(e.LoopEnded(3))
    story.wait(1.0)
    story.others.clear()
    story.wait(60.0)
    assert {type(action) for action in story.others} == {e.SendStatus}
    assert len(story.others) <= 60.0 / times.WORKER_HEARTBEAT_S + 1


def test_who_is_about_to_end_enters_no_generation_any_more() -> None:
    story = Story()
    story.arrive()
    story.order(roster(3, OTHER, ME))
    story.acknowledges = False
    story.tell(e.ScriptEnded("SystemExit: 0"))
    story.tell(e.PeerSaid(Prepare(job=story.job, generation=3, attempt=1, base=0, holders=(OTHER,))))
    assert story.follows(3, OTHER, ME, holders=(OTHER,)) == []
    story.wait(times.LAST_REPORT_TIMEOUT_S + 1)
    assert story.take() == [e.Continue()]


@pytest.mark.parametrize("fact", [e.StepWanted(3), e.Arrived(STEPS, STEPS_PER_EPOCH)])
def test_a_script_that_wants_to_train_on_after_its_end_is_refused_and_does_not_wait_for_ever(fact: e.Event) -> None:
    story = Story()
    story.trains_alone(2)
    story.tell(e.LoopEnded(3))
    story.wait(1.0)
    with pytest.raises(InvalidTransition, match="is over"):
        story.tell(fact)


def test_a_worker_ends_when_its_last_report_has_come_and_not_when_an_earlier_one_has() -> None:
    story = Story()
    story.trains_alone(2)
    story.acknowledges = False
    earlier = story.status.sequence
    story.tell(e.LoopEnded(3))
    story.tell(e.StatusAcknowledged(earlier))
    assert story.take() == []
    last = story.status
    assert (last.phase, story.take()) == (WorkerPhase.FINISHED, [])
    story.tell(e.StatusAcknowledged(last.sequence))
    assert story.take() == [e.Continue()]
