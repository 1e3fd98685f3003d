"""Links between the pages lead to files and headings that exist, in the repository and on the site."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
EXTERNAL = ("http://", "https://", "mailto:")
MOST_WORDS_OF_THE_README = 700


def prose(page: Path) -> str:
    """The page without its code blocks, in which a `#` begins a comment and brackets are code."""
    return FENCE.sub("", page.read_text())


@cache
def anchors(page: Path) -> frozenset[str]:
    """The names under which GitHub and MkDocs know the headings of a page: lower case, words joined by hyphens.

    Of equal headings the second is `name-1` on GitHub and `name_1` with MkDocs, so only the first may be linked.
    """
    titles = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in HEADING.findall(prose(page)))
    return frozenset(re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles)


def dead_links(page: Path) -> Iterator[str]:
    for link in LINK.findall(re.sub(r"`[^`\n]*`", "", prose(page))):
        if link.startswith(EXTERNAL):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and (target.suffix != ".md" or anchor not in anchors(target))):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert not list(dead_links(page))


def test_a_link_to_a_missing_heading_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A title\n\n```sh\n# no title\n```\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md#a-title) [b](there.md#no-title) [c](gone.md) [d](https://example.org) `[e](gone.md)`\n"
    )
    assert list(dead_links(page)) == ["there.md#no-title", "gone.md"]


def navigated(entry: object) -> Iterator[str]:
    """The pages of a part of the site's navigation."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        for inner in entry.values():
            yield from navigated(inner)
    elif isinstance(entry, list):
        for inner in entry:
            yield from navigated(inner)


def test_the_site_leads_to_every_page_for_users_and_operators() -> None:
    told = set(navigated(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert [name for name in told if not (ROOT / "docs" / name).exists()] == []
    assert {path.name for path in (ROOT / "docs").glob("*.md")} <= told


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= MOST_WORDS_OF_THE_README
