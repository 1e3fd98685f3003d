"""The results in docs/reports/benchmarks.md, between its markers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..pages import fill
from .courses import LIMIT, Comparison, average_jct_s, makespan_s
from .trace import Profile

BEGIN = "<!-- conformance: written by `make conformance`, from here -->"
END = "<!-- conformance: to here -->"


def publish(page: Path, section: str) -> None:
    """Write `section` between the markers of the page."""
    fill(page, BEGIN, END, [section])


def section(
    machine: Mapping[str, str], profile: Profile, costs: Mapping[str, float], comparisons: Sequence[Comparison]
) -> str:
    """Return the page's section on one run."""
    about = ", ".join(machine[key] for key in ("date", "processor", "memory", "system")) + f", torch {machine['torch']}"
    return "\n\n".join(
        [
            _results(comparisons),
            "![Shares over time and JCTs, really and simulated](conformance.png)",
            _throughputs(profile),
            _costs(costs),
            f"*{about}; load before: {machine['load']}.*",
        ]
    )


def _results(comparisons: Sequence[Comparison]) -> str:
    lines = [
        f"| policy | average JCT, real | simulated | difference | at most {100 * LIMIT:.0f} % | makespan, real | "
        "simulated | each job, on the mean | GPU-seconds that went elsewhere |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in comparisons:
        cells = (
            f"`{each.policy}`",
            f"{average_jct_s(each.real):.1f} s",
            f"{average_jct_s(each.simulated):.1f} s",
            f"{100 * each.error:+.1f} %",
            "yes" if each.conforms else "**no**",
            f"{makespan_s(each.real):.0f} s",
            f"{makespan_s(each.simulated):.0f} s",
            f"{100 * each.job_error:.1f} %",
            f"{100 * each.differing_share:.1f} %",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _throughputs(profile: Profile) -> str:
    shares = sorted({share for rates in profile.values() for share in rates})
    lines = [
        "Steps per second that were measured first, by GPUs:",
        "",
        f"| kind of job | {' | '.join(map(str, shares))} |",
        f"| --- |{' --- |' * len(shares)}",
    ]
    for name, rates in profile.items():
        cells = [f"{rates[share]:.2f}" if share in rates else "" for share in shares]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _costs(costs: Mapping[str, float]) -> str:
    lines = ["Cost of changes, medians:", "", "| what | seconds |", "| --- | --- |"]
    words = {
        "start_s": "from getting idle GPUs to a job's first step",
        "release_s": "the same on GPUs that another job has to give up: longer by",
        "ready_s": "from getting more GPUs until they work along",
        "pause_s": "training stands still at a resize",
        "end_s": "from the last step until the job is over and its GPUs are free",
    }
    lines += [f"| {words[name]} (`{name}`) | {value:.2f} |" for name, value in costs.items()]
    return "\n".join(lines)
