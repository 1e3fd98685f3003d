"""The verdicts as a table, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from .course import Verdict


def cell(verdict: Verdict) -> str:
    """Return bits, losses and samples of one script in one history, in a few words."""
    if verdict.problems:
        return "FAILED"
    bits = "bits equal" if not verdict.differing_bits else f"{verdict.differing_bits} BITS DIFFER"
    logs = "logs equal" if not verdict.differing_logs else "LOGS DIFFER"
    samples = "samples once" if not verdict.samples else "SAMPLES WRONG"
    return f"{bits}, {logs}, {samples}"


def line(verdict: Verdict) -> str:
    """Return a history's line."""
    return (
        f"{verdict.script:12s} {verdict.history:18s} {verdict.seconds:6.1f} s  {verdict.acts:2d} acts"
        f"  {verdict.kills:2d} kills  {verdict.restarts} restarts  {verdict.generations:3d} generations"
        f"  {verdict.results} results  {cell(verdict)}"
    )


def table(verdicts: Sequence[Verdict], skipped: Mapping[str, str]) -> str:
    """Return a Markdown table: a row per script, a column per history."""
    histories = list(dict.fromkeys(verdict.history for verdict in verdicts))
    rows = [["script", *histories]]
    for script in dict.fromkeys(verdict.script for verdict in verdicts):
        found = {verdict.history: cell(verdict) for verdict in verdicts if verdict.script == script}
        rows.append([script, *(found.get(history, "") for history in histories)])
    rows += [[script, *[f"skipped: {why}"] * len(histories)] for script, why in skipped.items()]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines)


def story(verdict: Verdict) -> str:
    """Return all information on a failed history."""
    wrong = [*verdict.problems, *verdict.samples]
    return "\n".join([f"\n{verdict.script}, {verdict.history}", *wrong, *verdict.log])


def write(path: Path, verdicts: Sequence[Verdict], skipped: Mapping[str, str], ddp: Mapping[str, int]) -> None:
    """Write everything as JSON. ddp: bits that differ from DistributedDataParallel, by script."""
    document = {"histories": [asdict(verdict) for verdict in verdicts], "skipped": dict(skipped), "ddp": dict(ddp)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
