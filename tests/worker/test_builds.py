"""Building the next communicator while one is in use: attempts, failures, and when to give up."""

from __future__ import annotations

from elasticd.protocol import exits, times
from elasticd.protocol.messages import Prepare
from elasticd.protocol.model import WorkerPhase
from elasticd.worker import events as e

from .worker_stories import ME, OTHER, Story, roster


def test_a_communicator_that_nobody_wants_any_more_is_dropped_when_it_comes() -> None:
    story = Story()
    story.arrive()
    story.order(roster(1, ME))
    story.tell(e.GroupBuilt(1, 7))
    assert story.all(e.DropGroup) == [e.DropGroup(1, 7)]
    assert story.take() == []


def test_an_order_cancels_the_communicators_before_it_that_do_not_stand_yet() -> None:
    story = Story()
    story.arrive()
    for generation in (3, 4, 5):
        story.order(roster(generation, OTHER, ME))
        prepare = Prepare(job=story.job, generation=generation, attempt=1, base=0, holders=(OTHER,))
        story.tell(e.PeerSaid(prepare))
        if generation == 4:
            story.tell(e.GroupBuilt(4, 1))  # its leader may have decided
    assert story.all(e.DropGroup) == [e.DropGroup(3, 1)]


def test_a_communicator_that_takes_too_long_is_given_up_and_built_again() -> None:
    story = Story()
    story.arrive()
    story.order(roster(1, ME))
    story.wait(times.BUILD_TIMEOUT_S + times.WORKER_RETRY_S + 1)
    assert [build.attempt for build in story.all(e.BuildGroup)] == [1, 2]
    assert story.all(e.DropGroup) == [e.DropGroup(1, 1)]
    assert story.all(e.CloseRendezvous) == [e.CloseRendezvous(1, 1)]
    story.tell(e.GroupFailed(1, 1, "late"))
    story.tell(e.GroupBuilt(1, 2))
    assert isinstance(story.take()[0], e.EnterGeneration)


def failing_for(story: Story, generation: int, seconds: float) -> None:
    """For `seconds`, every attempt at `generation`, which another worker leads, fails after ten seconds."""
    for attempt in range(1, int(seconds / 10) + 1):
        story.tell(e.PeerSaid(Prepare(job=story.job, generation=generation, attempt=attempt, base=0, holders=(OTHER,))))
        story.wait(10.0)
        story.tell(e.GroupFailed(generation, attempt, "cannot connect rank 0 of 2"))


def test_a_status_says_why_a_communicator_cannot_be_built_and_since_when() -> None:
    story = Story()
    story.arrive()
    story.order(roster(3, OTHER, ME))
    failing_for(story, 3, 10.0)
    assert story.status.note == (
        "cannot connect to the other workers of generation 3, tried once: cannot connect rank 0 of 2"
    )
    story.order(roster(4, OTHER, ME))
    failing_for(story, 4, 20.0)
    assert story.status.note == (
        "cannot connect to the other workers of generation 4, tried 3 times since 00:16:50 UTC: cannot connect rank 0 of 2"
    )
    story.follows(5, OTHER, ME, holders=(OTHER,))
    assert story.status.note == ""


def test_a_status_says_for_how_long_nothing_can_be_built_though_it_was_tried_again() -> None:
    story = Story()
    story.arrive()
    story.order(roster(3, OTHER, ME))
    failing_for(story, 3, 10.0)
    assert story.status.unconnected_s == 0.0
    failing_for(story, 3, 20.0)
    assert story.status.unconnected_s > 10.0
    story.follows(5, OTHER, ME, holders=(OTHER,))
    assert story.status.unconnected_s == 0.0


def test_a_newcomer_that_cannot_reach_the_others_makes_room() -> None:
    story = Story()
    story.arrive()
    story.order(roster(3, OTHER, ME))
    failing_for(story, 3, times.UNREACHABLE_TIMEOUT_S)
    assert not story.all(e.EndProcess)
    story.wait(1.0)
    story.order(roster(4, OTHER, ME))
    failing_for(story, 4, 10.0)
    story.wait(1.0)
    assert [end.code for end in story.all(e.EndProcess)] == [exits.UNREACHABLE]


def test_one_that_holds_the_state_stays_however_long_it_cannot_reach_the_others() -> None:
    story = Story()
    story.trains_alone(2)
    story.begin_step()
    story.tell(e.CollectiveFailed("peer lost"))
    story.order(roster(3, OTHER, ME))
    failing_for(story, 3, 2 * times.UNREACHABLE_TIMEOUT_S)
    assert not story.all(e.EndProcess)
    assert story.status.phase is WorkerPhase.BROKEN
    assert story.status.note.startswith(
        "peer lost; cannot connect to the other workers of generation 3, tried 120 times"
    )
