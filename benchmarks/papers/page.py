"""docs/reports/papers.md, written from results: sections with tables, pictures, findings and explanations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill
from typing import Any

from matplotlib.figure import Figure

from .findings import Finding, number

WIDTH = 158  # of the page's lines

Draw = Callable[[Figure], None]
Row = tuple[str, str, str, str, str]  # what, published, where, ours, deviation


@dataclass(frozen=True)
class Picture:
    """A picture: `draw` fills a figure of `size` inches."""

    file: str
    caption: str
    size: tuple[float, float]
    draw: Draw


@dataclass(frozen=True)
class Section:
    """Section on one figure or table of a paper."""

    title: str
    text: str  # what was published, and how it is reproduced
    findings: Sequence[Finding]
    explanations: Mapping[str, str]
    tables: Sequence[str] = ()
    pictures: Sequence[Picture] = field(default_factory=tuple)

    def markdown(self, folder: str) -> str:
        parts = [f"## {self.title}", *paragraphs(self.text), *self.tables]
        figure = self.title.partition(":")[0]
        parts += [f"![{figure}]({folder}/{picture.file})\n\n{picture.caption}" for picture in self.pictures]
        shown = [finding for finding in self.findings if finding.deviates or not finding.in_table]
        parts += _in_table([finding for finding in self.findings if finding not in shown])
        parts += [_findings(shown, self.explanations)] if shown else []
        parts += [fill(f"- **{key}**: {text}", WIDTH, subsequent_indent="  ") for key, text in self._given()]
        return "\n\n".join(parts)

    def document(self) -> dict[str, Any]:
        """Return the section for JSON."""
        return {
            "title": self.title,
            "findings": [
                {
                    "key": finding.key,
                    "what": finding.what,
                    "published_low": finding.published.low,
                    "published_high": finding.published.high,
                    "source": finding.published.where,
                    "ours": finding.ours,
                    "unit": finding.unit.strip(),
                    "deviation": finding.deviation,
                    "explanation": self.explanations.get(finding.key) if finding.deviates else None,
                }
                for finding in self.findings
            ],
        }

    def _given(self) -> list[tuple[str, str]]:
        """Return explanations of existing deviations: each text once, with all findings that it explains."""
        keys: dict[str, list[str]] = {}
        for finding in self.findings:
            if finding.deviates and finding.key in self.explanations:
                keys.setdefault(" ".join(self.explanations[finding.key].split()), []).append(finding.key)
        return [(", ".join(named), text) for text, named in keys.items()]


def _findings(findings: Sequence[Finding], explanations: Mapping[str, str]) -> str:
    rows: list[Row] = [
        (
            finding.what,
            finding.published.words(finding.unit),
            finding.published.where,
            f"{number(finding.ours)}{finding.unit}",
            _verdict(finding, explanations),
        )
        for finding in findings
    ]
    return table(("what", "published", "where", "ours", "deviation"), folded(rows))


def folded(rows: Sequence[Row]) -> list[Row]:
    """Merge the rows of one measure with one published number, such as `AFS-L over SRTF` on each trace."""
    groups: dict[tuple[str, str, str], list[tuple[str, Row]]] = {}
    for row in rows:
        subject, _, measure = row[0].rpartition(": ")
        groups.setdefault((measure, row[1], row[2]), []).append((subject.rpartition(": ")[2], row))
    found: list[Row] = []
    for (measure, published, where), members in groups.items():
        if len(members) == 1:
            found.append(members[0][1])
            continue
        ours = {row[3] for _, row in members}
        values = f"{ours.pop()} on all" if len(ours) == 1 else ", ".join(f"{name} {row[3]}" for name, row in members)
        deviations = ", ".join(f"{name} {row[4]}" for name, row in members if row[4] != "none")
        found.append((measure, published, where, values, deviations or "none"))
    return found


def _in_table(findings: Sequence[Finding]) -> list[str]:
    """Return the sentence for findings with numbers in a table of the section."""
    if not findings:
        return []
    most = max((finding.deviation for finding in findings), key=abs)
    return [f"The {len(findings)} pairs of numbers in the table above differ by {abs(most):.1%} at most."]


def _verdict(finding: Finding, explanations: Mapping[str, str]) -> str:
    if not finding.deviation:
        return "none"
    percent = f"{finding.deviation:+.1%}"
    if not finding.deviates:
        return percent
    return f"{percent}: {finding.key}" if finding.key in explanations else f"{percent}, **not explained**"


def paragraphs(text: str) -> list[str]:
    """Rewrap the paragraphs of a text to the page's width. Indented ones are kept."""
    parts = text.split("\n\n")
    return [part if part.startswith(" ") else fill(part, WIDTH, break_on_hyphens=False) for part in parts]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(header)} |", f"| {' | '.join('---' for _ in header)} |"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def save(picture: Picture, folder: Path) -> None:
    figure = Figure(figsize=picture.size, dpi=130, layout="constrained")
    picture.draw(figure)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / picture.file)
