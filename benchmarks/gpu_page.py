"""Page of the results of `make bench-gpu`: rules, measurements, and skipped parts with their reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .runtime.measurement import Measurement
from .runtime.report import table


def page(
    about: Mapping[str, str], rules: Sequence[Mapping[str, Any]], rows: Sequence[Measurement], not_run: Sequence[str]
) -> str:
    """Return the page in Markdown. rules: documents of `gpu_checks.Found`. not_run: a sentence for each skipped part."""
    parts = ["# The runtime on this machine's GPUs", ", ".join(about.values()), "## Rules"]
    states = {None: "not measured", True: "ok", False: "**failed**"}
    lines = ["| rule | | found |", "| --- | --- | --- |"]
    lines += [f"| {rule['name']} | {states[rule['ok']]} | {rule['text']} |" for rule in rules]
    parts.append("\n".join(lines) if rules else "Not looked at.")
    parts += ["## Measurements", table(rows) if rows else "None."]
    parts += ["## Not run", "\n".join(f"* {each}" for each in not_run) or "Nothing was left out."]
    return "\n\n".join(parts) + "\n"
