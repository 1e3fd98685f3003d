"""Jobs that users pause, hold and release: the effect on their GPUs, their state and their place in the queue."""

from __future__ import annotations

from typing import Any

import pytest

from elasticd.protocol.exits import OTHER_CODE, UNLIKE
from elasticd.protocol.messages import (
    Cancel,
    Cancelled,
    Checkpoint,
    Checkpointed,
    EventKind,
    Forecast,
    GetJob,
    Pause,
    Paused,
    Refused,
    Requeue,
    Requeued,
    Resume,
    Resumed,
    SaveAll,
    Saving,
    Scale,
    StartWorker,
    StopWorker,
    Submit,
    Submitted,
    Withholding,
    WriteCheckpoint,
)
from elasticd.protocol.model import Deadline, JobId, JobPhase, ResumeFrom, WorkerPhase
from elasticd.protocol.principals import Principal, Role

from .world import World, job_spec, one_running

ALICE = Principal(role=Role.USER, name="alice", account="alice")
BOB = Principal(role=Role.USER, name="bob", account="bob")
OLGA = Principal(role=Role.OPERATOR, name="olga", account="olga")


def saves(world: Any, job: Any, step: int) -> None:
    """The workers of a preempted job save the state after `step`, and end."""
    for worker in world.running(job.id):
        status = world.find(worker)[1].status
        world.report(worker, WorkerPhase.TRAINING, status.generation, step, saved=step)
    world.reap()


def paused(world: Any, step: int = 10) -> Any:
    """A job that has trained on two GPUs, was paused, and has saved its state."""
    job = one_running(world, gpus=2, step=step)
    world.ask(Pause(job=job.id))
    saves(world, job, step)
    return job


def reason(world: Any, job: Any, who: Any = OLGA) -> str:
    return str(world.ask(GetJob(job=job.id), who=who).job.reason)


def test_a_job_that_is_paused_saves_its_state_and_gives_its_gpus_to_others():
    world = World({"s1": 2})
    job = one_running(world, gpus=2)
    other = world.submit(job_spec("other", 2, 2))
    assert not other.record.target
    assert world.ask(Pause(job=job.id)) == Paused(job=job.id)
    assert all(stop.save for stop in world.messages(StopWorker))
    assert reason(world, job).startswith("saves its state; at most 30 s more; paused: `elasticctl resume digits-1`")
    saves(world, job, 10)
    assert job.record.phase is JobPhase.PENDING
    assert (job.record.target, tuple(job.workers), job.record.saved_step) == ((), (), 10)
    assert len(other.record.target) == 2
    view = world.ask(GetJob(job=job.id)).job
    assert (view.withheld.how, view.saved_step) == (Withholding.PAUSE, 10)
    assert {EventKind.PAUSED, EventKind.PREEMPTED} <= set(world.kinds(job.id))


def test_a_paused_job_does_not_run_again_before_it_is_resumed_whatever_happens():
    world = World({"s1": 2})
    job = paused(world)
    world.restart()
    world.ask(Scale(job=job.id, share=1))
    world.pass_time(600)
    world.sent.clear()
    assert not job.record.target
    assert world.ask(Resume(job=job.id)).before.how is Withholding.PAUSE
    assert {start.checkpoint_step for start in world.messages(StartWorker)} == {10}
    assert world.job(job.id).record.withheld is None
    assert EventKind.RESUMED in world.kinds(job.id)


def test_a_resumed_job_has_its_old_place_in_the_queue():
    world = World({"s1": 2}, policy="fifo")
    job = paused(world)
    running = world.submit(job_spec("running", 2, 2))
    world.settle(running.id)
    later = world.submit(job_spec("later", 2, 2))
    world.ask(Resume(job=job.id))
    world.ask(Cancel(job=running.id))
    world.reap()
    assert job.record.target
    assert not later.record.target


def test_a_pending_job_is_held_and_starts_when_it_is_released():
    world = World({"s1": 2})
    running = world.submit(job_spec("running", 2, 2))
    world.settle(running.id)
    job = world.submit(job_spec(low=2, high=2))
    assert not world.ask(Pause(job=job.id, hold=True)).runs
    world.ask(Cancel(job=running.id))
    world.reap()
    assert not job.record.target
    assert reason(world, job) == "held: `elasticctl release digits-2` lets it run again"
    world.ask(Resume(job=job.id))
    assert job.record.target


def test_a_running_job_that_is_held_runs_on_and_does_not_start_again():
    world = World({"s1": 2}, policy="srtf")
    job = world.submit(job_spec("long", 2, 2, max_steps=10_000))
    world.settle(job.id)
    assert world.ask(Pause(job=job.id, hold=True)).runs
    assert job.record.phase is JobPhase.RUNNING
    assert reason(world, job).startswith("held: it runs on, and does not start again")
    short = world.submit(job_spec("short", 2, 2, max_steps=1, throughput={2: 1000.0}))
    assert not job.record.target
    saves(world, job, 10)
    world.settle(short.id)
    world.ask(Cancel(job=short.id))
    world.reap()
    world.pass_time(60)
    assert not job.record.target
    world.ask(Resume(job=job.id))
    assert job.record.target


def test_who_pauses_a_held_job_stops_it_and_who_holds_a_paused_one_changes_nothing():
    world = World({"s1": 2})
    job = one_running(world, gpus=2)
    world.ask(Pause(job=job.id, hold=True))
    world.ask(Pause(job=job.id))
    assert job.record.withheld.how is Withholding.PAUSE
    assert world.ask(Pause(job=job.id, hold=True)).before == job.record.withheld
    assert world.ask(Pause(job=job.id)).before == job.record.withheld
    assert world.kinds(job.id).count(EventKind.PAUSED) == 1


def test_what_an_operator_has_paused_only_operators_let_go():
    world = World({"s1": 2})
    job = world.submit(job_spec(), ALICE)
    world.settle(job.id)
    world.ask(Pause(job=job.id), who=OLGA)
    assert reason(world, job, ALICE).endswith("paused by operator olga: `elasticctl resume digits-1` lets it run again")
    answer = world.ask(Resume(job=job.id), who=ALICE)
    assert answer.not_allowed
    assert "only operators" in answer.reason
    assert world.ask(Pause(job=job.id), who=ALICE).before == job.record.withheld
    assert isinstance(world.ask(Resume(job=job.id), who=OLGA), Resumed)


def test_a_user_resumes_his_own_job():
    world = World({"s1": 2})
    job = world.submit(job_spec(), ALICE)
    world.ask(Pause(job=job.id), who=ALICE)
    assert world.ask(Resume(job=job.id), who=BOB).not_allowed
    assert isinstance(world.ask(Resume(job=job.id), who=ALICE), Resumed)


def test_a_command_without_a_state_is_not_paused_and_one_that_is_over_neither():
    world = World({"s1": 2})
    job = world.submit(job_spec("plain", 2, 2, restarts=0))
    for worker in world.running(job.id):
        assert worker
    answer = world.ask(Pause(job=job.id))
    assert isinstance(answer, Refused)
    assert "its state cannot be saved" in answer.reason
    assert job.record.target
    world.ask(Cancel(job=job.id))
    assert "is over already" in world.ask(Pause(job=job.id)).reason
    assert "is over already" in world.ask(Resume(job=job.id)).reason


def test_to_resume_a_job_that_nobody_has_paused_changes_nothing():
    world = World({"s1": 2})
    job = one_running(world, gpus=1)
    before = job.record
    assert world.ask(Resume(job=job.id)) == Resumed(job=job.id)
    assert job.record is before


def test_explain_says_that_resuming_helps_and_who_may_do_it():
    world = World({"s1": 2})
    job = paused(world)
    found = world.ask(GetJob(job=job.id, explain=True)).explanation
    assert found.reasons == ("paused: `elasticctl resume digits-1` lets it run again",)
    assert [(one.kind, one.command, one.by) for one in found.remedies] == [("resume", "elasticctl resume digits-1", "")]
    assert found.remedies[0].share_gpus


def test_a_controller_that_has_just_started_pauses_when_it_has_heard_of_its_servers():
    world = World({"s1": 2})
    job = one_running(world, gpus=2)
    world.restart(hello=False)
    assert world.ask(Pause(job=job.id), request_id="early") is None
    world.hello("s1")
    world.turn()
    assert world.ask(Pause(job=job.id), request_id="early") == Paused(job=job.id)


@pytest.mark.parametrize("policy", ["elastic", "max-min"])
def test_the_promise_of_a_paused_job_breaks_and_may_hold_again(policy: str):
    world = World({"s1": 2}, policy=policy)
    spec = job_spec("due", 1, 2, max_steps=100, throughput={1: 1.0, 2: 2.0}, deadline=Deadline(in_s=10_000.0))
    answer = world.ask(Submit(spec=spec))
    job = world.job(answer.job)
    world.settle(job.id, step=3)
    world.ask(Pause(job=job.id))
    texts = [event.text for event in world.machine.cluster.history.events if event.kind is EventKind.ENDANGERED]
    assert texts, world.story()
    assert texts[-1].endswith("; it is paused")
    saves(world, job, 3)
    world.ask(Resume(job=job.id))
    world.settle(job.id, step=4)
    assert world.kinds(job.id)[-1] is not EventKind.ENDANGERED


def cancelling(world: Any, **changes: Any) -> Any:
    """A training job on two GPUs that is being cancelled."""
    job = one_running(world, gpus=2, **changes)
    assert world.ask(Cancel(job=job.id, save=True)) == Cancelled(job=job.id, saving=True)
    return job


def test_a_cancelled_job_is_over_when_its_state_is_saved_and_says_at_which_step():
    world = World({"s1": 2})
    job = cancelling(world)
    assert all(stop.save for stop in world.messages(StopWorker))
    assert not job.final
    assert reason(world, job).endswith("is being cancelled")
    saves(world, job, 11)
    assert job.record.phase is JobPhase.CANCELLED
    assert (job.record.saved_step, job.record.reason) == (11, "cancelled, after 12 steps, its state is saved")
    assert world.kinds(job.id)[-1] is EventKind.CANCELLED
    assert EventKind.CANCELLING in world.kinds(job.id)


def test_a_cancelled_job_that_cannot_save_is_over_all_the_same_and_says_what_is_lost():
    world = World({"s1": 2})
    job = cancelling(world)
    world.reap()
    assert job.record.phase is JobPhase.CANCELLED
    assert job.record.reason == "cancelled, after 11 steps; nothing of that is saved"


def test_cancelled_again_without_saving_it_is_over_at_once():
    world = World({"s1": 2})
    job = cancelling(world)
    assert world.ask(Cancel(job=job.id, save=True)) == Cancelled(job=job.id, saving=True)
    assert "is being cancelled" in world.ask(Resume(job=job.id)).reason
    world.sent.clear()
    assert world.ask(Cancel(job=job.id)) == Cancelled(job=job.id)
    assert job.record.phase is JobPhase.CANCELLED
    assert not any(stop.save for stop in world.messages(StopWorker))


def test_the_next_controller_ends_a_job_that_is_being_cancelled():
    world = World({"s1": 2})
    name = cancelling(world).id
    world.restart()
    saves(world, world.job(name), 12)
    assert world.job(name).record.phase is JobPhase.CANCELLED
    assert world.job(name).record.saved_step == 12


def test_what_has_nothing_to_save_is_cancelled_at_once():
    world = World({"s1": 2})
    plain = world.submit(job_spec("plain", 2, 2, restarts=0))
    assert world.ask(Cancel(job=plain.id, save=True)) == Cancelled(job=plain.id)
    world.reap()
    job = paused(world)
    assert world.ask(Cancel(job=job.id, save=True)) == Cancelled(job=job.id)
    assert job.record.saved_step == 10
    assert "is over already: it was cancelled" in world.ask(Cancel(job=job.id, save=True)).reason


def test_before_the_cluster_is_stopped_all_save_that_can_and_nobody_gets_gpus():
    world = World({"s1": 4})
    job = one_running(world, gpus=2)
    plain = world.submit(job_spec("plain", 1, 1, restarts=0))
    waits = world.submit(job_spec("waits", 4, 4))
    assert world.ask(SaveAll(for_s=30.0)) == Saving(jobs=(job.id,))
    assert world.ask(SaveAll(for_s=30.0)) == Saving(jobs=(job.id,)), "who asks again changes nothing"
    saves(world, job, 12)
    assert world.ask(SaveAll(for_s=30.0)) == Saving(jobs=())
    assert (job.record.target, job.record.saved_step) == ((), 12)
    assert plain.record.target, "what saves nothing is left alone"
    world.pass_time(20)
    assert not job.record.target
    assert not waits.record.target
    world.pass_time(15)
    assert job.record.target, "whoever wanted to stop the cluster has thought better of it"


def test_a_controller_that_is_started_afterwards_lets_all_run_again():
    world = World({"s1": 2})
    job = one_running(world, gpus=2)
    world.ask(SaveAll(for_s=30.0))
    saves(world, job, 12)
    world.restart()
    assert world.job(job.id).record.target


def test_only_operators_stop_all_jobs():
    assert World().ask(SaveAll(for_s=1.0), who=ALICE).not_allowed


def test_a_job_that_has_no_checkpoint_starts_again_from_the_beginning_and_says_so():
    for saved, words in ((None, "from the beginning"), (7, "from its last checkpoint, of step 7")):
        world = World({"s1": 1})
        job = one_running(world, gpus=1)
        (worker,) = world.running(job.id)
        world.report(worker, WorkerPhase.TRAINING, job.record.committed, 11, saved=saved)
        world.exit(worker, -9)
        texts = [event.text for event in world.machine.cluster.history.events if event.kind is EventKind.RESTARTED]
        assert texts[-1].startswith(f"starts again {words}: "), texts


def ended(world: Any, step: int = 10) -> Any:
    """A job of alice that was cancelled with its state saved after `step`."""
    job = world.submit(job_spec("first", 1, 2), ALICE)
    world.settle(job.id, step)
    world.ask(Cancel(job=job.id, save=True), who=ALICE)
    saves(world, job, step)
    assert job.final
    return job


def goes_on(world: Any, source: str, who: Any = ALICE, any_code: bool = False, **changes: Any) -> Any:
    spec = job_spec("second", 1, 2, resume=ResumeFrom(job=JobId(source), any_code=any_code), **changes)
    return world.ask(Submit(spec=spec), who=who)


def test_a_job_goes_on_from_the_checkpoint_of_one_that_is_over_and_needs_it():
    world = World({"s1": 2})
    before = ended(world)
    world.sent.clear()
    job = world.job(goes_on(world, before.id).job)
    resume = job.spec.resume
    assert (resume.job, resume.uid, resume.step, resume.seeds) == (
        before.id,
        before.uid,
        10,
        f"{before.id} {before.uid}",
    )
    assert job.record.saved_step == 10
    assert {(start.checkpoint_step, start.spec.resume) for start in world.messages(StartWorker)} == {(10, resume)}
    assert job.uid != before.uid
    texts = [event.text for event in world.machine.cluster.history.events if event.job == job.id]
    assert texts[0] == f"submitted by alice: 1 to 2 GPUs, goes on after 11 steps of {before.id}"


def test_a_forecast_tells_which_checkpoint_a_submission_would_go_on_from():
    world = World({"s1": 2})
    before = ended(world)
    spec = job_spec("second", 1, 2, resume=ResumeFrom(job=before.id))
    told = world.ask(Forecast(spec=spec), who=ALICE)
    assert told.resume == world.job(world.ask(Submit(spec=spec), who=ALICE).job).spec.resume
    assert (told.reason, told.resume.step) == ("", 10)
    assert world.ask(Forecast(spec=spec), who=BOB).not_allowed, "as the submission would be"


def test_a_job_that_goes_on_twice_has_the_seeds_of_the_first():
    world = World({"s1": 2})
    before = ended(world)
    job = world.job(goes_on(world, before.id).job)
    world.settle(job.id, 20)
    world.ask(Cancel(job=job.id, save=True), who=ALICE)
    saves(world, job, 20)
    third = world.job(goes_on(world, job.id).job)
    assert (third.spec.resume.step, third.spec.resume.seeds) == (20, f"{before.id} {before.uid}")


def test_what_cannot_be_gone_on_from_is_refused_with_what_to_do():
    world = World({"s1": 2})
    before = ended(world)
    running = one_running(world, gpus=1)
    assert goes_on(world, before.id, BOB).not_allowed
    assert "is not over: `elasticctl cancel" in goes_on(world, running.id, OLGA).reason
    world.ask(Cancel(job=running.id))
    assert "has saved no checkpoint" in goes_on(world, running.id, OLGA).reason
    assert "the checkpoints of first-1 are of account alice alone" in goes_on(world, before.id, OLGA).reason
    other = goes_on(world, before.id, virtual_workers=16)
    assert other.bad_input
    assert "virtual_workers: first-1 has 8, not 16" in other.reason
    assert isinstance(goes_on(world, before.id, virtual_workers=16, any_code=True), Submitted)
    for wrong in (ResumeFrom(), ResumeFrom(directory="here"), ResumeFrom(job=JobId("x"), directory="/x")):
        assert world.ask(Submit(spec=job_spec(resume=wrong))).bad_input


def test_a_finished_job_is_gone_on_from_only_with_more_to_do():
    world = World({"s1": 2})
    job = one_running(world, gpus=1)
    (worker,) = world.running(job.id)
    world.report(worker, WorkerPhase.FINISHED, job.record.committed, 10, saved=10)
    world.exit(worker, 0)
    assert job.record.phase is JobPhase.FINISHED
    spec = job_spec(resume=ResumeFrom(job=job.id))
    assert "has finished: give it more to do" in world.ask(Submit(spec=spec)).reason
    more = job_spec(resume=ResumeFrom(job=job.id), command=("python", "train.py", "--epochs", "9"))
    assert isinstance(world.ask(Submit(spec=more)), Submitted)


@pytest.mark.parametrize("code", [OTHER_CODE, UNLIKE])
def test_a_job_whose_code_or_data_are_not_those_of_the_checkpoint_fails_at_once(code: int):
    world = World({"s1": 2, "s2": 2})
    job = world.job(goes_on(world, ended(world).id).job)
    world.arrive(job.id)
    world.exit(world.running(job.id)[0], code, f"exit code {code}: train.py: not the code that the job began with")
    assert job.record.phase is JobPhase.FAILED
    assert job.record.reason.startswith("cannot go on from first-1: ")
    assert "train.py: not the code" in job.record.reason


def test_a_directory_of_checkpoints_is_taken_as_it_is_told():
    world = World({"s1": 2})
    resume = ResumeFrom(directory="/nas/checkpoints/digits-3.ab", step=41, seeds="digits-3 ab")
    job = world.submit(job_spec(resume=resume))
    assert (job.spec.resume, job.record.saved_step) == (resume, 41)


def test_a_requeued_job_saves_its_state_and_goes_on_when_it_is_its_turn():
    world = World({"s1": 2})
    job = one_running(world, gpus=2)
    assert world.ask(Requeue(job=job.id)) == Requeued(job=job.id)
    assert all(stop.save for stop in world.messages(StopWorker))
    world.sent.clear()
    saves(world, job, 12)
    assert {start.checkpoint_step for start in world.messages(StartWorker)} == {12}
    assert job.record.restarts == 0
    assert EventKind.REQUEUED in world.kinds(job.id)


def test_a_command_is_requeued_as_often_as_it_may_be_run_again():
    world = World({"s1": 2})
    job = world.submit(job_spec("plain", 2, 2, restarts=1))
    assert isinstance(world.ask(Requeue(job=job.id)), Requeued)
    assert job.record.restarts == 1
    world.reap()
    assert job.record.target
    assert "may not be safe to run twice" in world.ask(Requeue(job=job.id)).reason
    world.ask(Cancel(job=job.id))
    waits = paused(world)
    assert "waits for its turn already" in world.ask(Requeue(job=waits.id)).reason


def test_a_held_job_that_is_requeued_waits_for_its_release():
    world = World({"s1": 2})
    job = one_running(world, gpus=2)
    world.ask(Pause(job=job.id, hold=True))
    world.ask(Requeue(job=job.id))
    saves(world, job, 12)
    world.pass_time(30)
    assert not job.record.target
    world.ask(Resume(job=job.id))
    assert job.record.target


def test_a_checkpoint_is_asked_of_the_leader_until_it_is_there_and_told_with_its_path():
    world = World({"s1": 2})
    job = one_running(world, gpus=2, step=10)
    assert world.ask(Checkpoint(job=job.id)) == Checkpointed(job=job.id, step=10)
    (asked,) = world.messages(WriteCheckpoint)
    assert (asked.worker, asked.step, asked.uid) == (job.committed_order.roster.leader, 10, job.uid)
    assert world.ask(Checkpoint(job=job.id, step=10)).saved is None
    world.report(asked.worker, WorkerPhase.TRAINING, job.record.committed, 12, saved=11, saved_file="/nas/step-11.pt")
    found = world.ask(Checkpoint(job=job.id, step=10))
    assert found == Checkpointed(job=job.id, step=10, saved=11, file="/nas/step-11.pt")
    assert world.ask(GetJob(job=job.id)).job.saved_file == "/nas/step-11.pt"
    assert len(world.messages(WriteCheckpoint)) == 2, "nobody asks for what is there"
    assert world.kinds(job.id).count(EventKind.SAVED) == 1


def test_a_checkpoint_of_what_has_no_state_is_refused_and_of_what_waits_it_is_there():
    world = World({"s1": 2})
    plain = world.submit(job_spec("plain", 2, 2, restarts=0))
    assert "there is no state to save" in world.ask(Checkpoint(job=plain.id)).reason
    world.ask(Cancel(job=plain.id))
    world.reap()
    assert "is over already" in world.ask(Checkpoint(job=plain.id)).reason
    job = paused(world)
    assert world.ask(Checkpoint(job=job.id)).saved == 10


def test_what_goes_on_from_a_job_that_has_saved_nothing_of_its_own_begins_with_what_that_began_with():
    world = World({"s1": 2})
    before = ended(world)
    second = world.job(goes_on(world, before.id).job)
    world.ask(Cancel(job=second.id), who=ALICE)
    third = world.job(goes_on(world, second.id).job)
    assert third.spec.resume == second.spec.resume
    assert third.spec.resume.job == before.id


def test_a_preempted_job_whose_growth_was_held_back_is_free_to_begin_anywhere():
    world = World({"s1": 2})
    job = one_running(world, gpus=1)
    job.hold(world.now, 600.0)
    world.ask(Pause(job=job.id))
    saves(world, job, 10)
    assert (job.hold_until, job.record.held) == (None, False)
    world.ask(Resume(job=job.id))
    assert not job.keeps_its_size
