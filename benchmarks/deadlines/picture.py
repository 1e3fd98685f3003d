"""Picture of the day: each job's planned and actual end, and its GPUs over time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from .day import MOST, Story

BLUE, ORANGE, GREEN, GREY = "#0072b2", "#e69f00", "#009e73", "0.6"  # for colour-blind readers, too (Okabe and Ito)
KINDS = {"hard deadline": BLUE, "soft deadline": ORANGE, "no deadline": GREEN, "refused": GREY}


def draw(path: Path, stories: Sequence[Story], gpus: int, length_s: float) -> None:
    """Draw one row per job, and below the GPUs of all jobs together."""
    figure = Figure(figsize=(9, 1.8 + 0.26 * len(stories)), layout="constrained")
    top, below = figure.subplots(2, 1, sharex=True, height_ratios=(0.26 * len(stories) + 0.3, 1.2))
    end_s = max([length_s, *(story.ended_s or 0.0 for story in stories)])
    for row, story in enumerate(stories):
        _job(top, row, story, end_s)
    top.set_ylim(len(stories) - 0.4, -0.6)
    top.set_yticks(range(len(stories)), [story.name for story in stories], fontsize=7)
    top.set_ylabel("jobs; height of a bar: 1 to 4 GPUs")
    top.legend(handles=_legend(), ncols=4, fontsize=7, loc="lower left", frameon=False, bbox_to_anchor=(0.0, 1.0))
    _together(below, stories, end_s)
    below.axhline(gpus, color="black", linewidth=0.6)
    below.set_ylim(0, gpus + 1)
    below.set_ylabel("GPUs")
    below.set_xlabel("seconds since the day began")
    below.set_xlim(0, end_s)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _kind(story: Story) -> str:
    if story.verdict == "refused":
        return "refused"
    if story.deadline_s is None:
        return "no deadline"
    return "soft deadline" if story.soft else "hard deadline"


def _job(axes: Axes, row: int, story: Story, end_s: float) -> None:
    colour = KINDS[_kind(story)]
    until_s = story.ended_s if story.ended_s is not None else end_s
    axes.plot(
        [story.submitted_s, until_s if story.shares else story.submitted_s], [row, row], color=colour, linewidth=0.5
    )
    for (begin_s, share), (over_s, _) in pairwise([*story.shares, (until_s, 0)]):
        if share:
            high = 0.85 * share / MOST
            axes.barh(row, over_s - begin_s, left=begin_s, height=high, color=colour, linewidth=0)
    if story.verdict == "refused":
        axes.plot(story.submitted_s, row, marker="x", color=colour, markersize=5)
    if story.deadline_s is not None:
        axes.plot(story.deadline_s, row, marker="|", color="black", markersize=9, markeredgewidth=1.5, clip_on=True)
    if story.planned_s is not None:
        axes.plot(story.planned_s, row, marker="d", color="white", markeredgecolor="black", markersize=4)


def _together(axes: Axes, stories: Sequence[Story], end_s: float) -> None:
    times = sorted({0.0, end_s, *(at for story in stories for at, _ in story.shares), *_ends(stories)})
    levels = {kind: [sum(_share(s, at) for s in stories if _kind(s) == kind) for at in times] for kind in KINDS}
    axes.stackplot(times, *levels.values(), colors=list(KINDS.values()), step="post", linewidth=0)


def _ends(stories: Sequence[Story]) -> list[float]:
    return [story.ended_s for story in stories if story.ended_s is not None]


def _share(story: Story, at_s: float) -> int:
    if story.ended_s is not None and at_s >= story.ended_s:
        return 0
    return next((share for begin_s, share in reversed(story.shares) if begin_s <= at_s), 0)


def _legend() -> list[Patch | Line2D]:
    marks = [
        Line2D([], [], marker="|", color="black", markersize=9, markeredgewidth=1.5, linestyle="", label="deadline"),
        Line2D(
            [], [], marker="d", color="white", markeredgecolor="black", markersize=4, linestyle="", label="planned end"
        ),
        Line2D([], [], marker="x", color=GREY, markersize=5, linestyle="", label="refused"),
    ]
    return [*(Patch(color=colour, label=kind) for kind, colour in KINDS.items() if kind != "refused"), *marks]
