"""One job's steps through thirty resizes, as a picture: docs/reports/pauses.png."""

from __future__ import annotations

import random
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure  # not pyplot, since this draws into a file and needs no display

from .jobs import Load, OurJob
from .measurement import Measurement
from .pauses import EXTRA_MS, Pause, one_change
from .processes import ROOT, Family
from .record import applied_times, gaps

GROUP = "picture"
PICTURE = ROOT / "docs" / "reports" / "pauses.png"
RESIZES = 30
MOST = 4
STEPS = 20
QUIET_S = 0.7
BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "0.55"  # for colour-blind readers, too (Okabe and Ito)
NOTES = (
    "![Time from one applied step to the next, and the number of workers, over thirty resizes](pauses.png)",
    "",
    "Each dot is the time from one applied step to the next. A switch would show as a column of dots above the others.",
)


def measure(family: Family, quick: bool) -> list[Measurement]:
    """Resize one job repeatedly, and draw its steps."""
    load = Load("stack-0.1M", pace_s=0.01)
    targets = _targets(4 if quick else RESIZES)
    with tempfile.TemporaryDirectory(prefix="bench-runtime-") as directory:
        job = OurJob(family, Path(directory), load)
        try:
            job.start(1)
            pauses = [one_change(job, STEPS, QUIET_S, a, b) for a, b in zip([1, *targets], targets, strict=False)]
            times = applied_times(job.lines())
        finally:
            job.close()
    target = ROOT / "out" / "pauses-quick.png" if quick else PICTURE
    _draw(target, times, pauses, [1, *targets])
    milliseconds = sorted(pause.pause_s * 1e3 for pause in pauses)
    beyond = sum(pause.pause_s > pause.step_s + EXTRA_MS / 1e3 for pause in pauses)
    return [
        Measurement(
            group=GROUP,
            what=f"{load.model}, {len(pauses)} resizes between 1 and {MOST} workers: longest pause",
            against=f"median {median(milliseconds):.0f} ms; {beyond} beyond one more step and {EXTRA_MS:.0f} ms",
            value=milliseconds[-1],
            unit="ms",
            count=len(pauses),
            detail={"pauses": [asdict(pause) for pause in pauses]},
        ).show()
    ]


def _targets(count: int) -> list[int]:
    """Return random numbers of workers, each different from the one before, and the same in every run."""
    rng = random.Random(7)
    found = [1]
    while len(found) <= count:
        found.append(rng.choice([workers for workers in range(1, MOST + 1) if workers != found[-1]]))
    return found[1:]


def _draw(path: Path, times: list[float], pauses: list[Pause], workers: list[int]) -> None:
    figure = Figure(figsize=(10, 5.4), dpi=150, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    began_s = pauses[0].asked_s - 2.0
    _draw_steps(above, times, pauses, began_s)
    _draw_workers(below, pauses, workers, began_s, times[-1] - began_s)
    above.set_title(f"{len(pauses)} resizes of one job: the time that each step takes", loc="left", fontsize=12)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _draw_steps(axes: Axes, times: list[float], pauses: list[Pause], began_s: float) -> None:
    shown = [at for at in times if at >= began_s]
    step_ms = [gap_s * 1e3 for gap_s in gaps(shown)]
    axes.plot([at - began_s for at in shown[1:]], step_ms, ".", markersize=2.5, color=GREY, label="one step")
    for kind, colour, marker in (("out", BLUE, "^"), ("in", ORANGE, "v")):
        chosen = [pause for pause in pauses if pause.grows == (kind == "out")]
        axes.plot(
            [pause.gap_end_s - began_s for pause in chosen],
            [pause.gap_s * 1e3 for pause in chosen],
            marker,
            markersize=6,
            color=colour,
            linestyle="none",
            label=f"the longest around a resize, {kind}",
        )
    axes.set(ylabel="from one applied step\nto the next (ms)", ylim=(0, None))
    axes.grid(axis="y", color="0.9")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_workers(axes: Axes, pauses: list[Pause], workers: list[int], began_s: float, until_s: float) -> None:
    changes = [pause.asked_s + pause.took_s - began_s for pause in pauses]
    axes.step([0.0, *changes, until_s], [*workers, workers[-1]], where="post", color="0.2", linewidth=1.2)
    axes.set(xlabel="time (s)", ylabel="workers", ylim=(0, MOST + 0.5), xlim=(0, until_s))
    axes.set_yticks(range(MOST + 1))
    axes.grid(axis="y", color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
