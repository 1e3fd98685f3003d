"""Events that are impossible in the present state."""

from __future__ import annotations

import pytest

from elasticd.protocol.errors import InvalidTransition
from elasticd.worker import events as e
from elasticd.worker.training.doing import TRANSITIONS, Doing

from .worker_stories import Story


@pytest.mark.parametrize(
    "fact",
    [e.StepWanted(0), e.StepApplied(0), e.PartComputed(), e.StateTaken(0, 0), e.CheckpointMissing(), e.WordRead(0)],
    ids=lambda fact: type(fact).__name__,
)
def test_a_fact_that_cannot_come_now_changes_nothing(fact: e.Event) -> None:
    story = Story()
    with pytest.raises(InvalidTransition):
        story.tell(fact)
    story.trains_alone()


def test_another_step_than_the_one_in_progress_cannot_be_applied() -> None:
    story = Story()
    story.trains_alone(2)
    story.begin_step()
    story.tell(e.PartComputed())
    story.tell(e.WordRead(0))
    with pytest.raises(InvalidTransition):
        story.tell(e.StepApplied(4))
    story.tell(e.StepApplied(3))
    assert story.status.applied == 3


def test_the_training_thread_cannot_be_made_to_do_what_cannot_come_next() -> None:
    story = Story()
    story.trains_alone(2)
    training = story.machine._training
    with pytest.raises(InvalidTransition, match="between two steps, and cannot be reading a checkpoint next"):
        training._go(story.now, Doing.LOADING)
    assert training.doing is Doing.SCRIPT
    story.begin_step()


def test_whatever_the_training_thread_does_it_can_still_come_to_its_end() -> None:
    assert set(TRANSITIONS) == set(Doing)
    assert [doing for doing, following in TRANSITIONS.items() if Doing.CLOSING not in following] == [
        Doing.CLOSING,
        Doing.OVER,
    ]
    reached = {Doing.STARTING}.union(*TRANSITIONS.values())
    assert reached == set(Doing)
