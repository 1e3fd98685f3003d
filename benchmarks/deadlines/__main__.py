"""A day of deadlines on a real cluster: `make bench-deadlines`

    python -m benchmarks.deadlines [--quick] [--minutes N] [--slots N] [--jobs N] [--json FILE]

A controller and two agents with CPU slots. Jobs arrive over a simulated day that lasts some minutes: most with a hard deadline,
some with a soft one or none (`benchmarks.deadlines.day`). A job with the same command trains before the day begins, so that its
throughput is known. Recorded are the answer to each submission, the planned and actual end of each job, and its GPUs over time.

Results go to out/bench-deadlines.json, into docs/reports/benchmarks.md and docs/reports/deadline-day.png (`--quick`:
two minutes, and nothing is written there).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.deadlines.day import MOST, Arrival, Story, arrivals, kept, table
from benchmarks.deadlines.picture import draw
from benchmarks.pages import fill
from benchmarks.runtime import machine
from benchmarks.runtime.processes import Family, MeasurementFailed, until
from benchmarks.small_cluster import TRAIN, WITHIN_S, SmallCluster
from elasticd.protocol.errors import ElasticError, RequestRefused
from elasticd.protocol.messages import EventKind, JobView, Submit, Submitted
from elasticd.protocol.model import Deadline, GpuRange, JobSpec

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "reports" / "deadline-day.png"
PACE_S = 0.05  # per micro-batch; a step has one per virtual worker
POLICY = "policy: elastic\ndeadlines: {margin_s: 3}\n"
LEARNED = 120  # steps of the job that trains before the day
LOOK_S = 0.25
BEGIN = "<!-- bench-deadlines: written by `make bench-deadlines`, from here -->"
END = "<!-- bench-deadlines: to here -->"


class Bench(SmallCluster):
    """The cluster of one run, and the records of its jobs by their ids."""

    def __init__(self, family: Family, directory: Path, slots: int) -> None:
        policy = directory / "policy.yaml"
        policy.write_text(POLICY)
        super().__init__(family, directory, slots, policy=str(policy))
        self._began_s = time.time()
        self.running: dict[str, Story] = {}
        self.stories: list[Story] = []

    def _spec(self, name: str, steps: int, deadline: Deadline | None = None) -> JobSpec:
        command = (sys.executable, str(TRAIN), str(self.directory / "model.pt"), "1000000000", str(PACE_S), "/none")
        return JobSpec(
            name=name,
            command=command,
            gpus=GpuRange(min=1, max=MOST),
            virtual_workers=MOST,
            workdir=str(self.directory),
            max_steps=steps,
            deadline=deadline,
        )

    def learn(self) -> None:
        """Train a job on each number of GPUs, so that its throughput is known."""
        answer = self.client.ask(Submit(spec=self._spec("before", 10 * LEARNED)))
        assert isinstance(answer, Submitted)
        until("a job has been measured", lambda: self._measured(answer.job), WITHIN_S)
        until("it is over", lambda: self.view(answer.job).phase.final or None, WITHIN_S)

    def _measured(self, job: str) -> bool | None:
        view = self.view(job)
        return True if view.phase.final or sum(point.times > 0 for point in view.curve) >= 3 else None

    def begin(self) -> None:
        """Begin the day."""
        self._began_s = time.time()

    def submit(self, number: int, arrival: Arrival) -> None:
        """Submit a job, and record the answer."""
        now_s = time.time() - self._began_s
        story = Story(f"job {number + 1}", now_s, arrival.steps, soft=arrival.soft)
        deadline = None
        if arrival.deadline_s is not None:
            story.deadline_s = now_s + arrival.deadline_s
            deadline = Deadline(in_s=arrival.deadline_s, soft=arrival.soft)
        self.stories.append(story)
        try:
            answer = self.client.ask(Submit(spec=self._spec(f"job-{number + 1}", arrival.steps, deadline)))
        except RequestRefused as error:
            story.verdict, story.offer = "refused", str(error)
            return
        assert isinstance(answer, Submitted)
        if answer.promise is not None:
            story.verdict = answer.promise.state.value
            if answer.promise.planned_s is not None:
                story.planned_s = answer.promise.planned_s - self._began_s
        self.running[answer.job] = story

    def look(self) -> None:
        """Record the jobs that have ended."""
        for job, story in list(self.running.items()):
            view = self.view(job)
            if view.phase.final:
                self._over(job, story, view)
                del self.running[job]

    def _over(self, job: str, story: Story, view: JobView) -> None:
        if view.finished_s is None or view.exit_code:
            raise MeasurementFailed(f"{job} has not finished: {view.reason}")
        story.ended_s = view.finished_s - self._began_s
        story.shares = [(change.time_s - self._began_s, change.share) for change in view.shares]
        told = self.times_of(job, EventKind.ENDANGERED)
        story.told_s = min(told) - self._began_s if told else None


def live(bench: Bench, day: list[Arrival]) -> None:
    """Play one day, until all jobs have ended."""
    bench.learn()
    bench.begin()
    began_s = time.monotonic()
    for number, arrival in enumerate(day):
        while (left_s := began_s + arrival.at_s - time.monotonic()) > 0:
            bench.look()
            time.sleep(min(left_s, LOOK_S))
        bench.submit(number, arrival)
        story = bench.stories[-1]
        print(f"{story.submitted_s:4.0f} s  {story.name}: {story.verdict or 'no deadline'}  {story.offer}", flush=True)
    until("all jobs are over", lambda: bench.look() or not bench.running or None, WITHIN_S, interval_s=LOOK_S)


def measure(directory: Path, minutes: float, jobs: int, slots: int) -> dict[str, Any]:
    with Family() as family:
        bench = Bench(family, directory, slots)
        try:
            live(bench, arrivals(60.0 * minutes, jobs, bench.gpus, PACE_S * MOST))
        except (MeasurementFailed, ElasticError):
            bench.show_logs()
            raise
        finally:
            bench.client.close()
    stories = [dataclasses.asdict(story) for story in bench.stories]
    return {"machine": machine.describe(), "minutes": minutes, "gpus": bench.gpus, "jobs": stories}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=8.0, help="that the day lasts")
    parser.add_argument("--slots", type=int, default=4, help="of each of the two servers")
    parser.add_argument("--jobs", type=int, default=24)
    parser.add_argument("--quick", action="store_true", help="a day of two minutes, with eight jobs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    minutes, jobs = (2.0, 8) if options.quick else (options.minutes, options.jobs)
    directory = Path(tempfile.mkdtemp(prefix="deadlines-"))
    try:
        run = measure(directory, minutes, jobs, options.slots)
    except (MeasurementFailed, ElasticError) as error:
        print(f"bench-deadlines: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    end = "-quick" if options.quick else ""
    path = options.json or ROOT / f"out/bench-deadlines{end}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(run, indent=1))
    stories = [Story(**story) for story in run["jobs"]]
    draw(ROOT / "out/deadline-day-quick.png" if options.quick else PICTURE, stories, run["gpus"], 60.0 * minutes)
    print(table(stories))
    if not options.quick:
        where = run["machine"]
        text = (
            f"A day of {minutes:g} minutes with {jobs} jobs on {run['gpus']} CPU slots; {where['date']}, {where['processor']}, "
            f"load {where['load']} at the end."
        )
        fill(ROOT / "docs/reports/benchmarks.md", BEGIN, END, [text, table(stories)])
    return 0 if kept(stories) else 1


if __name__ == "__main__":
    sys.exit(main())
