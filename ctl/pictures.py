"""Pictures of `elasticctl report --plot`: one job's GPUs and pauses over its life, and GPU-hours by user, day or job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..protocol.errors import UserError
from ..protocol.messages import JobView, UsageBy, UsageRow
from ..protocol.texts import gpu_count
from .context import check_output
from .formatting import printable, span

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".pdf", ".svg")
MOST_ROWS = 40  # most bars in one picture
HOUR_S = 3600.0
UNITS_S = ((2 * HOUR_S, HOUR_S, "hours"), (120.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
# Okabe and Ito's palette, which colour-blind readers can distinguish
KINDS = (("used", "#0072B2"), ("paused", "#E69F00"), ("idle", "#999999"), ("lost", "#D55E00"))


def check(path: Path) -> None:
    """Raise UserError if no picture can be written there, before anything is computed."""
    check_output("--plot", path)
    if path.suffix not in SUFFIXES:
        raise UserError(f"--plot: {path} must end in {', '.join(SUFFIXES)}")
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise UserError("--plot: matplotlib is not installed: pip install 'elasticctl[plots]'")


def draw_job(path: Path, view: JobView, now_s: float) -> None:
    """Write a picture of a job's GPUs over time, from its submission on, and of the pause of each resize.

    The ending of `path` determines the format.
    """
    until_s = view.finished_s if view.finished_s is not None else now_s
    unit_s, unit = next((unit_s, unit) for least_s, unit_s, unit in UNITS_S if until_s - view.submitted_s >= least_s)
    figure, (above, below) = _figure(2, 6.0)
    changes = [(view.submitted_s, 0), *((each.time_s, each.share) for each in view.shares)]
    times = [(time_s - view.submitted_s) / unit_s for time_s, _ in changes]
    shares = [share for _, share in changes]
    above.step([*times, (until_s - view.submitted_s) / unit_s], [*shares, shares[-1]], where="post", color=KINDS[0][1])
    losses = [each for each in view.past_workers if each.exit_code not in (None, 0)]
    above.set_ylim(0, max(shares) + 1)
    above.set_xlabel(f"{unit} since its submission")
    above.set_title(
        f"GPUs ({len(view.resizes)} resizes, {view.restarts} restarts, {len(losses)} workers lost)", loc="left"
    )
    for recovery, colour, label in ((False, KINDS[0][1], "resize"), (True, KINDS[3][1], "after a loss")):
        found = [(place, each.paused_s) for place, each in enumerate(view.resizes, 1) if each.recovery is recovery]
        below.bar(
            [place for place, _ in found], [1000.0 * paused_s for _, paused_s in found], color=colour, label=label
        )
    below.set_xlabel("resize")
    below.set_title("pause of each resize beyond one step (ms)", loc="left")
    if view.resizes:
        below.legend(frameon=False)
    waited_s = next((each.time_s for each in view.shares if each.share), until_s) - view.submitted_s
    most = gpu_count(max(view.peak_gpus, *shares))
    _write(path, figure, f"{printable(view.job)}: {view.phase.value}, waited {span(waited_s)}, at most {most}")


def draw_usage(path: Path, rows: Sequence[UsageRow], by: UsageBy) -> None:
    """Write a picture of GPU-hours by user, day or job; those with most come first, days in their order.

    The ending of `path` determines the format.
    """
    chosen = list(rows) if by is UsageBy.DAY else sorted(rows, key=lambda each: -each.gpu_seconds.held_gpu_s)
    left_out = max(0, len(chosen) - MOST_ROWS)
    chosen = chosen[-MOST_ROWS:] if by is UsageBy.DAY else chosen[:MOST_ROWS]
    figure, (axes,) = _figure(1, 2.0 + 0.25 * len(chosen))
    begins = [0.0] * len(chosen)
    for kind, colour in KINDS:
        hours = [getattr(each.gpu_seconds, f"{kind}_gpu_s") / HOUR_S for each in chosen]
        axes.barh(range(len(chosen)), hours, left=begins, color=colour, label=kind)
        begins = [begin + more for begin, more in zip(begins, hours, strict=True)]
    axes.set_yticks(range(len(chosen)), [printable(getattr(each, by.value)) for each in chosen])
    axes.invert_yaxis()
    axes.set_xlabel("GPU-hours")
    axes.legend(frameon=False, ncols=len(KINDS), loc="lower right", bbox_to_anchor=(1.0, 1.0))
    _write(path, figure, f"GPU-hours by {by.value}" + (f" ({left_out} more are left out)" if left_out else ""))


def _figure(panels: int, height: float) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure  # not pyplot: this draws into a file, with or without a display

    figure = Figure(figsize=(10, height), dpi=130, layout="constrained")
    axes = figure.subplots(panels, 1, squeeze=False)[:, 0]
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _write(path: Path, figure: Figure, title: str) -> None:
    figure.suptitle(title, x=0.01, ha="left", parse_math=False)
    try:
        figure.savefig(path)
    except OSError as error:
        raise UserError(f"--plot: {path}: {error.strerror}") from None
