"""AFS Fig. 5 and Fig. 2: the average JCT of eight policies on Philly's virtual clusters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from elasticd.simulator.plots import style

from .bars import grouped, legend
from .cases import Case, afs, each
from .findings import Finding, above, between, number
from .inputs import Peers, VirtualCluster, published
from .page import Picture, Section, table
from .results import CELLS, Results

LENGTHS_KNOWN = ("srtf", "srsf", "optimus", "afs-l")
LENGTHS_UNKNOWN = ("tiresias-l", "max-min", "optimus", "themis", "afs-p")
POLICIES = tuple(dict.fromkeys(LENGTHS_KNOWN + LENGTHS_UNKNOWN))
OVER_TIME = ("srtf", "srsf", "max-min", "afs-l")  # Fig. 2
MODERATE, HEAVY = "e13805", "0e4a51"
HOUR_S, DAY_S = 3600.0, 86400.0
CROWDED = (1, 2, 3, 5, 6, 8)  # clusters on which Max-Min and Optimus do badly, and SRSF beats SRTF (AFS 5.2)

TEXT = """\
**Published.** AFS gives ranges over eleven traces: AFS-L 1.2x to 2.7x over SRTF, AFS-P 1.9x to 3.1x over Tiresias-L and
1.2x to 2.2x over Themis (1); both better than all other policies of their group. Max-Min and Optimus do badly on traces 1,
2, 3, 5, 6 and 8, where SRSF beats SRTF (5.2), and Max-Min beats both on the other five (2.2).

**Here.** 16 servers of 4 GPUs, no cost of changes, no packing, models as PCS drew them (AFS's own draw is not published).
AFS-P's unit is 2 h (3.3), Themis' lease 600 s without lengths (5.2). Tiresias-L has the thresholds of its own simulator
(3,250 and 7,200 GPU*s, no promotion), since AFS does not state its own."""

EXPLANATIONS: dict[str, str] = {}


def cases(clusters: Sequence[VirtualCluster]) -> Iterator[Case]:
    return each(clusters, POLICIES)


def section(results: Results, clusters: Sequence[VirtualCluster], peers: Peers) -> Section:
    drawn = [cluster for cluster in clusters if cluster.name in (MODERATE, HEAVY)]
    return Section(
        title="AFS Fig. 5: average JCT",
        text=TEXT,
        findings=list(_findings(results, published(clusters))),
        explanations=EXPLANATIONS,
        tables=[_jcts(results, clusters), *_absolute(results, clusters)],
        pictures=[
            Picture(
                "afs-average.png",
                "How many times shorter the average JCT is than the base's. Grey: what AFS published for AFS-L and AFS-P.",
                (11, 7),
                lambda figure: _draw(figure, results, clusters),
            ),
            Picture(
                "afs-over-time.png",
                "Queue, cluster efficiency and blocking index over time, as AFS Fig. 2, averaged over 1/240 of each run.",
                (11, 8),
                lambda figure: _draw_over_time(figure, results, drawn),
            ),
        ],
    )


def reduction(results: Results, cluster: VirtualCluster, base: str, policy: str) -> float:
    """Return the ratio of the base's average JCT to that of the policy."""
    return results[afs(cluster, base)].avg_jct_s / results[afs(cluster, policy)].avg_jct_s


def name(cluster: VirtualCluster) -> str:
    return cluster.name if cluster.number is None else f"{cluster.number}: {cluster.name}"


def draw_reductions(
    axes: Axes,
    results: Results,
    clusters: Sequence[VirtualCluster],
    base: str,
    policies: Sequence[str],
    band: tuple[float, float, str] | None = None,
) -> None:
    bars = {policy: [reduction(results, cluster, base, policy) for cluster in clusters] for policy in policies}
    grouped(
        axes, [name(cluster) for cluster in clusters], bars, f"average JCT of {base} / that of the policy", band=band
    )


def _findings(results: Results, clusters: Sequence[VirtualCluster]) -> Iterator[Finding]:
    for cluster in clusters:
        at = f"trace {name(cluster)}"

        def ratio(base: str, policy: str, cluster: VirtualCluster = cluster) -> float:
            return reduction(results, cluster, base, policy)

        key = str(cluster.number)
        yield Finding(f"L{key}", f"{at}: AFS-L over SRTF", between(1.2, 2.7, "5.2, Fig. 5"), ratio("srtf", "afs-l"))
        yield Finding(
            f"P{key}", f"{at}: AFS-P over Tiresias-L", between(1.9, 3.1, "5.2, Fig. 5"), ratio("tiresias-l", "afs-p")
        )
        yield Finding(f"T{key}", f"{at}: AFS-P over Themis", between(1.2, 2.2, "1, Fig. 5"), ratio("themis", "afs-p"))
        second = min(ratio(other, "afs-l") for other in LENGTHS_KNOWN if other != "afs-l")
        yield Finding(f"LB{key}", f"{at}: AFS-L over the best other one", above(1.0, "5.2"), second)
        second = min(ratio(other, "afs-p") for other in LENGTHS_UNKNOWN if other != "afs-p")
        yield Finding(f"PB{key}", f"{at}: AFS-P over the best other one", above(1.0, "5.2"), second)
        if cluster.number in CROWDED:
            yield Finding(f"S{key}", f"{at}: SRSF over SRTF", above(1.0, "5.2"), ratio("srtf", "srsf"))
            yield Finding(f"M{key}", f"{at}: SRTF over Max-Min", above(1.0, "2.2, 5.2"), ratio("max-min", "srtf"))
        else:
            yield Finding(f"M{key}", f"{at}: Max-Min over SRTF", above(1.0, "2.2, 5.2"), ratio("srtf", "max-min"))


def _jcts(results: Results, clusters: Sequence[VirtualCluster]) -> str:
    rows = [
        (
            name(cluster),
            number(cluster.jobs),
            *(number(results[afs(cluster, policy)].avg_jct_s) for policy in POLICIES),
        )
        for cluster in clusters
    ]
    return "Average JCT (s):\n\n" + table(("trace", "jobs", *POLICIES), rows)


def _absolute(results: Results, clusters: Sequence[VirtualCluster]) -> Iterator[str]:
    """Yield rows of AFS 2.2, which gives average JCTs on a moderately and a heavily loaded trace without naming these."""
    told = {
        MODERATE: ("moderate", "h", HOUR_S, ("31.1", "32.8", "18.3", "15.2")),
        HEAVY: ("heavy", "d", DAY_S, ("3.53", "3.32", "63.20", "2.40")),
    }
    rows: list[tuple[str, ...]] = []
    for cluster in clusters:
        if cluster.name in told:
            contention, unit, unit_s, published = told[cluster.name]
            ours = [f"{results[afs(cluster, policy)].avg_jct_s / unit_s:.2f}" for policy in OVER_TIME]
            rows.append((f"AFS, {contention} contention ({unit})", *published))
            rows.append((f"trace {name(cluster)} here ({unit})", *ours))
    if not rows:
        return
    yield (
        "Absolute values are told in AFS 2.2 for two traces that it does not name; "
        "beside them those here that are most like them:\n\n" + table(("average JCT", *OVER_TIME), rows)
    )


def _draw(figure: Figure, results: Results, clusters: Sequence[VirtualCluster]) -> None:
    above_, below_ = figure.subplots(2, 1)
    for axes, base, group, band in (
        (above_, "srtf", LENGTHS_KNOWN, (1.2, 2.7, "published of AFS-L")),
        (below_, "tiresias-l", LENGTHS_UNKNOWN, (1.9, 3.1, "published of AFS-P")),
    ):
        draw_reductions(axes, results, clusters, base, group, band)


def _draw_over_time(figure: Figure, results: Results, clusters: Sequence[VirtualCluster]) -> None:
    rows = figure.subplots(3, max(len(clusters), 1), squeeze=False)
    for column, cluster in enumerate(clusters):
        for place, policy in enumerate(OVER_TIME):
            record = results[afs(cluster, policy)]
            days = (np.arange(CELLS) + 0.5) * record.end_s / CELLS / DAY_S
            for row, values in enumerate((record.queue, record.efficiency, record.blocking)):
                rows[row, column].plot(days, values, linewidth=1.2, label=policy, **style(place))
        for row, title in enumerate(("queue length (jobs)", "cluster efficiency", "blocking index")):
            _finish(rows[row, column], f"{name(cluster)}: {title}")
        rows[0, column].set_yscale("symlog", linthresh=1)
        rows[2, column].set_yscale("symlog", linthresh=0.01)
        rows[2, column].set_xlabel("time (days)")
    legend(figure, rows[0, 0])


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="0.92")
    axes.spines[["top", "right"]].set_visible(False)
