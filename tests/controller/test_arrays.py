"""Arrays of jobs of which a limited number runs at a time."""

from __future__ import annotations

from typing import Any

from elasticd.protocol.messages import Cancel, GetJob, Pause, Resume, Submit
from elasticd.protocol.model import After, ArrayElement, JobId

from .world import World, job_spec


def element(index: int, most: int | None = 2, array: str = "a1", **changes: Any) -> Any:
    place = ArrayElement(array=array, name="sweep", index=index, text=f"0-4%{most}", size=5, most=most)
    return job_spec(f"sweep-{index}", 1, 1, restarts=0, array=place, **changes)


def submitted(world: Any, count: int = 5, **changes: Any) -> list[Any]:
    return [world.submit(element(index, **changes)) for index in range(count)]


def with_gpus(world: Any, jobs: list[Any]) -> list[int]:
    return [number for number, job in enumerate(jobs) if world.job(job.id).record.target]


def test_as_many_jobs_of_an_array_run_as_may_and_the_next_one_follows_when_one_ends():
    world = World({"s1": 4})
    jobs = submitted(world)
    other = world.submit(job_spec("other", 1, 1, restarts=0))
    assert with_gpus(world, jobs) == [0, 1]
    assert other.record.target, "GPUs that the array leaves are for others"
    shown = world.ask(GetJob(job=jobs[2].id, explain=True))
    assert shown.job.reason == "waits for its turn: 2 of sweep[0-4%2] may run at a time"
    assert shown.explanation.reasons[0] == shown.job.reason
    (remedy,) = shown.explanation.remedies
    assert (remedy.text, remedy.share_gpus) == ("fewer than 2 others of sweep have GPUs", 1)
    world.exit(f"{jobs[0].id}.0", 0)
    assert with_gpus(world, jobs) == [1, 2]
    world.exit(f"{jobs[2].id}.0", 1)
    assert with_gpus(world, jobs) == [1, 3], "however it ends"
    world.ask(Cancel(job=jobs[1].id))
    world.reap()
    assert with_gpus(world, jobs) == [3, 4]


def test_a_restart_of_the_controller_changes_nothing_in_an_array():
    world = World({"s1": 4})
    jobs = submitted(world)
    world.exit(f"{jobs[1].id}.0", 0)
    assert with_gpus(world, jobs) == [0, 2]
    world.restart()
    world.pass_time(30)
    assert with_gpus(world, jobs) == [0, 2]
    world.exit(f"{jobs[0].id}.0", 0)
    assert with_gpus(world, jobs) == [2, 3]


def test_a_job_that_is_held_or_waits_for_another_one_takes_no_place():
    world = World({"s1": 4})
    world.submit(job_spec("prep", 1, 1, restarts=0))
    first = [world.submit(element(0, after=(After(job=JobId("prep")),))), world.submit(element(1))]
    jobs = [*first, *(world.submit(element(index)) for index in (2, 3))]
    assert with_gpus(world, jobs) == [1, 2]
    world.ask(Pause(job=jobs[3].id, hold=True))
    world.exit(f"{jobs[1].id}.0", 0)
    assert with_gpus(world, jobs) == [2], "the others are held, or wait"
    world.ask(Resume(job=jobs[3].id))
    assert with_gpus(world, jobs) == [2, 3]
    world.exit("prep-1.0", 0)
    assert with_gpus(world, jobs) == [2, 3], "two have GPUs already"
    assert "may run at a time" in world.ask(GetJob(job=jobs[0].id)).job.reason


def test_arrays_do_not_limit_each_other_and_one_without_a_limit_has_none():
    world = World({"s1": 9})
    first, second, free = (
        submitted(world, 3, array=array, most=most) for array, most in (("a", 1), ("b", 2), ("c", None))
    )
    assert [with_gpus(world, jobs) for jobs in (first, second, free)] == [[0], [0, 1], [0, 1, 2]]


def test_an_impossible_element_is_refused():
    for place in (
        ArrayElement(array="a", name="sweep", index=0, text="0", size=0),
        ArrayElement(array="a", name="sweep", index=0, text="0", size=1, most=0),
        ArrayElement(array="", name="sweep", index=0, text="0", size=1),
        ArrayElement(array="a", name="sweep", index=0, text="0", size=1, values={"lr": "0" * 5000}),
    ):
        answer = World({"s1": 1}).ask(Submit(spec=job_spec("sweep-0", 1, 1, array=place)))
        assert answer.reason.startswith("array: ")


def test_a_command_about_one_job_names_the_jobs_of_an_array():
    world = World({"s1": 4})
    submitted(world)
    told = world.ask(GetJob(job="sweep")).reason
    assert told == "'sweep' is an array of 5 jobs: name one of sweep-0-1, sweep-1-2, sweep-2-3, ..."
    assert "a pattern stands for several jobs" in world.ask(GetJob(job="sweep-*")).reason
    assert world.ask(GetJob(job="other")).reason == "there is no job 'other'"
