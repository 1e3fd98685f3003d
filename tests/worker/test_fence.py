"""A worker whose job continues elsewhere overwrites no file of its successors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elasticd.worker.lineages import Name
from elasticd.worker.state.fence import Fence


def fence(directory: Path, generation: int) -> Fence:
    return Fence(directory / "checkpoints", lambda: generation)


def test_who_has_no_successor_saves_as_often_as_it_likes(tmp_path: Path) -> None:
    ours = fence(tmp_path, 3)
    assert ours.overtaken_by() is None, "there is no directory yet"
    for _ in range(2):
        ours.mark()
        assert ours.overtaken_by() is None
    assert fence(tmp_path, 5).overtaken_by() is None, "a later generation saves, too"


def test_who_was_left_behind_does_not_save_after_its_successors(tmp_path: Path) -> None:
    behind, ahead = fence(tmp_path, 3), fence(tmp_path, 7)
    behind.mark()
    ahead.mark()
    assert behind.overtaken_by() == 7
    behind.mark()
    assert behind.overtaken_by() == 7, "its own mark takes back nothing"
    assert ahead.overtaken_by() is None


def test_who_was_left_behind_does_not_save_once_its_successors_have_a_checkpoint(tmp_path: Path) -> None:
    behind = fence(tmp_path, 3)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / Name.of(3, 100).file).touch()
    assert behind.overtaken_by() is None
    (tmp_path / "checkpoints" / Name.of(4, 90).file).touch()
    assert behind.overtaken_by() == 4


def test_the_generation_is_that_of_the_moment(tmp_path: Path) -> None:
    now = [3]
    moving = Fence(tmp_path, lambda: now[0])
    Fence(tmp_path, lambda: 5).mark()
    assert moving.overtaken_by() == 5
    now[0] = 6
    assert moving.overtaken_by() is None


def test_a_directory_without_marks_is_no_sign_of_another_generation(tmp_path: Path) -> None:
    ours = fence(tmp_path, 0)
    assert ours.overtaken_by() is None
    (tmp_path / "checkpoints").mkdir()
    assert ours.overtaken_by() is None


def test_a_mark_is_left_where_no_directory_of_the_path_exists_yet(tmp_path: Path) -> None:
    fence(tmp_path / "cluster" / "job", 7).mark()
    assert fence(tmp_path / "cluster" / "job", 3).overtaken_by() == 7


def test_of_the_marks_that_one_worker_has_left_only_the_newest_stays(tmp_path: Path) -> None:
    for generation in (3, 5, 8):
        Fence(tmp_path, lambda generation=generation: generation).mark()  # type: ignore[misc]
    assert [path.name for path in tmp_path.iterdir()] == ["saved-by-generation-00000008"]


def test_a_mark_that_another_worker_removes_at_the_same_moment_keeps_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for generation in (1, 2):
        (tmp_path / f"saved-by-generation-{generation:08d}").touch()
    gone = "saved-by-generation-00000000"
    monkeypatch.setattr(os, "listdir", lambda path, real=os.listdir: [gone, *sorted(real(path))])
    Fence(tmp_path, lambda: 3).mark()
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["saved-by-generation-00000003"]
