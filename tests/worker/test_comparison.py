"""A worker with a diverged state is found, named, and ended; the others' training is unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elasticd.protocol import exits
from tests.worker.ranks import FLIPPED_AFTER, DivergenceRanks, also


@pytest.fixture(scope="module")
def undisturbed(train: DivergenceRanks, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Final state of a single worker."""
    outcome = train(tmp_path_factory.mktemp("alone"), "none", workers=1, victim=0)
    assert outcome.codes == [0]
    return outcome.states[0]


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ("parameter", "parameter 5.weight"),
        *also(
            ("moment", "optimizer.state[0]['exp_avg']"),
            ("buffer", "buffer 1.running_var"),
            ("rate", "optimizer.param_groups[0]['lr']"),
            ("scheduler", "scheduler['last_epoch']"),
            ("registered", "registered value 'seen'[8]"),
        ),
    ],
)
def test_a_worker_that_differs_ends_and_the_others_train_what_they_would_have_trained(
    fault: str, named: str, undisturbed: str, tmp_path: Path, train: DivergenceRanks
) -> None:
    outcome = train(tmp_path / "three", fault)
    assert outcome.codes == [0, exits.DIVERGED, 0], outcome.told
    assert f"step 9: w.1 on s:1 differs from 2 workers that agree in {named}" in outcome.told
    assert outcome.states == {0: undisturbed, 2: undisturbed}


def test_the_leader_ends_like_any_other(undisturbed: str, tmp_path: Path, train: DivergenceRanks) -> None:
    outcome = train(tmp_path / "three", "parameter", victim=0)
    assert outcome.codes == [exits.DIVERGED, 0, 0], outcome.told
    assert outcome.states == {1: undisturbed, 2: undisturbed}


@pytest.mark.parametrize("every", [3, 7])
def test_a_difference_is_found_within_the_round(every: int, tmp_path: Path, train: DivergenceRanks) -> None:
    outcome = train(tmp_path / "three", "moment", every=every)
    assert outcome.codes == [0, exits.DIVERGED, 0], outcome.told
    assert FLIPPED_AFTER < outcome.step <= FLIPPED_AFTER + every


def test_newcomers_are_compared_whole_in_their_second_step(tmp_path: Path, train: DivergenceRanks) -> None:
    outcome = train(tmp_path / "three", "parameter", every=1000, after=4)
    assert outcome.codes == [0, exits.UNLIKE, 0], outcome.told
    assert outcome.step == 5
    assert "differs from 2 workers that agree in parameter 5.weight" in outcome.told


def test_a_difference_that_no_round_comes_to_is_found_after_the_last_update(
    tmp_path: Path, train: DivergenceRanks
) -> None:
    outcome = train(tmp_path / "three", "parameter", every=1000, after=21)
    assert outcome.codes == [0, exits.DIVERGED, 0], outcome.told
    assert outcome.step == 23


@pytest.mark.parametrize("more", [{"workers": 2}, {"on_divergence": "fail"}])
def test_where_nobody_can_tell_or_the_job_is_to_fail_all_workers_end_with_the_name(
    more: dict[str, Any], tmp_path: Path, train: DivergenceRanks
) -> None:
    outcome = train(tmp_path / "all", "registered", **more)
    assert set(outcome.codes) == {exits.DISAGREED}, outcome.told
    assert outcome.states == {}
    assert "in registered value 'seen'[8] (" in outcome.told


def test_without_determinism_plain_values_alone_are_compared(tmp_path: Path, train: DivergenceRanks) -> None:
    assert train(tmp_path / "tensor", "moment", determinism="none").codes == [0, 0, 0]
    assert train(tmp_path / "value", "rate", determinism="none").codes == [0, exits.DIVERGED, 0]


def test_workers_that_do_not_differ_are_left_alone(undisturbed: str, tmp_path: Path, train: DivergenceRanks) -> None:
    outcome = train(tmp_path / "three", "none", victim=9)
    assert outcome.codes == [0, 0, 0], outcome.told
    assert outcome.states == dict.fromkeys(range(3), undisturbed)
