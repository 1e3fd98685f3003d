"""Two changes of the pages for the site (mkdocs.yml); GitHub shows the pages unchanged.

A link to a file outside of docs/ becomes the file's name: the site holds the pages alone, and MkDocs refuses such links. A
quoted error such as ``param_groups[0]['lr']`` in prose is escaped, since mkdocs-autorefs takes it for a cross-reference.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by MkDocs with the text of each page; returns the text that is shown."""
    beside = (DOCS / page.file.src_uri).parent

    def shown(link: re.Match[str]) -> str:
        target = (beside / link[2]).resolve()
        if target.is_relative_to(DOCS) and target.is_file():
            return link[0]
        return f"{link[1]} (`{target.relative_to(ROOT)}`)" if target.exists() and target != DOCS else link[0]

    parts = CODE.split(LINK.sub(shown, markdown))
    parts[::2] = [prose.replace("]['", "]\\['") for prose in parts[::2]]
    return "".join(parts)
