"""Results as JSON, and as tables in docs/reports/benchmarks.md.

A run of some groups keeps the rows of the others: each group records when, and on which machine, it was measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..pages import fill
from .measurement import Measurement, number

BEGIN = "<!-- bench-runtime: written by `make bench-runtime`, from here -->"
END = "<!-- bench-runtime: to here -->"
TITLES = {
    "throughput": "Throughput while nothing changes, W = N (of stock DistributedDataParallel's, same W)",
    "overhead": "What the runtime itself takes of a step, W = N = 1",
    "reduction": "The canonical reduction alone",
    "hosting": "Hosting several virtual workers in one process",
    "memory": "Gradients that a worker keeps, beside the parameters' own",
    "comparing": "Comparing the workers' states",
    "checking": "Cross-checks: a micro-batch that all workers compute",
    "alarms": "Cross-checks of correct scripts, one in each step",
    "stragglers": "Slow workers and slow links (EDL 5.4)",
    "pauses": "Pauses: the longest time between two applied steps, less the median step",
    "losses": "From SIGKILL of a worker to the next step that is applied without it",
    "beginning": "From `elasticctl submit` to the first applied step, on an idle machine",
    "picture": "Thirty resizes of one job",
}


def read(path: Path) -> dict[str, Any]:
    """Read the groups measured before."""
    return dict(json.loads(path.read_text())["groups"]) if path.exists() else {}


def write(path: Path, groups: Mapping[str, Any]) -> None:
    """Write all groups."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"groups": groups}, indent=1))


def group(machine: Mapping[str, str], rows: Sequence[Measurement], notes: Sequence[str]) -> dict[str, Any]:
    """Return one group's entry."""
    return {"machine": dict(machine), "rows": [row.document() for row in rows], "notes": list(notes)}


def publish(page: Path, groups: Mapping[str, Any]) -> None:
    """Write the tables into the page, between its markers. It keeps those of groups that were not measured here."""
    present = page.read_text().partition(BEGIN)[2].partition(END)[0]
    kept = {part.partition("\n")[0]: f"### {part.strip()}" for part in present.split("\n### ")[1:]}
    tables = [_table(name, groups[name]) if name in groups else kept.get(title, "") for name, title in TITLES.items()]
    fill(page, BEGIN, END, filter(None, tables))


def table(rows: Sequence[Measurement]) -> str:
    """Return the measurements as a Markdown table; a goal has the unit of its measured value."""
    lines = ["| what | measured | goal | met | beside it | of |", "| --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        goal = row.goal.words("") if row.goal else ""
        value = f"{number(row.value)} {row.unit}"
        lines.append(f"| {row.what} | {value} | {goal} | {row.verdict} | {row.against} | {row.count} |")
    return "\n".join(lines)


def _table(name: str, entry: Mapping[str, Any]) -> str:
    machine = entry["machine"]
    lines = [f"### {TITLES[name]}", ""]
    if entry["rows"]:
        lines.append(table([Measurement.of(document) for document in entry["rows"]]))
    lines += ["", *entry["notes"]] if entry["notes"] else []
    about = ", ".join(machine[key] for key in ("date", "processor", "memory", "system")) + f", torch {machine['torch']}"
    return "\n".join([*lines, "", f"*{about}; load before: {machine['load']}.*"])
