"""docs/papers.md, written from results: sections of tables, pictures, findings and their explanations."""

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


@dataclass(frozen=True)
class Picture:
    """`draw` fills a figure of `size` inches."""

    file: str
    caption: str
    size: tuple[float, float]
    draw: Draw


@dataclass(frozen=True)
class Section:
    """One figure or table of a paper."""

    title: str
    text: str  # what was published, and what stands in for what
    findings: Sequence[Finding]
    explanations: Mapping[str, str]
    tables: Sequence[str] = ()
    pictures: Sequence[Picture] = field(default_factory=tuple)

    def markdown(self, folder: str) -> str:
        parts = [f"## {self.title}", *paragraphs(self.text), *self.tables]
        parts += [f"![{picture.caption}]({folder}/{picture.file})\n\n*{picture.caption}*" for picture in self.pictures]
        parts += [_findings(self.findings, self.explanations)] if self.findings else []
        parts += [fill(f"- **{key}**: {text}", WIDTH, subsequent_indent="  ") for key, text in self._given()]
        return "\n\n".join(parts)

    def document(self) -> dict[str, Any]:
        """For programs."""
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
        """Explanations of deviations that are there, each text once, before it all that it explains."""
        keys: dict[str, list[str]] = {}
        for finding in self.findings:
            if finding.deviates and finding.key in self.explanations:
                keys.setdefault(" ".join(self.explanations[finding.key].split()), []).append(finding.key)
        return [(", ".join(named), text) for text, named in keys.items()]


def _findings(findings: Sequence[Finding], explanations: Mapping[str, str]) -> str:
    rows = [
        (
            finding.what,
            finding.published.words(finding.unit),
            finding.published.where,
            f"{number(finding.ours)}{finding.unit}",
            _verdict(finding, explanations),
        )
        for finding in findings
    ]
    return table(("what", "published", "where", "ours", "deviation"), rows)


def _verdict(finding: Finding, explanations: Mapping[str, str]) -> str:
    if not finding.deviation:
        return "none"
    percent = f"{finding.deviation:+.1%}"
    if not finding.deviates:
        return percent
    return f"{percent}: {finding.key}" if finding.key in explanations else f"{percent}, **not explained**"


def paragraphs(text: str) -> list[str]:
    """As wide as the page's lines are; the source's are shorter. What is indented stays as it is."""
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
