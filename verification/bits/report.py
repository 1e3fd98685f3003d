"""Printed output and JSON report."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .ddp import Comparison
from .history import Course
from .verdict import Verdict, tail

COUNTS = (
    "steps",
    "orders",
    "committed",
    "cancelled_orders",
    "joins",
    "leaves",
    "migrations",
    "rehostings",
    "leaders_killed",
    "two_at_once",
    "repeated_steps",
    "lost_steps",
    "restarts",
    "results",
    "differing_bits",
)


def print_line(verdict: Verdict) -> None:
    """Print a history's line."""
    kills = sum(verdict.kills.values())
    print(
        f"seed {verdict.seed:5d}  {verdict.model:11s} N={verdict.virtual_workers}  {verdict.duration_s:5.1f} s"
        f"  {verdict.orders:3d} orders, {verdict.cancelled_orders:2d} cancelled  {verdict.joins:2d} joins"
        f"  {verdict.leaves:2d} leaves  {verdict.migrations:2d} migrations  {verdict.rehostings:3d} rehostings  {kills:2d} kills"
        f"  {verdict.repeated_steps:2d} repeated  {verdict.restarts} restarts  {verdict.differing_bits} bits differ"
        f"  {'ok' if verdict.good else 'FAILED'}",
        flush=True,
    )


def print_failure(verdict: Verdict, course: Course, epochs: int) -> None:
    """Print all information on a failed history."""
    print(f"\nhistory of seed {verdict.seed} ({verdict.model}, N = {verdict.virtual_workers})")
    print(f"again: python -m verification.bits --only {verdict.seed} --epochs {epochs}")
    for problem in verdict.problems:
        print(f"  PROBLEM  {problem}")
    for line in course.log:
        print(f"  {line}")
    for worker, code in course.exit_codes.items():
        if not verdict.good and (code == -signal.SIGKILL and worker not in course.killed):
            print(f"  {worker}, where it stood:\n{tail(course, worker)}")
    sys.stdout.flush()


def totals(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Return the sums over all histories."""
    kills: Counter[str] = Counter()
    for verdict in verdicts:
        kills.update(verdict.kills)
    sums: dict[str, Any] = {name: sum(getattr(verdict, name) for verdict in verdicts) for name in COUNTS}
    return {
        "histories": len(verdicts),
        "failed": [verdict.seed for verdict in verdicts if not verdict.good],
        "duration_s": sum(verdict.duration_s for verdict in verdicts),
        **sums,
        "kills": sum(kills.values()),
        "kills_by_point": dict(kills.most_common()),
    }


def print_summary(verdicts: Sequence[Verdict], checked: Sequence[str], comparisons: Sequence[Comparison]) -> None:
    """Print the summary."""
    found = totals(verdicts)
    print()
    for name in ("histories", "duration_s", *COUNTS[:-1], "kills"):
        value = found[name]
        print(f"  {name.replace('_', ' '):18s} {value:10.0f}")
    for point, count in found["kills_by_point"].items():
        print(f"    {point:32s} {count:4d}")
    for line in checked:
        print(f"  {line}")
    for comparison in comparisons:
        print(f"  {comparison.text()}")
    print(f"  differing bits {found['differing_bits']}")
    if found["failed"]:
        print(f"  FAILED: {', '.join(str(seed) for seed in found['failed'])}")


def write(path: Path, verdicts: Sequence[Verdict], checked: Sequence[str], comparisons: Sequence[Comparison]) -> None:
    """Write the whole report as JSON."""
    document = {
        "totals": totals(verdicts),
        "references": list(checked),
        "ddp": [asdict(comparison) for comparison in comparisons],
        "histories": [asdict(verdict) for verdict in verdicts],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
