"""Files named in the documents exist, under their present paths."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "agent",
    "benchmarks",
    "configs",
    "controller",
    "ctl",
    "docs",
    "examples",
    "protocol",
    "runtime",
    "scheduler",
)
FOLDERS += ("integrations", "scripts", "simulator", "systemd", "tests", "verification", "worker")
FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.is_file()]
NAMES = {path.name for path in (*ROOT.iterdir(), *FILES)}
DOCUMENTS = [ROOT / "README.md", *(path for path in FILES if path.suffix == ".md")]
MODULES = [path for path in FILES if path.suffix == ".py"]

QUOTED = re.compile(r"`([^`\n]+)`")
A_FILE = re.compile(r"([\w./-]+\.(?:py|txt|md|yaml|pml))(?::\w[\w.]*)?")  # with a function of the file, perhaps
A_FUNCTION = re.compile(r"`([\w./-]+\.py):(\w[\w.]*)`")
A_LINK = re.compile(r"\]\(([^)\s]+)\)")
A_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
A_BLOCK = re.compile(r"```.*?```", re.DOTALL)
A_MODULE = re.compile(r"\belasticd((?:\.[a-z_]+)+)")


def named(text: str) -> Iterator[str]:
    """Files that a text names between backticks, alone or with a function: `ctl/main.py`, `ctl/main.py:main`."""
    for quoted in QUOTED.findall(text):
        found = A_FILE.fullmatch(quoted)
        if found is not None:
            yield found[1]


def is_there(name: str, beside: Path) -> bool:
    """A path is relative to the root or to the text's directory; a bare name may be any file's."""
    if "/" not in name:
        return name in NAMES
    return any((base / name).exists() for base in (ROOT, beside.parent))


def has_module(dotted: str) -> bool:
    """Is a prefix of `.agent.shim.Shim` a module?"""
    first, *more = dotted.strip(".").split(".")
    path = ROOT / first
    for word in more:
        if not path.is_dir():
            break  # a name within the module
        path = path / word if (path / word).is_dir() else path / f"{word}.py"
    return path.exists()


@cache
def defined(module: Path) -> set[str]:
    """Functions and classes of a module; those within a class as `Class.method`."""
    tree = ast.parse(module.read_text())
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_that_a_document_names_exists(document: Path) -> None:
    text = document.read_text()
    missing = [name for name in named(text) if not is_there(name, document)]
    missing += [f"elasticd{dotted}" for dotted in A_MODULE.findall(text) if not has_module(dotted)]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_function_that_a_document_names_is_in_its_file(document: Path) -> None:
    told = A_FUNCTION.findall(document.read_text())
    missing = [f"{name}:{function}" for name, function in told if function not in defined(ROOT / name)]
    assert not missing


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = [
        re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in A_HEADING.findall(A_BLOCK.sub("", page.read_text()))
    ]
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_document_leads_to_a_file_and_a_heading(document: Path) -> None:
    broken = []
    for link in A_LINK.findall(A_BLOCK.sub("", document.read_text())):
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        if "://" not in link and not (target.exists() and (not anchor or anchor in anchors(target))):
            broken.append(link)
    assert not broken


def test_every_path_that_a_comment_or_a_docstring_names_exists() -> None:
    missing = [
        f"{module.relative_to(ROOT)}: {name}"
        for module in MODULES
        for name in named(module.read_text())
        if "/" in name and not is_there(name, module)
    ]
    assert not missing


def test_every_section_of_the_design_that_a_docstring_cites_exists() -> None:
    """ "worker-runtime 4" is the fourth point of that section of the design's first page."""
    sections = re.split(r"^## ", (ROOT / "docs" / "design" / "README.md").read_text(), flags=re.MULTILINE)
    points = {part.split("\n", 1)[0]: len(re.findall(r"^\d+\. ", part, re.MULTILINE)) for part in sections}
    missing = [
        f"{module.relative_to(ROOT)}: {section} {number}"
        for module in MODULES
        for section, number in re.findall(r"[ (](worker-runtime|cluster) (\d+)\b", module.read_text())
        if int(number) > points[section]
    ]
    assert points["worker-runtime"] >= 9
    assert not missing
