"""A worker's work between two steps: epochs, checkpoints, leaving."""

from __future__ import annotations

from elasticd.protocol import times
from elasticd.protocol.model import WorkerPhase
from elasticd.worker import events as e

from .worker_stories import STEPS, STEPS_PER_EPOCH, Story


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


def test_a_checkpoint_that_is_wanted_now_is_written_at_the_next_boundary_and_once() -> None:
    story = Story(checkpoint_every_s=600.0, checkpoint_directory="/nas/digits-1.ab")
    story.trains_alone(1)
    story.tell(e.CheckpointWanted(1))
    story.step()
    assert story.saves == [e.SaveCheckpoint(1, 1, 0, 1)]
    story.tell(e.CheckpointWanted(1))  # it is in progress
    story.step()
    story.tell(e.CheckpointSaved(1))
    story.tell(e.CheckpointWanted(1))  # it is written
    story.step()
    assert len(story.saves) == 1
    assert (story.status.saved, story.status.saved_file) == (
        1,
        "/nas/digits-1.ab/generation-00000001-step-000000000001.pt",
    )


def test_the_first_checkpoint_of_a_large_model_is_given_time_before_anybody_has_measured_it() -> None:
    story = Story(checkpoint_every_s=60.0)
    story.tell(e.Arrived(STEPS, STEPS_PER_EPOCH, 8, state_bytes=2_000_000_000))
    story.alone()
    story.tell(e.CheckpointMissing())
    story.take()
    assert story.status.saving_s == 2_000_000_000 / times.SLOW_STORAGE_BYTES_S
    story.step()
    story.wait(60.0)
    story.tell(e.StepWanted(0))
    story.wait(7.0)
    story.tell(e.CheckpointSaved(1))
    assert story.status.saving_s == 7.0, "it is known now"


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
    """The writer skipped the second, without a report."""
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
