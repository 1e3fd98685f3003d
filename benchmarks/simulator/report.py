"""Results as JSON, and as tables in docs/reports/benchmarks.md. A run of some groups keeps the others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pages import fill
from benchmarks.runtime.measurement import number

BEGIN = "<!-- bench-simulator: written by `make bench-simulator`, from here -->"
END = "<!-- bench-simulator: to here -->"
TITLES = {
    "traces": "Virtual clusters of Philly on 16 servers of 4 GPUs, beside other simulators (x: times ours)",
    "largest": "The largest virtual cluster of Philly, 6214e9, on 16 servers of 4 GPUs",
    "growth": "Generated jobs at a load of 0.8, on 16 servers of 4 GPUs",
    "decisions": "One decision about 1,000 jobs on 256 servers of 8 GPUs, with packing",
    "mixed": "The same on servers of three types, in racks; a third of the jobs ask for certain GPUs",
}
COLUMNS = (
    "what",
    "jobs",
    "decisions",
    "processor (s)",
    "wall (s)",
    "peak memory (MB)",
    "decision p50 (ms)",
    "p99 (ms)",
    "goal",
    "met",
    "beside it",
)
SHARED = [COLUMNS.index(name) for name in ("jobs", "decisions", "goal")]


def read(path: Path) -> dict[str, Any]:
    """Read the groups measured before."""
    return dict(json.loads(path.read_text())["groups"]) if path.exists() else {}


def merged(before: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Replace rows that were measured again in their places, and append new ones."""
    again = {row["what"]: row for row in rows}
    kept = [again.pop(row["what"], row) for row in before]
    return [*kept, *again.values()]


def write(path: Path, groups: Mapping[str, Any]) -> None:
    """Write all groups."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"groups": groups}, indent=1))


def line(row: Mapping[str, Any]) -> str:
    """Return a row for the terminal."""
    return f"{row['group']}: " + "; ".join(
        f"{name} {cell}" for name, cell in zip(COLUMNS, _cells(row), strict=True) if cell
    )


def publish(page: Path, groups: Mapping[str, Any]) -> None:
    """Write the tables into the page, between its markers."""
    tables = [_table(name, groups[name]) for name in TITLES if name in groups and groups[name]["rows"]]
    fill(page, BEGIN, END, tables)


def _table(name: str, entry: Mapping[str, Any]) -> str:
    about = ", ".join(entry["machine"][key] for key in ("date", "processor", "memory", "system"))
    cells = [_cells(row) for row in entry["rows"]]
    return written(TITLES[name], cells, f"{about}; load before: {entry['machine']['load']}")


def written(title: str, rows: Sequence[Sequence[str]], about: str) -> str:
    """Format as Markdown, without empty columns. A value that all of several rows share, such as the goal, goes above the
    table."""
    used = [place for place, _ in enumerate(COLUMNS) if any(cells[place] for cells in rows)]
    lines = [f"### {title}", ""]
    if shared := [
        place for place in used if place in SHARED and len({cells[place] for cells in rows}) == 1 < len(rows)
    ]:
        lines += ["; ".join(f"{COLUMNS[place]}: {rows[0][place]}" for place in shared) + ".", ""]
    shown = (COLUMNS, ["---"] * len(COLUMNS), *rows)
    kept = [place for place in used if place not in shared]
    lines += ["| " + " | ".join(cells[place] for place in kept) + " |" for cells in shown]
    return "\n".join([*lines, "", f"*{about}.*"])


def _cells(row: Mapping[str, Any]) -> list[str]:
    if row["given_up_after_s"] is not None:
        return [row["what"], "", "", f"given up after {row['given_up_after_s']:.0f} s", "", "", "", "", "", "", ""]
    cpu_s = row["cpu_s"]
    unit = " ms" if row["measure"].endswith("_ms") else " s"
    limit = row["limit"]
    met = "" if limit is None else "yes" if row[row["measure"]] <= limit else "**no**"
    beside = [f"{name}: {number(peer_s)} s ({number(peer_s / cpu_s)}x)" for name, peer_s in row["peers"]]
    return [
        row["what"],
        f"{row['jobs']:,.0f}",
        f"{row['decisions']:,.0f}",
        number(cpu_s),
        number(row["wall_s"]),
        f"{row['peak_mb']:.0f}",
        f"{row['p50_decision_ms']:.2f}",
        f"{row['p99_decision_ms']:.2f}",
        "" if limit is None else f"{'p99' if unit == ' ms' else 'processor'} <= {number(limit)}{unit}",
        met,
        "; ".join(beside),
    ]
