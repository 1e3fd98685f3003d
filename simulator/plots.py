"""One figure of several policies on one workload, in the manner of AFS' figures.

The panels show average and tail JCT by policy (AFS Fig. 5, 9), the distribution of JCT, and the reduction relative to
the first policy by length of the jobs (Fig. 10). Others show the queue, cluster efficiency, blocking index and GPU
utilization over time (Fig. 2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure  # not pyplot: this draws into a file, with or without a display
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ..scheduler.arrays import Floats
from .runs import Result, Series

# Okabe and Ito's palette, which colour-blind readers can distinguish; lines of one colour differ in their dashes.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")
CELLS = 240  # of the time axes: averages over equal parts
BINS = 50  # of jobs by length; AFS has 100
LEAST_JOBS = 4 * BINS
DAY_S = 86_400.0
SPANS_S = ((1.0, "1 s"), (60.0, "1 min"), (3600.0, "1 h"), (DAY_S, "1 d"), (30 * DAY_S, "30 d"))


def draw(path: Path, results: Mapping[str, Result], title: str, gpus: int) -> None:
    """Write the figure of the policies' results, by label, on a cluster of `gpus` GPUs.

    The ending of `path` determines the format.
    """
    figure = Figure(figsize=(12, 15), dpi=130, layout="constrained")
    axes = figure.subplots(4, 2)
    series = {label: result.series for label, result in results.items()}
    _bars(axes[0, 0], {label: result.metrics.avg_jct_s for label, result in results.items()}, "average JCT")
    _bars(axes[0, 1], {label: result.metrics.p99_jct_s for label, result in results.items()}, "99th percentile of JCT")
    _distribution(axes[1, 0], series)
    _by_length(axes[1, 1], series)
    end_s = max((float(each.time_s[-1]) for each in series.values() if len(each.time_s)), default=1.0) or 1.0
    _over_time(axes[2, 0], series, end_s, "queue length (jobs)", lambda each: each.queue.astype(np.float64))
    _over_time(axes[2, 1], series, end_s, "cluster efficiency", lambda each: each.efficiency)
    _over_time(axes[3, 0], series, end_s, "blocking index", lambda each: each.blocking)
    _over_time(axes[3, 1], series, end_s, "share of the GPUs in use (%)", lambda each: 100.0 * each.used_gpus / gpus)
    axes[2, 0].set_yscale("symlog", linthresh=1)
    axes[3, 0].set_yscale("symlog", linthresh=0.01)
    axes[3, 1].set_ylim(0, 105)
    for each in axes.flat:
        each.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13)
    handles = [Line2D([], [], label=label, linewidth=2.5, **style(place)) for place, label in enumerate(results)]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(results), 6), frameon=False, fontsize=11)
    figure.savefig(path)


def style(place: int) -> dict[str, Any]:
    """Return colour and dashes of a line, by its place among all."""
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": DASHES[place // len(COLOURS) % len(DASHES)]}


def _bars(axes: Axes, values: Mapping[str, float | None], name: str) -> None:
    """Draw one bar for each policy, with its value, and the ratio to the first one's."""
    labels = list(values)
    heights = [values[label] or 0.0 for label in labels]
    axes.barh(range(len(labels)), heights, color=[COLOURS[place % len(COLOURS)] for place in range(len(labels))])
    for place, height in enumerate(heights):
        ratio = f"  ({height / heights[0]:.2f})" if place and heights[0] else ""
        axes.text(height, place, f" {_span(height)}{ratio}", va="center", fontsize=9)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlim(0, max([*heights, 1e-9]) * 1.3)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.set_title(name + (f" (in brackets: to {labels[0]}'s)" if len(labels) > 1 else ""), loc="left", fontsize=11)


def _distribution(axes: Axes, series: Mapping[str, Series]) -> None:
    for place, each in enumerate(series.values()):
        jct_s = np.sort(np.maximum(each.jct_s[~np.isnan(each.jct_s)], 1e-3))
        axes.step(jct_s, np.arange(1, len(jct_s) + 1) * 100.0 / max(len(each.jct_s), 1), where="post", **style(place))
    axes.set(ylim=(0, 102), xlabel="JCT", ylabel="jobs (%)")
    axes.set_xscale("log")
    _label_spans(axes)
    axes.grid(color="0.92")
    axes.set_title("distribution of JCT", loc="left", fontsize=11)


def _by_length(axes: Axes, series: Mapping[str, Series]) -> None:
    """Draw each policy's factor of JCT reduction, over jobs in equal bins by their JCT under the first policy."""
    first = next(iter(series.values())).jct_s
    order = np.argsort(first)[: int((~np.isnan(first)).sum())]
    axes.set_title("JCT reduction by length of the job", loc="left", fontsize=11)
    if len(series) < 2 or len(order) < LEAST_JOBS:
        axes.text(
            0.5, 0.5, f"needs two policies and {LEAST_JOBS} jobs", ha="center", color="0.5", transform=axes.transAxes
        )
        axes.set(xticks=[], yticks=[])
        return
    bins = np.array_split(order, BINS)
    percent = (np.arange(BINS) + 0.5) * 100.0 / BINS
    for place, each in enumerate(series.values()):
        factors = [_mean(first[rows] / np.maximum(each.jct_s[rows], 1e-3)) for rows in bins]
        axes.plot(percent, factors, **style(place))
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high > 100 * low else (1.0, 2.0, 5.0), numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set(xlim=(0, 100), xlabel=f"percentile of JCT under {next(iter(series))}", ylabel="shorter by")
    axes.grid(axis="y", color="0.92")


def _over_time(
    axes: Axes, series: Mapping[str, Series], end_s: float, name: str, values: Callable[[Series], Floats]
) -> None:
    unit_s, unit = (DAY_S, "days") if end_s > 3 * DAY_S else (3600.0, "hours") if end_s > 7200 else (1.0, "seconds")
    edges = np.linspace(0.0, end_s, CELLS + 1)
    for place, each in enumerate(series.values()):
        axes.plot(
            (edges[:-1] + edges[1:]) / 2 / unit_s, averages(each, values(each), edges), linewidth=1.2, **style(place)
        )
    axes.set(xlim=(0, end_s / unit_s), xlabel=f"time ({unit})")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="0.92")
    axes.set_title(name, loc="left", fontsize=11)


def averages(series: Series, values: Floats, edges: Floats) -> Floats:
    """Return the mean over each cell of values that hold from each event to the next; after the last event there are
    none."""
    if not len(values):
        return np.zeros(len(edges) - 1)
    passed = np.concatenate([[0.0], np.cumsum(np.diff(series.time_s) * values[:-1])])
    return np.asarray(np.diff(np.interp(edges, series.time_s, passed)) / np.diff(edges))


def _label_spans(axes: Axes) -> None:
    low, high = axes.get_xlim()
    shown = [(at, text) for at, text in SPANS_S if low <= at <= high]
    if shown:
        axes.set_xticks([at for at, _ in shown], [text for _, text in shown])


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def _span(seconds: float) -> str:
    """Format a duration: "12 s", "3.4 min", "5.6 h", "7.8 d"."""
    sizes: Sequence[tuple[float, str]] = ((DAY_S, "d"), (3600.0, "h"), (60.0, "min"))
    return next((f"{seconds / size:.1f} {unit}" for size, unit in sizes if seconds >= 2 * size), f"{seconds:.0f} s")
