"""Measurements, written to disk at once, and their table. Runs add up: a file has those of all runs since `--fresh`."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from benchmarks.pages import fill

from .faults import Fault, Kind
from .jobs import Job

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reports" / "soak.md"
BEGIN = "<!-- {name}: written by `make soak`, from here -->"
END = "<!-- {name}: to here -->"
COLUMNS = (
    "what", "how often", "jobs disturbed", "lost samples", "lost jobs", "bits that differ",
    "alone", "alone, standstill p50 (s)", "p99", "worst", "alone, no answer p50 (s)", "worst",
    "standstill p50 (s)", "p99", "worst",
)  # fmt: skip


class Struck(msgspec.Struct, frozen=True):
    """A fault that is over. `stood_s`: standstill of each disturbed job (s); None: it did not resume, or did not train."""

    run: str
    at_s: float  # Unix time
    kind: str
    where: str
    lasted_s: float
    stood_s: dict[str, float | None]
    silent_s: float | None  # longest time without an answer of a controller during the fault


class Ended(msgspec.Struct, frozen=True):
    """A job that has ended."""

    run: str
    job: str
    finished: bool
    lost_samples: int
    equal: bool
    reason: str
    seconds: float
    restarts: int
    steps: int


class Run(msgspec.Struct, frozen=True):
    """One run of the fault injection."""

    run: str
    seed: str
    minutes: float
    hosts: int
    controllers: int
    unanswered: int  # submissions


Line = Struck | Ended | Run


class Records:
    """Records in `directory`, with a file per kind of line."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.run = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

    def add(self, line: Line) -> None:
        with self._file(type(line)).open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")

    def struck(self) -> list[Struck]:
        return self._read(Struck)

    def ended(self) -> list[Ended]:
        return self._read(Ended)

    def runs(self) -> list[Run]:
        return self._read(Run)

    def forget(self) -> None:
        for kind in (Struck, Ended, Run):
            self._file(kind).unlink(missing_ok=True)

    def _file(self, kind: type[Line]) -> Path:
        return self._directory / f"{kind.__name__.lower()}.jsonl"

    def _read(self, kind: type) -> list:  # type: ignore[type-arg]
        try:
            lines = self._file(kind).read_bytes().splitlines()
        except FileNotFoundError:
            return []
        return [msgspec.json.decode(line, type=kind) for line in lines if line]


def struck(run: str, fault: Fault, settled_s: float, silent: Callable[[float, float], float | None]) -> Struck:
    """Return the record of a fault with resumed jobs, or at the end of the run."""
    healed_s = fault.healed_s if fault.healed_s is not None else settled_s
    return Struck(
        run=run,
        at_s=round(fault.struck_s, 3),
        kind=fault.kind.value,
        where=fault.where,
        lasted_s=round(healed_s - fault.struck_s, 3),
        stood_s={job.name: job.standstill_s(fault.struck_s, healed_s) for job in fault.jobs},
        silent_s=silent(fault.struck_s, healed_s),
    )


def ended(run: str, job: Job) -> Ended:
    assert job.verdict is not None
    verdict, view = job.verdict, job.view
    seconds = (view.finished_s or time.time()) - view.submitted_s if view is not None else 0.0
    return Ended(
        run=run, job=job.name, finished=verdict.finished, lost_samples=verdict.lost_samples, equal=verdict.equal,
        reason=verdict.reason, seconds=round(seconds, 1), restarts=view.restarts if view is not None else 0,
        steps=job.kind.steps,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- tables


def table(records: Records) -> str:
    """Return the table: a row per kind of fault with its count, the disturbed jobs, their outcome and their standstill."""
    jobs = {(line.run, line.job): line for line in records.ended()}
    every = records.struck()
    single = alone(every)
    rows: dict[str, list[Struck]] = defaultdict(list)
    for line in every:
        rows[line.kind].append(line)
    kinds = [kind.value for kind in Kind if rows[kind.value]]
    cells = [*(_row(kind, rows[kind], single, jobs) for kind in kinds), _row("all", every, single, jobs)]
    return written(COLUMNS, cells)


def written(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format as Markdown, without columns that are all zero; the summary has the sums."""
    kept = [place for place in range(len(columns)) if place < 3 or any(row[place] not in ("-", "0") for row in rows)]
    lines = [[row[place] for place in kept] for row in (columns, ["---"] + ["---:"] * (len(columns) - 1), *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def alone(faults: Sequence[Struck]) -> list[Struck]:
    """Return the faults that overlapped no other: neither in duration nor in a job's standstill."""
    ordered = sorted(faults, key=lambda line: (line.run, line.at_s))
    found, until_s, run = [], 0.0, ""
    for position, line in enumerate(ordered):
        if line.run != run:
            run, until_s = line.run, 0.0
        over_s = line.at_s + line.lasted_s + max((seconds or 0.0 for seconds in line.stood_s.values()), default=0.0)
        after = ordered[position + 1] if position + 1 < len(ordered) else None
        if line.at_s > until_s and (after is None or after.run != run or after.at_s > over_s):
            found.append(line)
        until_s = max(until_s, over_s)
    return found


def _row(
    kind: str, faults: Sequence[Struck], single: Sequence[Struck], jobs: dict[tuple[str, str], Ended]
) -> list[str]:
    disturbed = {(line.run, job) for line in faults for job in line.stood_s}
    over = [jobs[key] for key in sorted(disturbed) if key in jobs]
    apart = [line for line in faults if line in single]
    figures = [
        len(faults), len(disturbed), sum(job.lost_samples for job in over), sum(not job.finished for job in over),
        sum(not job.equal for job in over), len(apart),
    ]  # fmt: skip
    silent = [line.silent_s for line in apart if line.silent_s is not None]
    parts = [f"{figure:,}" for figure in figures]
    parts += [*_spread(_stood(apart), 0.5, 0.99, 1.0), *_spread(silent, 0.5, 1.0)]
    parts += _spread(_stood([line for line in faults if line not in single]), 0.5, 0.99, 1.0)
    return [kind, *parts]


def _stood(faults: Iterable[Struck]) -> list[float]:
    return [seconds for line in faults for seconds in line.stood_s.values() if seconds is not None]


def _spread(seconds: Iterable[float], *shares: float) -> list[str]:
    ordered = sorted(seconds)
    return [f"{ordered[round(share * (len(ordered) - 1))]:.1f}" if ordered else "-" for share in shares]


def summary(records: Records) -> str:
    """Return the summary for the page, in a sentence or two."""
    faults, jobs, runs = records.struck(), records.ended(), records.runs()
    minutes = sum(run.minutes for run in runs)
    finished = sum(job.finished for job in jobs)
    steps = sum(job.steps for job in jobs if job.finished)
    hosts, controllers = ("/".join(sorted({str(n) for n in each})) for each in
                          ((run.hosts for run in runs), (run.controllers for run in runs)))  # fmt: skip
    return (
        f"{len(faults):,} faults in {minutes:.0f} minutes ({len(runs)} runs, seeds {', '.join(run.seed for run in runs)}; "
        f"hosts: {hosts}; controllers: {controllers}). {len(jobs):,} jobs came to their end, {finished:,} of them finished, "
        f"after {steps:,} steps in all; {sum(job.restarts for job in jobs):,} times one began again from a checkpoint. "
        f"Lost samples: {sum(job.lost_samples for job in jobs)}. Lost jobs: {len(jobs) - finished}. "
        f"Results with other bits: {sum(not job.equal for job in jobs)}."
    )


def write_page(records: Records, page: Path = PAGE) -> None:
    """Fill the page's part for clusters with one controller, or that for several."""
    name = "several" if any(run.controllers > 1 for run in records.runs()) else "one"
    fill(page, BEGIN.format(name=name), END.format(name=name), [summary(records), table(records)])


def as_json(records: Records) -> bytes:
    """Return all records as JSON."""
    lines = {"runs": records.runs(), "faults": records.struck(), "jobs": records.ended()}
    return json.dumps(msgspec.to_builtins(lines), indent=1).encode()
