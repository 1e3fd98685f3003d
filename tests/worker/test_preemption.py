"""A preempted job: the worker that saves, the worker that stands by, and the ends of all."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from elasticd.protocol import times
from elasticd.protocol.messages import Commit, Prepare
from elasticd.protocol.model import GpuAddress, ServerId, WorkerId, WorkerPhase
from elasticd.worker import events as e

from .worker_stories import ME, OTHER, STEPS_PER_EPOCH, THIRD, Story, roster


def preempted(story: Story, saver: WorkerId | None) -> list[e.Instruction]:
    story.suspend(saver)
    story.tell(e.StepWanted(0))
    return list(story.take())


@pytest.mark.parametrize("saver", [None, ME, THIRD], ids=["the leader", "it", "one that has left"])
def test_a_preempted_leader_saves_and_ends(saver: WorkerId | None) -> None:
    story = Story()
    story.trains_alone(2)
    assert preempted(story, saver) == [e.SaveCheckpoint(1, 2, 0, 1)]
    story.wait(3.0)
    assert "preempted, and still writing a checkpoint since 00:16:40 UTC" in story.status.note
    story.tell(e.CheckpointSaved(1))
    assert story.take() == []
    assert story.status.saved == 2
    assert story.take() == [e.ExitScript(0)]
    story.tell(e.LoopEnded(3))  # at the process's exit
    assert story.take() == [e.Continue()]
    assert story.status.phase is WorkerPhase.TRAINING, "it has not finished"


def follower(*places: ServerId) -> Story:
    """A follower in its second step in a generation of OTHER, who leads, itself and THIRD, on these servers."""
    story = Story()
    story.trains_alone(2)
    story.begin_step()
    story.tell(e.CollectiveFailed("lost"))
    story.take()
    of = roster(5, OTHER, ME, THIRD)
    members = tuple(
        replace(member, gpu=GpuAddress(server=place, index=index))
        for index, (member, place) in enumerate(zip(of.members, places, strict=True))
    )
    story.follow(replace(of, members=members), holders=(OTHER, ME, THIRD))
    return story


A, B = ServerId("a"), ServerId("b")


@pytest.mark.parametrize(
    ("places", "saver", "stands_by"),
    [
        ((A, A, B), OTHER, True),
        ((A, B, B), OTHER, True),
        ((B, A, A), THIRD, True),
        ((A, A, A), THIRD, False),
        ((B, B, A), THIRD, False),
    ],
    ids=["beside the saver", "first of its server", "alone beside the saver", "behind another", "behind another there"],
)
def test_one_on_each_server_stands_by_while_another_saves(
    places: tuple[ServerId, ...], saver: WorkerId, stands_by: bool
) -> None:
    story = follower(*places)
    story.suspend(saver)
    story.tell(e.CollectiveFailed("peer lost"))
    assert story.take() == [e.GiveUpStep(restore_buffers=True)]
    story.wait(100.0)
    assert story.take() == ([] if stands_by else [e.ExitScript(0)])
    if stands_by:
        assert "preempted, and still standing by until the state is saved" in story.status.note
        assert story.all(e.RetireGroup) == [e.RetireGroup(5)], "the others notice at once that it does not come"


def test_nobody_stands_by_where_no_controller_sees_to_it() -> None:
    story = follower(A, B, B)
    story.suspend(OTHER, stand_by=False)
    story.tell(e.CollectiveFailed("peer lost"))
    story.wait(1.0)
    assert story.take()[-1] == e.ExitScript(0)


def standing_by() -> Story:
    story = follower(A, B, B)
    story.suspend(OTHER)
    story.tell(e.CollectiveFailed("peer lost"))
    story.take()
    return story


def test_who_stands_by_ends_when_it_hears_that_its_step_is_saved() -> None:
    story = standing_by()
    story.suspend(OTHER, saved=1)
    story.wait(1.0)
    assert story.take() == [], "it has applied a later one"
    story.suspend(OTHER, saved=2)
    story.wait(1.0)
    assert story.take() == [e.ExitScript(0)]


def test_who_stands_by_saves_when_it_is_named() -> None:
    story = standing_by()
    story.suspend(ME)
    assert story.take() == [e.SaveCheckpoint(1, 2, 0, 5)]
    story.suspend(ME)  # the agent repeats it
    assert story.take() == []
    story.tell(e.CheckpointSaved(1))
    assert story.status.saved == 2
    assert story.take() == [e.ExitScript(0)]


def test_a_saver_that_fails_tells_it_and_tries_again_as_long_as_no_other_is_named() -> None:
    story = Story()
    story.trains_alone(2)
    story.suspend()
    story.tell(e.StepWanted(0))
    story.tell(e.CheckpointFailed(1, "no space left on device"))
    assert story.status.save_failures == 1
    assert "no space left on device" in story.status.note
    story.wait(times.SAVE_RETRY_S)
    assert [save.number for save in story.saves] == [1, 2]
    story.tell(e.CheckpointFailed(2, "no space left on device"))
    story.take()
    story.wait(times.SAVE_RETRY_S)
    story.tell(e.CheckpointSaved(3))
    story.wait(1.0)
    assert story.take()[-1] == e.ExitScript(0)


def test_a_saver_that_has_failed_leaves_it_to_the_one_that_is_named_then() -> None:
    story = follower(A, B, B)
    story.suspend(ME)
    story.tell(e.CollectiveFailed("peer lost"))
    story.tell(e.CheckpointFailed(1, "no space left on device"))
    story.suspend(OTHER)
    story.wait(10 * times.SAVE_RETRY_S)
    assert [save.number for save in story.saves] == [1]
    story.suspend(ME)
    assert [save.number for save in story.saves] == [1, 2]


def test_who_stands_by_and_hears_nothing_more_ends_in_the_end() -> None:
    story = standing_by()
    story.wait(times.MOST_SAVE_S + 1.0)
    assert story.take() == [e.ExitScript(0)]


def test_what_is_durable_is_not_saved_again() -> None:
    story = Story(checkpoint_every_s=60.0)
    story.trains_alone(2)
    story.wait(60.0)
    story.tell(e.StepWanted(0))
    story.tell(e.CheckpointSaved(1))
    story.tell(e.CollectiveFailed("peer lost"))
    story.take()
    story.suspend()
    story.wait(1.0)
    assert story.take() == [e.ExitScript(0)]


def test_a_preempted_worker_without_an_agent_ends_all_the_same() -> None:
    story = Story(checkpoint_every_s=None)
    story.acknowledges = False
    story.arrive()
    story.alone()
    story.suspend()
    story.tell(e.StepWanted(0))
    story.wait(times.LAST_REPORT_TIMEOUT_S - 0.1)
    assert story.take() == []
    story.wait(0.2)
    assert story.take() == [e.ExitScript(0)]


def test_a_preempted_workers_step_is_given_up_when_the_others_have_ended() -> None:
    story = Story()
    story.trains_alone(2)
    story.begin_step()
    story.tell(e.PartComputed())
    story.suspend()
    story.wait(times.SUSPEND_PATIENCE_S - 0.1)
    assert not story.all(e.Abandon)
    story.wait(0.2)
    assert story.all(e.Abandon) == [e.Abandon(1)]
    story.tell(e.CollectiveFailed("abandoned"))
    assert story.take() == [e.GiveUpStep(restore_buffers=True), e.SaveCheckpoint(1, 2, 0, 1)]


@pytest.mark.parametrize("saver", [None, OTHER], ids=["the leader", "another"])
def test_if_the_saver_does_not_come_to_the_step_the_first_of_the_others_saves_too(saver: WorkerId | None) -> None:
    story = Story()
    story.joins()
    story.tell(e.StepWanted(1))
    story.tell(e.ValuesExchanged(1))
    story.take()
    story.epoch = 1
    story.begin_step()
    story.tell(e.PartComputed())
    story.suspend(saver)
    story.wait(times.SUSPEND_PATIENCE_S + 0.1)
    story.tell(e.CollectiveFailed("abandoned"))
    assert [type(action) for action in story.take()] == [e.GiveUpStep, e.SaveCheckpoint]


def test_patience_with_a_preempted_jobs_step_follows_from_what_steps_take() -> None:
    story = Story()
    story.trains_alone()
    for _ in range(3):
        story.step(takes_s=40.0)
    story.begin_step()
    assert story.status.longest_step_s == 40.0
    story.suspend()
    story.wait(55.0)
    assert not story.all(e.Abandon)
    story.wait(6.0)
    assert story.all(e.Abandon)


def test_a_preempted_worker_in_an_evaluation_says_what_it_waits_for() -> None:
    story = Story()
    story.trains_alone(STEPS_PER_EPOCH - 1)
    story.tell(e.StepWanted(0))
    story.suspend()
    story.wait(100.0)
    assert story.status.note == (
        "preempted, and still running the script's own code between two epochs since 00:16:40 UTC"
    )
    assert not story.all(e.EndProcess)
    story.tell(e.StepWanted(1))
    assert isinstance(story.take()[-1], e.SaveCheckpoint)


def test_a_worker_preempted_before_its_loop_ends_when_it_comes_there() -> None:
    story = Story()
    story.suspend()
    story.arrive()
    story.wait(1.0)
    assert story.take() == [e.ExitScript(0)]


def test_a_saver_that_stood_still_goes_on_saving_whatever_its_leader_commits() -> None:
    story = Story()
    story.trains_alone(2)
    story.begin_step()
    story.tell(e.CollectiveFailed("lost"))
    story.order(roster(5, OTHER, ME))
    story.tell(e.PeerSaid(Prepare(job=story.job, generation=5, attempt=1, base=0, holders=(ME,))))
    story.tell(e.GroupBuilt(5, 1))
    story.take()
    story.suspend(ME)
    assert story.take() == [e.SaveCheckpoint(1, 2, 0, 1)]
    story.tell(e.PeerSaid(Commit(job=story.job, generation=5, attempt=1)))
    assert story.take() == []
    story.tell(e.CheckpointSaved(1))
    story.wait(1.0)
    assert story.take() == [e.ExitScript(0)]


def test_how_long_the_first_pause_takes_is_not_known_and_the_controller_hears_so_at_once() -> None:
    story = Story()
    story.trains_alone(STEPS_PER_EPOCH - 1)
    story.tell(e.StepWanted(0))
    story.wait(0.01)
    assert story.all(e.SendStatus)[-1].status.longest_step_s == times.FIRST_PAUSE_S
    story.wait(3.0)
    story.epoch = 1
    for _ in range(STEPS_PER_EPOCH):
        story.step()
    assert story.status.longest_step_s == pytest.approx(3.01)
    story.tell(e.StepWanted(1))
    story.wait(1.0)
    assert story.status.longest_step_s == pytest.approx(3.01), "the second one is taken to last as long as the first"


# ------------------------------------------------------------------------------------- a divided state, which no worker has whole


def divided() -> tuple[Story, e.RunStep]:
    """A follower of two, in a step; the job's optimizer state is divided."""
    story = Story()
    story.tell(e.Arrived(12, STEPS_PER_EPOCH, 8, divided=True))
    story.alone()
    story.tell(e.CheckpointMissing())
    story.take()
    for _ in range(2):
        story.step()
    story.begin_step()
    story.tell(e.CollectiveFailed("lost"))
    story.take()
    (*_, run) = story.follow(roster(5, OTHER, ME), holders=(OTHER, ME))
    assert isinstance(run, e.RunStep)
    return story, run


def apply(story: Story, run: e.RunStep, whole: e.Whole) -> None:
    story.tell(e.PartComputed())
    story.tell(e.WordRead(run.proposal))
    story.tell(e.StepApplied(run.step, whole=whole))


def running(story: Story) -> e.RunStep:
    (*_, run) = story.take()
    assert isinstance(run, e.RunStep)
    return run


def test_a_preempted_follower_with_a_part_goes_on_until_the_whole_is_where_it_will_be_saved() -> None:
    story, run = divided()
    apply(story, run, e.Whole.NOT)
    story.suspend(OTHER, stand_by=False)
    story.tell(e.StepWanted(0))
    run = running(story)
    assert run.whole is e.Whole.NOT, "another worker saves"
    apply(story, run, e.Whole.TO_SAVE)
    story.tell(e.StepWanted(0))
    assert story.take() == [e.EndEpoch()]  # that was a checkpoint of a worker that had not heard of the preemption
    story.tell(e.StepWanted(1))
    run = running(story)
    apply(story, run, e.Whole.TO_END)
    story.tell(e.StepWanted(1))
    assert story.status.saved is None
    assert e.ExitScript(0) in story.take()


def test_a_preempted_saver_with_a_part_asks_for_the_whole_and_saves_it() -> None:
    story, run = divided()
    apply(story, run, e.Whole.NOT)
    story.suspend(ME)
    story.tell(e.StepWanted(0))
    run = running(story)
    assert run.whole is e.Whole.TO_END
    apply(story, run, e.Whole.TO_END)
    story.tell(e.StepWanted(0))
    assert [each.step for each in story.take() if isinstance(each, e.SaveCheckpoint)] == [run.step]


def test_a_preempted_worker_with_a_part_does_not_save_that_when_a_step_is_given_up() -> None:
    story, run = divided()
    apply(story, run, e.Whole.NOT)
    story.suspend(ME)
    story.tell(e.StepWanted(0))
    running(story)
    story.tell(e.CollectiveFailed("the others have ended"))
    assert story.status.saved is None
    assert e.ExitScript(0) in story.take()
    assert not story.saves


def test_a_worker_that_is_alone_has_the_whole() -> None:
    story = Story()
    story.tell(e.Arrived(12, STEPS_PER_EPOCH, 8, divided=True))
    story.alone()
    story.tell(e.CheckpointMissing())
    story.take()
    story.step()
    assert [type(each) for each in preempted(story, ME)] == [e.SaveCheckpoint]


def test_a_due_checkpoint_of_a_divided_state_follows_a_step_after_which_it_is_whole() -> None:
    story = Story(checkpoint_every_s=0.5)
    story.tell(e.Arrived(12, STEPS_PER_EPOCH, 8, divided=True))
    story.alone()
    story.tell(e.CheckpointMissing())
    story.take()
    run = story.begin_step()
    story.now += 1.0
    apply(story, run, e.Whole.NOT)
    story.tell(e.StepWanted(0))
    run = running(story)
    assert not story.saves
    assert run.whole is e.Whole.TO_SAVE
    apply(story, run, e.Whole.TO_SAVE)
    story.tell(e.StepWanted(0))
    assert [save.step for save in story.saves] == [run.step]
