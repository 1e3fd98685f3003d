"""Pages of the documentation with results of benchmarks between two markers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def fill(page: Path, begin: str, end: str, paragraphs: Iterable[str]) -> None:
    """Replace the text between the markers. Raises ValueError if the page lacks them."""
    before, _, rest = page.read_text().partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{page} has no place for the results: {begin!r} … {end!r}")
    page.write_text("\n\n".join([before + begin, *paragraphs, end + after]))
