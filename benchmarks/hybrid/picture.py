"""Picture of the accuracies, in the style of Elan Fig. 5 and 18."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.hybrid.train import Setting

BLUE, ORANGE, GREY = "#0072b2", "#e69f00", "0.4"  # for colour-blind readers, too (Okabe and Ito)
Curves = Mapping[Setting, Sequence[Sequence[float]]]  # accuracies after each epoch, by seed


def draw(path: Path, tasks: Mapping[str, Curves]) -> None:
    """Draw one row per task."""
    figure = Figure(figsize=(9, 3.0 * len(tasks)), layout="constrained")
    rows = figure.subplots(len(tasks), 2, squeeze=False)
    for (left, right), (name, curves) in zip(rows, tasks.items(), strict=True):
        _by_factor(left, curves)
        _over_epochs(right, curves)
        left.set_title(name, fontsize=9, loc="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _of(values: Sequence[float]) -> tuple[float, float]:
    return mean(values), stdev(values) if len(values) > 1 else 0.0


def _by_factor(axes: Axes, curves: Curves) -> None:
    fixed = {setting.factors[0]: setting for setting in curves if len(set(setting.factors)) == 1 and setting.follows}
    for follows, colour, label in ((True, BLUE, "rate follows (hybrid)"), (False, ORANGE, "rate stays (default)")):
        factors = sorted(fixed)
        found = [
            _of([each[-1] for each in curves[Setting((factor,) * 3, follows or factor == 1)]]) for factor in factors
        ]
        axes.errorbar(
            range(len(factors)),
            [100 * one for one, _ in found],
            [100 * spread for _, spread in found],
            color=colour,
            marker="o",
            markersize=4,
            capsize=3,
            label=label,
        )
    axes.set_xticks(range(len(fixed)), [f"{factor}" for factor in sorted(fixed)])
    axes.set_xlabel("factor of the batch")
    axes.set_ylabel("accuracy (%)")
    axes.legend(fontsize=7, frameon=False)


def _over_epochs(axes: Axes, curves: Curves) -> None:
    growing = next(setting.factors for setting in curves if len(set(setting.factors)) > 1)
    words = ", ".join(map(str, growing))
    for setting, colour, label in (
        (Setting((1, 1, 1)), GREY, "fixed batch"),
        (Setting(growing), BLUE, f"factors {words}, rate follows"),
        (Setting(growing, follows=False), ORANGE, f"factors {words}, rate stays"),
    ):
        seeds = curves[setting]
        found = [_of([100 * seed[epoch] for seed in seeds]) for epoch in range(len(seeds[0]))]
        epochs = range(1, len(found) + 1)
        axes.plot(epochs, [one for one, _ in found], color=colour, label=label, linewidth=1.2)
        axes.fill_between(
            epochs, [one - off for one, off in found], [one + off for one, off in found], color=colour, alpha=0.15
        )
    axes.set_xlabel("epoch")
    axes.legend(fontsize=7, frameon=False, loc="lower right")
