"""The results of runs side by side, as JSON and as a table in docs/reports/benchmarks.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages import fill
from benchmarks.runtime.measurement import Goal, number

BEGIN = "<!-- bench-control: written by `make bench-control`, from here -->"
END = "<!-- bench-control: to here -->"
ASKED = ("status", "status JOB", "servers")


def add(path: Path, label: str, run: Mapping[str, Any]) -> dict[str, Any]:
    """Write this run beside those of other labels. Returns all runs."""
    runs: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    runs[label] = run
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(runs, indent=1))
    return runs


def rate(load: Mapping[str, Any]) -> str:
    """Format submissions per second: on average, and in the slowest second."""
    rates = load["submissions_by_second"]
    return f"{number(sum(rates) / len(rates))} (slowest second: {min(rates)})"


def percentile(values: Sequence[float], part: float) -> float:
    """Return the least value that a fraction `part` of them does not exceed; NaN if there are none."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else float("nan")


def _met(goal: Goal, value: float, unit: str) -> str:
    return "" if goal.met(value) else f" (goal {goal.words(unit)})"


def _cells(run: Mapping[str, Any]) -> dict[str, str]:
    sizes, load, stopped = run["sizes"], run["load"], run["stopped"]
    found = {
        "servers x GPUs, live jobs, ended jobs": (
            f"{sizes['agents']:,} x {sizes['gpus']}, {sizes['live']:,}, {sizes['ended']:,}"
        ),
        "durable submissions/s, as fast as they are answered": (
            rate(load) + _met(Goal(1000, True), min(load["submissions_by_second"]), "/s")
        ),
        "durable submissions/s, 1,000 wanted": rate(run["demand"]),
    }
    for name in (*ASKED, "submit"):
        found[f"`{name}` meanwhile, p50 / p99"] = _latency(run["demand"], name)
    for name in ASKED:
        found[f"`{name}` else, p50 / p99"] = _latency(run["look"], name)
    lost = sizes["agents"] - min(load["fewest_servers"], run["alive_in_the_end"])
    found |= {
        "core, idle": f"{number(run['idle_percent'])} %" + _met(Goal(10), run["idle_percent"], "%"),
        f"core, each worker reports each {sizes['report_s']:g} s": f"{number(run['reporting_percent'])} %",
        "all agents taken in after a kill": (
            f"{number(run['recovery_s'])} s" + _met(Goal(5), run["recovery_s"], "s") + f", {run['hellos']:,} hellos"
        ),
        "all agents taken in after a kill, with all jobs that were submitted": f"{number(run['recovery_after_load_s'])} s",
        "all workers train, from an empty cluster": f"{number(run['calm_s'])} s",
        "servers lost, by load and by a stop of 12 s": f"{lost} (repeated requests: {stopped['repeats']})",
        "memory after these": (f"{run['rss_mb']:.0f} MB" + _met(Goal(500), run["rss_mb"], "MB")),
        "memory in the end, with all jobs that were submitted": f"{run['rss_after_load_mb']:.0f} MB",
        "a heartbeat, with a tenth of the jobs / with all": " / ".join(
            f"{each['median_s'] * 1e3:.3f} ms" for each in run["heartbeats"]
        ),
    }
    return found


def _latency(phase: Mapping[str, Any], name: str) -> str:
    values = phase["latencies_s"].get(name, ())
    if name in phase["refused"]:
        return f"refused: {phase['refused'][name]}"
    if not values:
        return "no answer"
    middle, late = (1e3 * percentile(values, part) for part in (0.5, 0.99))
    return f"{number(middle)} / {number(late)} ms" + _met(Goal(100), late, "ms")


def table(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table, with one column per run."""
    columns = {label: _cells(run) for label, run in runs.items()}
    rows: dict[str, None] = {}
    for cells in columns.values():
        rows |= dict.fromkeys(cells)
    lines = [
        "| " + " | ".join(["what", *columns]) + " |",
        "| " + " | ".join(["---"] * (1 + len(columns))) + " |",
        *("| " + " | ".join([row, *(cells.get(row, "") for cells in columns.values())]) + " |" for row in rows),
    ]
    about = "; ".join(
        f"{label}: {run['machine']['date']}, {run['machine']['processor']}, load before {run['machine']['load']}"
        for label, run in runs.items()
    )
    return "\n".join([*lines, "", f"*{about}*"])


def publish(page: Path, runs: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the table into the page, between its markers."""
    fill(page, BEGIN, END, [table(runs)])
