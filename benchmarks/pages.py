"""Pages of the documentation that a benchmark writes its results into, between two markers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def fill(page: Path, begin: str, end: str, paragraphs: Iterable[str]) -> None:
    """Replace what stands between the markers. Raises ValueError where they are not."""
    before, _, rest = page.read_text().partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{page} has no place for the results: {begin!r} … {end!r}")
    page.write_text("\n\n".join([before + begin, *paragraphs, end + after]))
