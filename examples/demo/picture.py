"""The picture that the demo writes: the number of GPUs that trained each job, over time, as stacked areas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure  # not pyplot: this draws into a file, whatever display there is
from matplotlib.ticker import MaxNLocator

from elasticd.protocol.messages import JobView

from .descriptions import quality
from .shares import colours, share_at, times_of_change


@dataclass(frozen=True)
class Mark:
    """A user's action at a time (Unix time)."""

    time_s: float
    text: str


def draw(
    path: Path, jobs: Sequence[JobView], capacity: int, began_s: float, ended_s: float, marks: Sequence[Mark]
) -> None:
    """Write a PNG of the shares of `jobs` between the two times (Unix time), on a cluster of `capacity` GPUs."""
    times = times_of_change(jobs, began_s, ended_s)
    figure = Figure(figsize=(10, 4.8), dpi=150, layout="constrained")
    axes: Axes = figure.subplots()
    lower = [0] * len(times)
    for number, job in enumerate(jobs):
        upper = [below + share_at(job, time_s) for below, time_s in zip(lower, times, strict=True)]
        _area(axes, number, job, [time_s - began_s for time_s in times], lower, upper)
        lower = upper
    _marks(axes, marks, capacity, began_s)
    axes.axhline(capacity, color="0.4", linewidth=1, linestyle="--")
    axes.set(xlim=(0, ended_s - began_s), ylim=(0, capacity + 1.1), xlabel="time (s)", ylabel="GPUs that train")
    axes.set_yticks(range(capacity + 1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(
        f"{len(jobs)} jobs share {capacity} slots (white: free, or a worker is starting)", loc="left", fontsize=12
    )
    figure.legend(loc="outside lower center", ncols=len(jobs), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _area(
    axes: Axes, number: int, job: JobView, x: Sequence[float], lower: Sequence[int], upper: Sequence[int]
) -> None:
    """Draw one job's area, with its name where there is most room."""
    colour, on_it = colours(number)
    label = ": ".join(part for part in (str(job.job), quality(job)) if part)
    axes.fill_between(x, lower, upper, step="post", color=colour, linewidth=0, label=label)
    for edge in (lower, upper):
        axes.plot(x, edge, drawstyle="steps-post", color="white", linewidth=1)
    stretches = [each for each in zip(x, x[1:], lower, upper, strict=False) if each[3] > each[2]]
    if stretches:
        begin, end, low, high = max(stretches, key=lambda each: (each[1] - each[0]) * (each[3] - each[2]))
        axes.text((begin + end) / 2, (low + high) / 2, job.spec.name, color=on_it, ha="center", va="center")


def _marks(axes: Axes, marks: Sequence[Mark], capacity: int, began_s: float) -> None:
    """Draw the actions above the areas, in two rows so that neighbours do not overlap."""
    for number, mark in enumerate(marks):
        x, y = mark.time_s - began_s, capacity + (0.15, 0.6)[number % 2]
        axes.plot([x, x], [0, y + 0.1], color="0.3", linewidth=0.8, linestyle=":", zorder=0)
        axes.text(x, y + 0.1, f" {mark.text}", fontsize=8, color="0.2", ha="left", va="center")
