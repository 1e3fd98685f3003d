"""Transient GPUs beside four that a job keeps: `make bench-transient`

    python -m benchmarks.transient [--quick] [--minutes N] [--period S] [--only SCHEME] [--again] [--json FILE]

EDL (6.2, Fig. 8) trains on 4 GPUs, and on 1, 2 or 4 more that are revoked every few minutes. Here a borrower takes them every two
minutes, and returns them two minutes later (`elasticctl lend`, `reclaim`). Compared are our runtime in a real cluster with CPU
slots, stop-and-resume of torch's DDP with new interpreters and with forked ones, the four kept GPUs alone, and the ideal
(`benchmarks.transient.course`). A micro-batch sleeps for a GPU's time, so the workers fit two cores; the courses of a scheme
take place at the same time, and their borrowers at different moments.

Results go to out/bench-transient.json, docs/reports/transient.png and docs/reports/benchmarks.md (`--quick`: twenty seconds in
place of two minutes, and nothing is written into docs). `--only`: measure one scheme; the others are taken from the JSON file.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.pages import fill
from benchmarks.runtime import machine
from benchmarks.runtime.processes import Family, MeasurementFailed
from benchmarks.transient.course import Course, Part, Step
from benchmarks.transient.picture import draw
from benchmarks.transient.schemes import KEPT, Ours, Scheme, StopResume, WarmResume
from elasticd.protocol.errors import ElasticError

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "reports" / "transient.png"
EXTRAS = (1, 2, 4)
SCHEMES: dict[str, type[Scheme]] = {each.name: each for each in (StopResume, WarmResume, Ours)}
GOAL = 0.97
BEGIN = "<!-- bench-transient: written by `make bench-transient`, from here -->"
END = "<!-- bench-transient: to here -->"
Courses = Mapping[str, Sequence[Course]]


def measure(scheme: type[Scheme], directory: Path, parts: int, period_s: float) -> list[Course]:
    """Play the courses with each number of transient GPUs, at the same time."""

    def one(family: Family, number: int) -> Course:
        job = scheme(family, directory / f"{number}", EXTRAS[number])
        try:
            job.start()
            return job.play(parts, period_s, number * period_s / len(EXTRAS))
        finally:
            job.close()

    with Family() as family, ThreadPoolExecutor(len(EXTRAS)) as pool:
        return list(pool.map(lambda number: one(family, number), range(len(EXTRAS))))


def table(courses: Courses) -> str:
    """Return the table of ratios, with EDL's statements."""
    ours = courses[Ours.name]
    rows = [
        f"| {KEPT} GPUs kept, and | {' | '.join(f'{course.extra} more' for course in ours)} | EDL 6.2 |",
        f"| --- | {' | '.join('---' for _ in ours)} | --- |",
        f"| the kept GPUs alone | {_cells(course.baseline for course in ours)} | above stop-and-resume |",
    ]
    for name, found in courses.items():
        edl = "**>= 0.97** (goal)" if name == Ours.name else "below the kept GPUs alone"
        rows.append(f"| {name} | {_cells(course.ratio for course in found)} | {edl} |")
    for name, found in courses.items():
        grown = " | ".join(f"{median(course.grown_s):.1f} s" for course in found)
        rows.append(f"| {name}: from idle GPUs to a step on them, median | {grown} | |")
    freed = " | ".join(f"{median(course.freed_s):.2f} s" for course in ours)
    return "\n".join([*rows, f"| {Ours.name}: from a request until the GPUs are free, median | {freed} | |"])


def _cells(values: Any) -> str:
    return " | ".join(f"{value:.3f}" for value in values)


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _course(kept: Mapping[str, Any]) -> Course:
    return Course(
        **{
            **kept,
            "parts": [Part(**part) for part in kept["parts"]],
            "steps": [Step(**step) for step in kept["steps"]],
        }
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="of each scheme")
    parser.add_argument("--period", type=float, default=120.0, help="seconds for which GPUs are idle, or in use")
    parser.add_argument("--quick", action="store_true", help="two minutes, in parts of 20 seconds")
    parser.add_argument("--only", choices=list(SCHEMES), help="measure one scheme alone")
    parser.add_argument("--again", action="store_true", help="measure nothing; write table and picture again")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    minutes, period_s = (2.0, 20.0) if options.quick else (options.minutes, options.period)
    path = options.json or ROOT / ("out/bench-transient-quick.json" if options.quick else "out/bench-transient.json")
    run = _read(path)
    for name in [] if options.again else [options.only] if options.only else SCHEMES:
        directory = Path(tempfile.mkdtemp(prefix="transient-"))
        try:
            found = measure(SCHEMES[name], directory, round(60.0 * minutes / period_s), period_s)
        except (MeasurementFailed, ElasticError) as error:
            print(f"bench-transient: {name}: {error}", file=sys.stderr)
            return 1
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        run[name] = {
            "machine": machine.describe(),
            "minutes": minutes,
            "period_s": period_s,
            "courses": [asdict(course) for course in found],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(run))
        print(name, " ".join(f"{course.extra}: {course.ratio:.3f}" for course in found), flush=True)
    if Ours.name not in run:
        print(f"not measured yet: {Ours.name}")
        return 0
    known = [name for name in SCHEMES if name in run]
    courses = {name: [_course(each) for each in run[name]["courses"]] for name in known}
    print(table(courses))
    draw(ROOT / "out/transient-quick.png" if options.quick else PICTURE, courses, Ours.name)
    if not options.quick:
        told = [f"{name}: {run[name]['minutes']:g} minutes, load {run[name]['machine']['load']}" for name in known]
        where = run[Ours.name]["machine"]
        text = f"Idle or in use for {run[Ours.name]['period_s']:g} s; {where['date']}, {where['processor']}. {'; '.join(told)}."
        fill(ROOT / "docs/reports/benchmarks.md", BEGIN, END, [text, table(courses)])
    return 0 if all(course.ratio >= GOAL for course in courses[Ours.name]) else 1


if __name__ == "__main__":
    sys.exit(main())
