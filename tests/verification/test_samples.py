"""The check of samples finds every kind of error."""

from __future__ import annotations

from pathlib import Path

from verification.scripts.samples import problems, uses

EPOCH = list(range(6))
GOOD = ["1 0 0 1", "1 0 2 3", "1 1 4", "1 1 5", "1 2 5 4", "1 2 3 2", "1 3 0", "1 3 1"]  # generation, step, samples


def found_in(path: Path, lines: list[str], steps: int = 4) -> list[str]:
    path.write_text("\n".join(lines) + "\n")
    return problems(uses([path]), steps, EPOCH)


def test_two_epochs_in_any_order_are_as_they_must_be(tmp_path: Path) -> None:
    assert found_in(tmp_path / "samples", GOOD) == []


def test_a_step_that_a_loss_broke_off_may_have_used_some_of_its_samples_before(tmp_path: Path) -> None:
    assert found_in(tmp_path / "samples", [*GOOD[:1], "2 0 0 1", "2 0 2 3", *GOOD[2:]]) == []


def test_a_sample_used_twice_or_never_is_found(tmp_path: Path) -> None:
    path = tmp_path / "samples"
    assert found_in(path, [*GOOD, "1 3 1"])
    assert found_in(path, GOOD[:-1])
    assert found_in(path, [line.replace("1 1 4", "1 1 3") for line in GOOD])


def test_a_step_repeated_with_other_samples_or_never_run_is_found(tmp_path: Path) -> None:
    path = tmp_path / "samples"
    assert found_in(path, ["0 0 5", *GOOD])
    assert found_in(path, GOOD[:4] + GOOD[6:])
