"""Speed of simulations and of scheduling decisions. `make bench-simulator`

    python -m benchmarks.simulator [--quick] [--only traces|largest|growth|decisions|mixed] [--policy NAME]...
                                   [--data DIRECTORY] [--repeats N] [--json FILE]

Each case runs several times, in its own process on one core; figures are medians. Cases that need published inputs are skipped
with a reason where these are missing. With `--policy` the rows of other policies are kept. Results go to
out/bench-simulator.json and into docs/reports/benchmarks.md (`--quick`: to out/bench-simulator-quick.json only).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.runtime import machine
from benchmarks.runtime.processes import ONE_THREAD
from elasticd.scheduler.policies import NAMES

from . import peers, report
from .cases import CURVES, TRACE, Case

ROOT = Path(__file__).resolve().parents[2]
LARGEST, CROWDED, CALM = "6214e9", "0e4a51", "ed69ec"  # virtual clusters of Philly
LONGEST_S = 900.0  # time limit of a case


@dataclass(frozen=True)
class Entry:
    """A row of the table. `limit`: the goal for `measure` (a key of a case's output)."""

    group: str
    what: str
    case: Case
    measure: str = "cpu_s"
    limit: float | None = None


def main() -> int:
    options = _options()
    target = options.json or ROOT / "out" / ("bench-simulator-quick.json" if options.quick else "bench-simulator.json")
    groups = report.read(target)
    about = machine.describe()
    for group in options.only or report.TITLES:
        missing = [name for name in (CURVES, TRACE) if not (options.data / name).exists()]
        if missing:
            print(
                f"{group}: skipped, {' and '.join(missing)} not in {options.data} (--data DIRECTORY)", file=sys.stderr
            )
            continue
        rows = []
        for entry in _entries(group, options):
            row = _measure(entry, 1 if options.quick else options.repeats, options.data)
            print(report.line(row), flush=True)
            rows.append(row)
        others = groups[group]["rows"] if options.policy and group in groups else []
        groups[group] = {"machine": about, "rows": report.merged(others, rows)}
        report.write(target, groups)
    if not options.quick and groups:
        report.publish(ROOT / "docs" / "reports" / "benchmarks.md", groups)
    print(f"written to {target}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulator", description="How fast simulations are.")
    parser.add_argument("--quick", action="store_true", help="small inputs, once each, to see that it works")
    parser.add_argument(
        "--only", choices=tuple(report.TITLES), action="append", help="measure this (several times: these)"
    )
    parser.add_argument("--policy", choices=NAMES, action="append", help="this policy (several times: these)")
    parser.add_argument(
        "--data", type=Path, default=ROOT.parent / "shared" / "data", help="where the published inputs are"
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs of each case (of the largest trace: one)")
    parser.add_argument("--json", type=Path, help="where results go")
    return parser.parse_args()


def _entries(group: str, options: argparse.Namespace) -> Iterator[Entry]:
    chosen, data = options.policy or NAMES, str(options.data)
    if group == "traces":
        for vc in (CALM,) if options.quick else (CROWDED, CALM):
            for policy in ("afs-l", "srtf", "fifo") if options.quick else peers.NAMES:
                if policy in chosen:
                    limit = 0.7 if (vc, policy) == (CROWDED, "afs-l") else None
                    yield Entry(group, f"{vc}, {policy}", Case(data=data, policy=policy, vc=vc), limit=limit)
    elif group == "largest":
        for policy in chosen if not options.quick else ():
            yield Entry(group, policy, Case(data=data, policy=policy, vc=LARGEST), limit=20.0)
    elif group == "growth":
        for policy in ("fifo", "srtf", "max-min", "afs-l"):
            for jobs in (1_000, 2_000) if options.quick else (1_000, 10_000, 100_000):
                if policy in chosen:
                    limit = 60.0 if (policy, jobs) == ("afs-l", 100_000) else None
                    case = Case(data=data, policy=policy, jobs=jobs, load=0.8)
                    yield Entry(group, f"{policy}, {jobs:,} jobs", case, limit=limit)
    else:
        for policy in chosen:
            jobs = 1_000 + (20 if options.quick else 500)
            case = Case(data=data, policy=policy, servers=256, gpus_per_server=8, packing=True, jobs=jobs, crowd=1_000)
            case = msgspec.structs.replace(case, mixed=group == "mixed")
            yield Entry(group, policy, case, "p99_decision_ms", 20.0)
            if policy == "elastic" and group == "decisions":  # which then considers several lengths of each job
                mixture = msgspec.structs.replace(case, told=0.5)
                yield Entry(group, f"{policy}, half tell their lengths", mixture, "p99_decision_ms", 20.0)


def _measure(entry: Entry, repeats: int, data: Path) -> dict[str, Any]:
    """Return the medians of several runs, and other simulators' figures for the same input."""
    runs = [_run(entry.case) for _ in range(1 if entry.group == "largest" else repeats)]
    row: dict[str, Any] = {"group": entry.group, "what": entry.what, "measure": entry.measure, "limit": entry.limit}
    row["case"] = msgspec.to_builtins(entry.case)
    row["peers"] = [[peer.name, peer.cpu_s] for peer in peers.of(data, entry.case.policy, entry.case.vc or "")]
    done = [run for run in runs if run is not None]
    row["given_up_after_s"] = None if done else LONGEST_S
    row["runs"] = len(done)
    for key in done[0] if done else ():
        row[key] = statistics.median(run[key] for run in done)
    return row


def _run(case: Case) -> dict[str, Any] | None:
    command = [sys.executable, "-m", "benchmarks.simulator.cases", msgspec.json.encode(case).decode()]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **ONE_THREAD}, capture_output=True, timeout=LONGEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        raise SystemExit(f"{case}: {done.stderr.decode()}")
    return dict(json.loads(done.stdout))


if __name__ == "__main__":
    sys.exit(main())
