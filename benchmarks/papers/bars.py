"""Grouped bars in the style of AFS Fig. 5: a group per virtual cluster, a bar per policy, a line at 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from elasticd.simulator.plots import COLOURS

WIDTH = 0.82  # of a group


def grouped(
    axes: Axes,
    groups: Sequence[str],
    bars: Mapping[str, Sequence[float]],
    title: str,
    unity: bool = True,
    logarithmic: bool = False,
    band: tuple[float, float, str] | None = None,
) -> None:
    """Draw. bars: by label, a height per group. band: published range, as lower end, upper end and name."""
    one = WIDTH / len(bars)
    if band is not None:
        axes.axhspan(band[0], band[1], color="0.9", zorder=0, label=band[2])
    for place, (label, heights) in enumerate(bars.items()):
        at = [group - WIDTH / 2 + (place + 0.5) * one for group in range(len(groups))]
        axes.bar(at, heights, one * 0.92, color=COLOURS[place % len(COLOURS)], label=label, zorder=2)
        for x, height in zip(at, heights, strict=True):
            axes.annotate(
                f"{height:.2g}" if height < 1 else f"{height:.3g}",
                (x, height),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=7,
                rotation=90 if len(bars) * len(groups) > 20 else 0,
            )
    if unity:
        axes.axhline(1.0, color="black", linewidth=0.9, linestyle=":", zorder=3)
    if logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        low, high = axes.get_ylim()
        axes.set_ylim(low, high * 1.6)
    else:
        axes.set_ylim(0, axes.get_ylim()[1] * 1.12)
    axes.set_xticks(range(len(groups)), groups)
    axes.tick_params(axis="x", length=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.92", zorder=0)
    axes.set_axisbelow(True)
    axes.set_title(title, loc="left", fontsize=11)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)


def legend(figure: Figure, axes: Axes, columns: int = 6) -> None:
    """Add one legend for the whole figure, below it, with the entries of `axes`."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)), frameon=False)
