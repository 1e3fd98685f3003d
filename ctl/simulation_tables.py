"""Figures of simulations as tables that fit into 80 columns: times, and the quality of the service to jobs and GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..protocol.errors import UserError
from . import render

if TYPE_CHECKING:
    from rich.table import Table

Figures = Mapping[str, float | None]


@dataclass(frozen=True)
class Column:
    """A column of a table: its head, the key of its figure in the JSON, its format, and whether more is better."""

    head: str
    figure: str
    show: Callable[[float], str]
    most_first: bool = False

    def rank(self, figures: Figures) -> float:
        """Return the sort key, least first; inf: there is no value."""
        value = figures[self.figure]
        if value is None:
            return math.inf
        return -value if self.most_first else value


def _form(form: str) -> Callable[[float], str]:
    return lambda value: form.format(value)


def _count(value: float) -> str:
    return f"{value:.0f}" if value == round(value) else f"{value:.1f}"


DROPPED = Column("DROPPED", "dropped", _count)
JAIN = Column("JAIN", "jain_index", _form("{:.3f}"), most_first=True)
TIMES = (
    Column("DONE", "finished", _count, most_first=True),
    DROPPED,
    Column("AVG JCT", "avg_jct_s", render.span),
    Column("P50", "p50_jct_s", render.span),
    Column("P95", "p95_jct_s", render.span),
    Column("P99", "p99_jct_s", render.span),
    Column("MAX", "max_jct_s", render.span),
)
DEADLINES = (
    Column("DEADLINES", "deadline_ratio", _form("{:.1%}"), most_first=True),
    Column("REFUSED", "refused", _count),
    Column("LATE", "missed_admitted", _count),  # admitted, and not finished by their deadlines
)
QUALITY = (
    Column("QUEUEING", "avg_queueing_s", render.span),
    Column("SLOWDOWN", "avg_slowdown", _form("{:.3g}")),
    Column("P99 SLOWDOWN", "p99_slowdown", _form("{:.3g}")),
    Column("UNFAIRNESS", "avg_finish_time_fairness", _form("{:.3g}")),
    Column("WORST", "max_finish_time_fairness", _form("{:.3g}")),
    JAIN,
)
CLUSTER = (
    Column("MAKESPAN", "makespan_s", render.span),
    Column("QUEUE", "avg_queue_length", _form("{:.1f}")),
    Column("EFFICIENCY", "avg_cluster_efficiency", _form("{:.3f}"), most_first=True),
    Column("BLOCKING", "avg_blocking_index", _form("{:.3g}")),
    Column("GPUS", "gpu_utilization", _form("{:.1%}"), most_first=True),
    Column("CHANGES", "reconfigurations", _count),
    Column("WALL", "wall_s", _form("{:.1f}s")),
)
GROUPS = (  # by user or account
    Column("JOBS", "jobs", _count),
    DROPPED,
    Column("GPU-H", "gpu_hours", lambda value: f"{value:.3g}" if value < 100 else f"{value:.0f}"),
    Column("AVG JCT", "avg_jct_s", render.span),
    Column("P99", "p99_jct_s", render.span),
    Column("QUEUEING", "avg_queueing_s", render.span),
    Column("UNFAIRNESS", "avg_finish_time_fairness", _form("{:.3g}")),
    Column("WORST", "max_finish_time_fairness", _form("{:.3g}")),
)
MOST_GROUPS = 20  # users or accounts that are shown under each policy
ALL = (*TIMES, *DEADLINES, *QUALITY, *CLUSTER)


def column(name: str, among: Sequence[Column] = ALL, option: str = "--sort") -> Column:
    """Return a column by its head, or by the name of its figure. Raises UserError, naming `option`."""
    asked = _plain(name)
    for each in among:
        if asked in (_plain(each.head), _plain(each.figure)):
            return each
    known = ", ".join(each.head.casefold().replace(" ", "-") for each in among)
    raise UserError(f"{option}: there is no column {name!r}; there are {known}")


def _plain(name: str) -> str:
    return name.casefold().replace("-", " ").replace("_", " ")


def tables(document: Mapping[str, Any]) -> list[Table]:
    """Return all tables for the JSON of a simulation; with half-widths of the intervals if there are several seeds."""
    found = document["policies"]
    halves = document["interval_95"] if "interval_95" in document and differ(document) else {}
    deadlines = any(figures["deadline_ratio"] is not None for figures in found.values())
    groups: list[Sequence[Column]] = [TIMES, *([DEADLINES] if deadlines else []), QUALITY, CLUSTER]
    if halves:  # a value with its interval takes twice as much room
        groups = [part for columns in groups for part in (columns[:4], columns[4:])]
    return [_table(columns, found, halves) for columns in groups]


def _table(columns: Sequence[Column], found: Mapping[str, Figures], halves: Mapping[str, Figures]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("POLICY", no_wrap=True)
    for each in columns:
        table.add_column(each.head, justify="right")
    for label, figures in found.items():
        table.add_row(label, *(cell(each, figures, halves.get(label) or {}) for each in columns))
    return table


def groups_tables(by: str, found: Mapping[str, Any]) -> list[Table]:
    """Return the results by user or account (`by`) in the JSON of a simulation as tables, for the largest of each policy."""
    from rich.table import Table

    halves = {label: one.get("interval_95", {}) for label, one in found.items()}
    shown = [each for each in GROUPS if each is not DROPPED or any(_drops(one) for one in found.values())]
    parts = [shown[:5], shown[5:]] if len(shown) == len(GROUPS) or any(halves.values()) else [shown]
    tables = []
    for columns in parts:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("POLICY", no_wrap=True)
        table.add_column(by.upper(), no_wrap=True)
        for each in columns:
            table.add_column(each.head, justify="right")
        for label, one in found.items():
            title = label
            for name in list(one["groups"])[:MOST_GROUPS]:
                cells = (cell(each, one["groups"][name], halves[label].get(name) or {}) for each in columns)
                table.add_row(title, render.printable(name) or "-", *cells)
                title = ""
        tables.append(table)
    return tables


def _drops(found: Mapping[str, Any]) -> bool:
    return any(one[DROPPED.figure] for one in found["groups"].values())


def cell(shown: Column, figures: Figures, halves: Figures) -> str:
    """Return a value as text, with its interval if there is one."""
    value, half = figures[shown.figure], halves.get(shown.figure)
    if value is None:
        return "-"
    return f"{shown.show(value)} ±{shown.show(half)}" if half else shown.show(value)


def differ(document: Mapping[str, Any]) -> bool:
    """Return whether the results of the seeds differ in any figure that is not a measured time."""
    clocks = {"wall_s", "avg_decision_s", "p99_decision_s"}
    halves = document["interval_95"].values()
    return any(half for one in halves for name, half in one.items() if name not in clocks)
