"""docs/reports/conformance.png, in the style of AFS Fig. 15: shares over time, real and simulated, and each job's JCT."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure  # not pyplot, since this draws into a file and needs no display
from matplotlib.ticker import MaxNLocator

from .courses import Comparison, Course, average_jct_s, makespan_s, times_of_change

# Okabe and Ito's palette for colour-blind readers. Neighbours differ; white lines separate areas of one colour.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
REAL, SIMULATED = "0.25", "#56B4E9"


def draw(path: Path, comparisons: Sequence[Comparison], gpus: int) -> None:
    """Draw a band per policy: the cluster above, the simulator below, the jobs' JCTs at the side."""
    figure = Figure(figsize=(13, 4.6 * len(comparisons)), dpi=130, layout="constrained")
    bands = figure.subfigures(len(comparisons), 1, squeeze=False)[:, 0]
    for band, comparison in zip(bands, comparisons, strict=True):
        panels = band.subplot_mosaic([["real", "jct"], ["simulated", "jct"]], width_ratios=(2.2, 1))
        end_s = max(makespan_s(comparison.real), makespan_s(comparison.simulated))
        for which, courses in (("real", comparison.real), ("simulated", comparison.simulated)):
            _shares(panels[which], courses, gpus, end_s)
            title = f"{which}: average JCT {average_jct_s(courses):.1f} s, makespan {makespan_s(courses):.0f} s"
            panels[which].set_title(title, loc="left", fontsize=10)
        panels["real"].tick_params(labelbottom=False)
        panels["simulated"].set_xlabel("time (s)")
        _jcts(panels["jct"], comparison)
        band.suptitle(f"{comparison.policy}: {100 * comparison.error:+.1f} %", x=0.01, ha="left", fontsize=13)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _shares(axes: Axes, courses: Sequence[Course], gpus: int, end_s: float) -> None:
    """Draw stacked areas, one per job; white: free, or moving between jobs."""
    times = times_of_change(courses)
    lower = [0] * len(times)
    for number, course in enumerate(courses):
        upper = [below + course.share_at(time_s) for below, time_s in zip(lower, times, strict=True)]
        colour = COLOURS[number % len(COLOURS)]
        axes.fill_between(times, lower, upper, step="post", color=colour, linewidth=0)
        axes.plot(times, upper, drawstyle="steps-post", color="white", linewidth=0.8)
        _name(axes, course.name.removeprefix("job"), times, lower, upper, end_s)
        lower = upper
    axes.set(xlim=(0, end_s), ylim=(0, gpus), ylabel="GPUs")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
    axes.spines[["top", "right"]].set_visible(False)


def _name(
    axes: Axes, text: str, times: Sequence[float], lower: Sequence[int], upper: Sequence[int], end_s: float
) -> None:
    """Write the job's number where its area is largest and wide enough."""
    stretches = [each for each in zip(times, times[1:], lower, upper, strict=False) if each[3] > each[2]]
    if not stretches:
        return
    begin, end, low, high = max(stretches, key=lambda each: (each[1] - each[0]) * (each[3] - each[2]))
    if end - begin > end_s / 60:
        axes.text((begin + end) / 2, (low + high) / 2, text, ha="center", va="center", fontsize=7, color="black")


def _jcts(axes: Axes, comparison: Comparison) -> None:
    """Draw two bars per job."""
    rows = range(len(comparison.real))
    for courses, offset, colour, label in (
        (comparison.real, -0.2, REAL, "real"),
        (comparison.simulated, 0.2, SIMULATED, "simulated"),
    ):
        axes.barh([row + offset for row in rows], [course.jct_s for course in courses], 0.38, color=colour, label=label)
    names = [f"{course.name.removeprefix('job')} {course.kind}" for course in comparison.real]
    axes.set_yticks(list(rows), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("JCT (s)")
    axes.set_title(f"each job: {100 * comparison.job_error:.1f} % apart on the mean", loc="left", fontsize=10)
    axes.legend(frameon=False, loc="best", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
