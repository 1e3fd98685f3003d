"""The worker's machine: what the training thread is told to do, told in stories of one worker."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from elasticd.protocol import exits, times
from elasticd.protocol.errors import InvalidTransition
from elasticd.protocol.messages import Commit, Prepare
from elasticd.protocol.model import GpuAddress, ServerId, WorkerId, WorkerPhase
from elasticd.worker import events as e

_spec = importlib.util.spec_from_file_location("worker_stories", Path(__file__).with_name("worker_stories.py"))
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _module
_spec.loader.exec_module(_module)
Story, roster = _module.Story, _module.roster
ME, OTHER, THIRD, STEPS, STEPS_PER_EPOCH = (
    _module.ME,
    _module.OTHER,
    _module.THIRD,
    _module.STEPS,
    _module.STEPS_PER_EPOCH,
)


# ---------------------------------------------------------------------------------------------------------- the beginning


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


# ----------------------------------------------------------------------------------------------------------- between steps


def test_an_epoch_ends_where_its_steps_end_and_the_job_where_all_do() -> None:
    story = Story()
    story.trains_alone(STEPS_PER_EPOCH - 1)
    story.tell(e.StepWanted(0))
    assert story.take() == [e.EndEpoch()]
    for _ in range(STEPS - STEPS_PER_EPOCH):
        story.step()
    story.tell(e.StepWanted(2))
    assert story.take() == [e.EndEpoch()]


def test_the_leader_saves_when_it_is_time_and_tells_what_that_took() -> None:
    story = Story(checkpoint_every_s=60.0)
    story.trains_alone(1)
    story.wait(60.0)
    story.tell(e.StepWanted(0))
    save, run = story.take()
    assert save == e.SaveCheckpoint(1, 1, 0, 1)
    assert isinstance(run, e.RunStep)
    story.wait(7.0)
    story.tell(e.CheckpointSaved(1))
    assert (story.status.saved, story.status.saving_s) == (1, 7.0)


def test_a_follower_does_not_save() -> None:
    story = Story(checkpoint_every_s=60.0)
    story.joins()
    story.wait(100.0)
    story.tell(e.StepWanted(1))
    story.tell(e.ValuesExchanged(1))
    assert not [each for each in story.take() if isinstance(each, e.SaveCheckpoint)]


def test_a_checkpoint_that_cannot_be_written_is_told_until_one_can() -> None:
    story = Story(checkpoint_every_s=60.0)
    story.trains_alone(1)
    story.wait(60.0)
    story.tell(e.StepWanted(0))
    story.tell(e.CheckpointFailed(1, "no space left on device"))
    assert story.status.note == "no checkpoint of step 1: no space left on device"
    assert story.status.saved is None


def test_an_older_checkpoint_that_is_still_written_counts_though_a_newer_one_has_failed() -> None:
    story = Story(checkpoint_every_s=60.0)
    story.trains_alone(1)
    for _ in range(2):
        story.wait(60.0)
        story.step()
    assert [save.number for save in story.saves] == [1, 2]
    story.tell(e.CheckpointFailed(2, "it could not be copied: no memory"))
    assert (story.status.saved, story.status.note) == (
        None,
        "no checkpoint of step 2: it could not be copied: no memory",
    )
    story.tell(e.CheckpointSaved(1))
    assert (story.status.saved, story.status.saved_generation) == (1, 1)


def test_a_checkpoint_that_was_left_out_is_not_waited_for() -> None:
    """The writer left out the second, and tells nothing of it."""
    story = Story(checkpoint_every_s=60.0)
    story.trains_alone(0)
    for _ in range(3):
        story.wait(60.0)
        story.step()
    story.tell(e.CheckpointSaved(1))
    story.suspend()
    story.tell(e.StepWanted(0))
    assert [save.number for save in story.saves] == [1, 2, 3, 4]
    story.take()
    story.tell(e.CheckpointSaved(3))
    story.wait(10.0)
    assert story.take() == []
    story.tell(e.CheckpointSaved(4))
    story.wait(1.0)
    assert story.take() == [e.ExitScript(0)]


def test_a_worker_that_is_no_longer_wanted_leaves_between_two_steps() -> None:
    story = Story()
    story.joins()
    story.tell(e.StepWanted(1))
    story.tell(e.ValuesExchanged(1))
    story.take()
    story.epoch = 1
    story.begin_step()
    story.tell(e.PartComputed())
    story.tell(e.WordRead(4))  # a generation that it has not prepared
    story.tell(e.StepApplied(6))
    story.tell(e.StepWanted(1))
    assert story.take() == []
    assert story.status.phase is WorkerPhase.LEFT
    assert story.take() == [e.ExitScript(0)]


# --------------------------------------------------------------------------------------------------------------- failures


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


# -------------------------------------------------------------------------------------------------------------- preemption


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
    """In its second step in a generation of OTHER, who leads, itself and THIRD, which are on these servers."""
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
        "preempted, and still running the script's own code between two steps since 00:16:40 UTC"
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


# ------------------------------------------------------------------------------------------------------------------ the end


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
    """Its agent may be new. Its thread for control sleeps in between."""
    story = Story()
    story.trains_alone(2)
    story.tell(e.LoopEnded(3))
    story.wait(1.0)
    story.others.clear()
    story.wait(60.0)
    assert {type(action) for action in story.others} == {e.SendStatus}
    assert len(story.others) <= 60.0 / times.WORKER_HEARTBEAT_S + 1


# ------------------------------------------------------------------------------------------------------------------ limits


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


def test_an_exchange_that_was_given_up_too_early_is_given_twice_the_time() -> None:
    story = Story(limits=e.Limits(step_timeout_s=150.0))
    story.trains_alone(2)
    story.begin_step()
    for generation, limit_s in ((2, 150.0), (3, 300.0), (4, 600.0)):
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


# ---------------------------------------------------------------------------------------------------------- communicators


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
    """Every attempt at `generation`, which another leads, fails after ten seconds."""
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


# ---------------------------------------------------------------------------------------------------------------- mistakes


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


# ------------------------------------------------------------------------------------------- absence, and after the end


def test_a_process_that_was_stopped_itself_does_not_take_its_thread_for_hung() -> None:
    """SIGSTOP, a frozen container: its own time ran on, its thread's did not."""
    story = Story()
    story.trains_alone(5)
    story.begin_step()
    story.wait(10.0)
    story.now += 2 * times.FIRST_STEP_TIMEOUT_S
    story.tell(e.TimePassed())
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


@pytest.mark.parametrize("fact", [e.StepWanted(3), e.Arrived(STEPS, STEPS_PER_EPOCH)])
def test_a_script_that_wants_to_train_on_after_its_end_is_refused_and_does_not_wait_for_ever(fact: e.Event) -> None:
    story = Story()
    story.trains_alone(2)
    story.tell(e.LoopEnded(3))
    story.wait(1.0)
    with pytest.raises(InvalidTransition, match="is over"):
        story.tell(fact)


def test_a_checkpoint_that_cannot_be_read_is_told_by_who_begins_anew() -> None:
    story = Story()
    story.arrive()
    story.alone()
    story.tell(e.CheckpointMissing("/checkpoints cannot be listed: stale file handle"))
    assert story.take() == [e.EnterLoop(0)]
    assert "stale file handle" in story.status.note
