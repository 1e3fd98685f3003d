"""Saved values are compared before they are written: a difference is named, and no file appears."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticd.protocol import exits
from elasticd.worker.comparison.saves import Note, by_file, judge_notes, looked_at
from elasticd.worker.data.likeness import digest
from elasticd.worker.variables.reachable import Limits, look
from tests.worker.ranks import also


def test_what_the_limits_of_a_look_have_cut_off_is_no_difference() -> None:
    whole = Note("x", looked_at({"a": [1, 2], "b": torch.ones(3)}))
    other = Note("x", looked_at({"a": [1, 3], "b": torch.ones(3)}))
    cut = Note("x", look(None, (), (), Limits(items=1), beside={"saved": {"a": [object()], "b": torch.ones(3)}}))
    assert cut.digest is None
    assert judge_notes({0: {"x": whole}, 1: {"x": whole}}, 2, frozenset()) is None
    assert judge_notes({0: {"x": whole}, 1: {"x": other}}, 2, frozenset()) is not None
    assert judge_notes({0: {"x": whole}, 1: {"x": cut}}, 2, frozenset()) is None
    assert judge_notes({0: {"x": cut}, 1: {}}, 2, frozenset()) is not None
    assert judge_notes({0: {"x": replace(whole, partly=True)}, 1: {"x": whole}}, 2, frozenset()) is not None


def test_files_are_the_same_in_directories_of_each_workers_own() -> None:
    def names(*paths: str) -> list[str]:
        return list(by_file([Note(path, looked_at(1)) for path in paths]))

    assert names("/tmp/1/b.pt", "/tmp/1/a.pt", "/tmp/1/x/a.pt") == names("/tmp/2/a.pt", "/tmp/2/x/a.pt", "/tmp/2/b.pt")
    assert names("a.pt", "b/a.pt", "c/a.pt") == ["a.pt", "a.pt (2)", "a.pt (3)"]


def saved(directory: Path) -> dict[str, str]:
    """Digests of contents by name; also of temporary files."""
    found = directory.with_name(f"{directory.name}.saved")
    return {path.name: digest(torch.load(path)) for path in sorted(found.iterdir())} if found.exists() else {}


def alone(train: Any, tmp_path: Path, case: str) -> tuple[str, dict[str, str]]:
    outcome = train(tmp_path / "alone", "none", workers=1, victim=0, case=case)
    assert outcome.codes == [0], outcome.told
    return outcome.states[0], saved(tmp_path / "alone")


@pytest.mark.parametrize(("workers", "joins"), [(2, 4), *also((3, 5), (2, 6))])
def test_files_of_several_workers_are_those_of_one(workers: int, joins: int, tmp_path: Path, train: Any) -> None:
    state, files = alone(train, tmp_path, "saving_cases.saves_what_all_have")
    assert sorted(files) == ["each.pt", "last.pt", "third.pt"]
    outcome = train(
        tmp_path / "all", "none", workers=workers, victim=9, case="saving_cases.saves_what_all_have", joins=joins
    )
    assert outcome.codes == [0] * workers, outcome.told
    assert outcome.states == dict.fromkeys(range(workers), state)
    assert saved(tmp_path / "all") == files


def test_a_newcomer_without_what_is_saved_does_not_join_though_no_gradient_depends_on_it(
    tmp_path: Path, train: Any
) -> None:
    state, files = alone(train, tmp_path, "saving_cases.saves_a_history")
    outcome = train(tmp_path / "all", "none", workers=3, case="saving_cases.saves_a_history")
    assert outcome.codes == [0, exits.UNLIKE, exits.UNLIKE], outcome.told
    assert re.search(
        r"lack what the script saves, or decides by when to save or to end; history .*run\.state\(history=\[\]\)",
        outcome.told,
    ), outcome.told
    assert outcome.states == {0: state}
    assert saved(tmp_path / "all") == files


@pytest.mark.cluster
def test_a_newcomer_that_would_save_something_else_in_its_second_step_does_not_join(tmp_path: Path, train: Any) -> None:
    state, files = alone(train, tmp_path, "saving_cases.saves_a_record_in_each_step")
    outcome = train(tmp_path / "all", "none", workers=2, case="saving_cases.saves_a_record_in_each_step")
    assert outcome.codes == [0, exits.UNLIKE], outcome.told
    assert re.search(r"step 5: each\.pt: \['history'\] is .* run\.state\(record=\[\]\)", outcome.told), outcome.told
    assert outcome.states == {0: state}
    assert saved(tmp_path / "all") == files


def test_what_differs_in_a_file_ends_the_job_before_the_file_has_its_name(tmp_path: Path, train: Any) -> None:
    outcome = train(tmp_path / "all", "none", workers=2, case="saving_cases.saves_a_history_in_a_function")
    assert outcome.codes == [exits.DISAGREED] * 2, outcome.told
    assert re.search(
        r"each\.pt: \['history'\] is a list of 24 on w\.0 and \[.*\] on w\.1; record .*run\.state\(record=\[\]\)"
        r".*run\.mean\(loss=loss\)",
        outcome.told,
    ), outcome.told
    assert "each.pt" not in saved(tmp_path / "all")


def test_what_differs_in_a_file_behind_the_loop_ends_the_job(tmp_path: Path, train: Any) -> None:
    outcome = train(tmp_path / "all", "none", workers=2, case="saving_cases.saves_a_history_behind_the_loop")
    assert outcome.codes == [exits.DISAGREED, 0], outcome.told
    assert re.search(
        r"after the loop: last\.pt: \['history'\] is a list of \d+ on w\.0 and a list of \d+ on w\.1", outcome.told
    )
    assert saved(tmp_path / "all") == {}


def test_a_file_that_one_worker_saves_by_its_own_loss_is_named(tmp_path: Path, train: Any) -> None:
    outcome = train(tmp_path / "all", "none", workers=2, case="saving_cases.saves_the_best_by_its_own_loss")
    assert outcome.codes == [exits.DISAGREED] * 2, outcome.told
    assert re.search(r"best\.pt is saved on w\.0 and not on w\.1; best is .*run\.means, run\.evaluate", outcome.told)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("saving_cases.saves_at_the_end_on_one_worker", "last.pt is saved on w.0 and not on w.1"),
        ("saving_cases.saves_at_the_end_on_another_worker", "last.pt is saved on w.1 and not on w.0"),
    ],
)
def test_a_file_that_one_worker_saves_behind_the_loop_is_named(
    case: str, words: str, tmp_path: Path, train: Any
) -> None:
    outcome = train(tmp_path / "all", "none", workers=2, case=case)
    assert outcome.codes == [exits.DISAGREED, 0], outcome.told
    assert words in outcome.told
    assert sorted(saved(tmp_path / "all")) == ["each.pt", "third.pt"]


def test_what_only_the_leader_saves_is_its_own(tmp_path: Path, train: Any) -> None:
    outcome = train(tmp_path / "all", "none", workers=2, case="saving_cases.saves_on_the_leader")
    assert outcome.codes == [0, 0], outcome.told
    assert sorted(saved(tmp_path / "all")) == ["each.pt", "last.pt"]


def test_a_file_that_some_loop_bodies_save_is_named(tmp_path: Path, train: Any) -> None:
    outcome = train(tmp_path / "all", "none", workers=2, case="saving_cases.saves_in_some_bodies", joins=2)
    assert outcome.codes == [exits.DISAGREED] * 2, outcome.told
    assert "some.pt is saved" in outcome.told


@pytest.mark.cluster
def test_a_worker_that_is_lost_before_the_next_step_takes_no_file_with_it(tmp_path: Path, train: Any) -> None:
    _, files = alone(train, tmp_path, "saving_cases.saves_what_all_have")
    outcome = train(tmp_path / "all", "none", workers=3, victim=0, case="saving_cases.saves_what_all_have", loses=9)
    assert outcome.codes[1:] == [0, 0], outcome.told
    assert saved(tmp_path / "all") == files


def test_registered_values_that_differ_behind_the_last_step_are_named(tmp_path: Path, train: Any) -> None:
    outcome = train(tmp_path / "all", "registered", workers=3, every=1000, after=23)
    assert outcome.codes == [exits.DISAGREED, 0, 0], outcome.told
    assert re.search(r"after the loop: what the script has registered: \['seen'\].* w\.0 and .* w\.1", outcome.told)


def test_a_loop_that_all_workers_leave_early_saves_what_one_would(tmp_path: Path, train: Any) -> None:
    state, files = alone(train, tmp_path, "saving_cases.saves_after_a_break")
    assert sorted(files) == ["each.pt", "last.pt"]
    outcome = train(tmp_path / "all", "none", workers=2, victim=9, case="saving_cases.saves_after_a_break")
    assert outcome.codes == [0, 0], outcome.told
    assert outcome.states == {0: state, 1: state}
    assert saved(tmp_path / "all") == files
    assert "without having been compared" not in outcome.told


def test_what_an_object_keeps_beside_what_is_saved_of_it_keeps_no_newcomer_out(tmp_path: Path, train: Any) -> None:
    _, files = alone(train, tmp_path, "saving_cases.saves_a_model_that_counts")
    outcome = train(tmp_path / "all", "none", workers=2, victim=9, case="saving_cases.saves_a_model_that_counts")
    assert outcome.codes == [0, 0], outcome.told
    assert saved(tmp_path / "all") == files
