"""Jobs that wait for the end of others: when they start, when they never can, and what a restart keeps of that."""

from __future__ import annotations

from typing import Any

from elasticd.controller.settings import Keeping
from elasticd.protocol.messages import (
    Cancel,
    EventKind,
    Forecast,
    Forecasted,
    GetJob,
    Pause,
    Refused,
    Resume,
    StartWorker,
    Submit,
    Submitted,
)
from elasticd.protocol.model import After, Deadline, JobId, JobPhase

from .world import World, job_spec


def command(name: str, *after: str, **changes: Any) -> Any:
    """A command on one GPU; `after`: "prep-1" or "prep-1:any"."""
    wanted = tuple(After(job=JobId(text.partition(":")[0]), any=text.endswith(":any")) for text in after)
    return job_spec(name, 1, 1, restarts=0, after=wanted, **changes)


def ends(world: Any, job: str, code: int) -> None:
    """The only process of a command ends."""
    world.exit(f"{job}.0", code)
    world.turn()


def why(world: Any, job: Any) -> str:
    return str(world.ask(GetJob(job=job.id)).job.reason)


def phase(world: Any, job: Any) -> JobPhase:
    return world.ask(GetJob(job=job.id)).job.phase  # type: ignore[no-any-return]


def test_a_job_starts_when_the_job_that_it_waits_for_has_finished():
    world = World({"s1": 4})
    first, then = world.submit(command("prep")), world.submit(command("train", "prep"))
    assert then.spec.after == (After(job=first.id),)
    assert not then.record.target, "though three GPUs are idle"
    assert why(world, then) == "waits for prep-1 (starting) to finish"
    ends(world, first.id, 0)
    assert then.record.target
    assert not then.record.waits_for
    assert EventKind.RELEASED in world.kinds(then.id)


def test_a_job_that_waits_for_one_that_fails_or_is_cancelled_ends_with_the_reason_and_so_do_those_after_it():
    world = World({"s1": 4})
    first = world.submit(command("prep"))
    then, last = world.submit(command("train", first.id)), world.submit(command("test", "train"))
    whatever = world.submit(command("clean", "prep:any"))
    ends(world, first.id, 3)
    for job, awaited, became in ((then, first, "has failed"), (last, then, "was cancelled")):
        assert phase(world, job) is JobPhase.CANCELLED
        assert job.record.started_s is None
        told = [event.text for event in world.machine.cluster.history.events if event.job == job.id][-1]
        assert told == f"never started: {awaited.id}, which had to finish first, {became} (DependencyNeverSatisfied)"
        assert why(world, job) == told
    assert whatever.record.target, "it waits for the end alone"
    second = world.submit(command("prep"))
    third = world.submit(command("train", second.id))
    answer = world.ask(Cancel(job=second.id))
    assert answer.ends == (third.id,)
    assert phase(world, third) is JobPhase.CANCELLED


def test_a_job_waits_for_several_and_a_restart_of_the_controller_loses_nothing():
    world = World({"s1": 4})
    one, two = world.submit(command("one")), world.submit(command("two"))
    then = world.submit(command("then", "one", "two", "two:any"))
    assert then.spec.after == (After(job=one.id), After(job=two.id)), "each once, and to finish"
    ends(world, one.id, 0)
    assert why(world, then) == "waits for two-2 (starting) to finish"
    world.restart()
    then = world.job(then.id)
    assert then.record.waits_for == (two.id,)
    world.pass_time(60)
    assert not then.record.target
    ends(world, two.id, 0)
    assert world.job(then.id).record.target


def test_an_end_that_was_recorded_before_it_was_judged_is_judged_by_the_next_controller():
    world = World({"s1": 4})
    first, then = world.submit(command("prep")), world.submit(command("train", "prep"))
    before = dict(world.store)
    world.exit(f"{first.id}.0", 0, turn=False)
    assert (first.record.phase, then.record.target) == (JobPhase.FINISHED, ()), "the controller dies here"
    world.restart()
    assert world.job(then.id).record.target
    world.exit(f"{then.id}.0", 0)
    world.store = {key: value for key, value in before.items() if first.id not in key}
    world.restart()
    assert phase(world, then) is JobPhase.CANCELLED, "the store has lost the job that had to finish"
    assert "prep-1, which had to finish first, is not known any more" in why(world, then)


def test_a_job_that_is_waited_for_stays_in_memory_until_its_end_is_judged():
    world = World({"s1": 4}, keeping=Keeping(recent=0))
    first, then = world.submit(command("prep")), world.submit(command("train", "prep"))
    ends(world, first.id, 0)
    assert then.record.target
    assert first.id not in world.machine.cluster.jobs, "and goes to the archive then"
    answer = world.ask(Submit(spec=command("again", first.id)))
    assert isinstance(answer, Submitted), "its end is read there"
    assert world.job(answer.job).record.target


def test_what_can_never_start_is_refused_at_once():
    world = World({"s1": 1})
    first = world.submit(command("prep"))
    ends(world, first.id, 1)
    answer = world.ask(Submit(spec=command("train", "prep-1")))
    assert isinstance(answer, Refused)
    assert answer.reason.startswith(
        "prep-1 has failed, so a job that waits for it to finish would never start; `--after"
    )
    assert isinstance(world.ask(Submit(spec=command("train", "prep-1:any"))), Submitted)
    assert world.ask(Submit(spec=command("train", "none"))).reason == "there is no job 'none'"
    dated = command("train", "prep-1:any", deadline=Deadline(in_s=60.0))
    assert "no deadline can be promised" in world.ask(Submit(spec=dated)).reason


def test_a_dry_run_tells_what_a_job_would_wait_for():
    world = World({"s1": 1})
    world.submit(command("prep"))
    told = world.ask(Forecast(spec=command("train", "prep")))
    assert isinstance(told, Forecasted)
    assert (told.reason, told.notes) == ("", ("waits for prep-1 (starting) to finish",))


def test_an_explanation_names_the_job_that_has_to_end_first():
    world = World({"s1": 4})
    world.submit(command("prep"))
    then = world.submit(command("train", "prep"))
    told = world.ask(GetJob(job=then.id, explain=True)).explanation
    assert told.reasons[0] == "waits for prep-1 (starting) to finish"
    (remedy,) = [each for each in told.remedies if each.kind == "after"]
    assert (remedy.text, remedy.share_gpus) == ("prep-1 finishes", 1)


def test_a_job_that_is_held_and_waits_needs_both_to_end():
    world = World({"s1": 4})
    first, then = world.submit(command("prep")), world.submit(command("train", "prep"))
    world.ask(Pause(job=then.id, hold=True))
    ends(world, first.id, 0)
    assert not then.record.target
    world.ask(Resume(job=then.id))
    assert then.record.target
    assert [m for m in world.messages(StartWorker) if m.job == then.id]
