"""Task of a process of the pool: all histories of one script, with the process's own nursery."""

from __future__ import annotations

from pathlib import Path

from ..bits.nursery import Nursery
from . import worker
from .course import ALONE, STORIES, run_story
from .index import BY_NAME
from .verdict import Verdict, judge

_nursery: Nursery | None = None


def begin() -> None:
    global _nursery
    _nursery = Nursery(worker.__name__).__enter__()


def run_script(work: str, name: str, fixed: bool, only: str | None) -> Verdict:
    """Run all histories of a script, or only one beside ALONE, in a process that has a nursery."""
    assert _nursery is not None
    script = BY_NAME[name]
    directory = Path(work, f"{name}{'-fixed' if fixed else ''}")
    sources = directory / "sources"
    sources.mkdir(parents=True)
    script.write(sources, fixed)
    alone = run_story(_nursery, directory / "alone", sources, name, ALONE, script.fresh)
    stories = STORIES.values() if only is None else [STORIES[only]]
    told = stories if alone.phase == "finished" else ()
    endings = [run_story(_nursery, directory / story.name, sources, name, story, script.fresh) for story in told]
    verdict = judge(script, fixed, alone, endings)
    if verdict.other_bits:
        again = run_story(_nursery, directory / "again", sources, name, ALONE, script.fresh)
        verdict.repeatable = again.saved == alone.saved
    return verdict
