"""Picture of throughputs, in the style of EDL Fig. 8, with the pace of one course below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.transient.course import Course

BASELINE, IDEAL, OURS = "0.7", "0.3", "#0072b2"  # for colour-blind readers, too (Okabe and Ito)
OTHERS = ("#d55e00", "#e69f00")


def draw(path: Path, courses: Mapping[str, Sequence[Course]], ours: str) -> None:
    """Draw the schemes' courses by the number of transient GPUs; `ours`: the scheme with the ideal and the baseline."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(3, 2))
    _bars(above, courses, ours)
    _pace(below, courses, ours)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _bars(axes: Axes, courses: Mapping[str, Sequence[Course]], ours: str) -> None:
    extras = [course.extra for course in courses[ours]]
    others = [name for name in courses if name != ours]
    rows = {
        "baseline": [course.baseline for course in courses[ours]],
        **{name: [course.ratio for course in courses[name]] for name in others},
        ours: [course.ratio for course in courses[ours]],
        "ideal": [1.0] * len(extras),
    }
    width = 0.8 / len(rows)
    for number, ((name, values), colour) in enumerate(
        zip(rows.items(), (BASELINE, *OTHERS[: len(others)], OURS, IDEAL), strict=True)
    ):
        at = [place + (number - (len(rows) - 1) / 2) * width for place in range(len(extras))]
        axes.bar(at, values, width * 0.9, color=colour, label=name)
        for x, value in zip(at, values, strict=True):
            axes.text(x, value + 0.01, f"{value:.2f}", ha="center", fontsize=7)
    axes.set_xticks(range(len(extras)), [f"{extra} that come and go" for extra in extras])
    axes.set(ylabel="throughput, of the ideal", ylim=(0, 1.15))
    axes.legend(loc="upper center", ncols=5, frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _pace(axes: Axes, courses: Mapping[str, Sequence[Course]], ours: str) -> None:
    others = [name for name in courses if name != ours]
    for name, colour in zip([*others, ours], (*OTHERS[: len(others)], OURS), strict=True):
        course = courses[name][-1]
        began_s = course.parts[0].begin_s
        steps = [step for step in course.steps if began_s <= step.at_s <= course.parts[-1].end_s]
        axes.plot(
            [(after.at_s - began_s) / 60 for _, after in pairwise(steps)],
            [1.0 / max(1e-3, after.at_s - before.at_s) for before, after in pairwise(steps)],
            linewidth=0.8,
            color=colour,
            label=name,
        )
    axes.set(
        xlabel=f"minutes, {courses[ours][-1].extra} GPUs that come and go", ylabel="steps per second", ylim=(0, None)
    )
    axes.grid(axis="y", color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
