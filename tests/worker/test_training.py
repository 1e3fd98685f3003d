"""A step's effect on a script's model, optimizers and data: equal bits for any number of workers, and across resizes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from elasticd.protocol import exits
from tests.worker.communicator_world import RendezvousServer
from tests.worker.ranks import ALL, ALONE, CHANGING, Ranks, also

HERE = Path(__file__).parent


QUICK = ["plain", "many_segments", "mixed_precision", "own_batches", "adversarial"]
OTHERS = [
    "checkpointed",
    "compiled_by_default",
    "two_passes",
    "own_sampler",
    "several_optimizers_and_schedulers",
    "several_types",
    "unfreezing",
    "frozen_in_a_body",
    "gradients_that_are_changed",
    "global_gradient",
    "compiled",
]


@pytest.mark.parametrize("case", [*QUICK, *also(*OTHERS)])
def test_all_workers_end_with_the_bits_of_one_worker_alone(ranks: Ranks, case: str) -> None:
    (expected,) = ranks.outcome(case, ALONE).states
    assert set(ranks.outcome(case, CHANGING).states) == {expected}


@pytest.mark.parametrize("case", ["plain", *also("many_segments", "mixed_precision")])
def test_a_worker_for_each_virtual_worker_gives_the_same_bits(ranks: Ranks, case: str) -> None:
    (expected,) = ranks.outcome(case, ALONE).states
    assert set(ranks.outcome(case, ALL).states) == {expected}


@pytest.mark.cluster
def test_a_roster_may_be_replaced_by_another_while_both_are_more_workers_than_virtual_workers(ranks: Ranks) -> None:
    (expected,) = ranks.outcome("many_segments", ALONE).states
    moving = [[0, [0, 1, 2, 3]], [5, [0, 1, 2, 3, 4, 5, 6]], [9, [4, 5, 6]]]
    assert set(ranks.outcome("many_segments", moving).states) == {expected}


@pytest.mark.parametrize("case", ["saved_in_the_loop", *also("data_workers", "closures", "no_overlap")])
def test_reading_ahead_overlapping_and_saving_change_no_bit(ranks: Ranks, case: str) -> None:
    (expected,) = ranks.outcome("plain", ALONE).states
    assert set(ranks.outcome(case, ALONE).states) == {expected}
    assert set(ranks.outcome(case, CHANGING).states) == {expected}


@pytest.mark.cluster
def test_activations_that_are_computed_again_change_no_bit(ranks: Ranks) -> None:
    assert ranks.outcome("not_checkpointed", ALONE).states == ranks.outcome("checkpointed", ALONE).states


@pytest.mark.cluster
@pytest.mark.parametrize("determinism", ["none", *also("static")])
def test_without_the_canonical_order_all_workers_agree_but_the_bits_are_their_number_s(
    ranks: Ranks, determinism: str
) -> None:
    case = f"many_segments:{determinism}"
    changing, alone = ranks.outcome(case, CHANGING), ranks.outcome("many_segments", ALONE)
    assert len(set(changing.states)) == 1
    assert sorted(changing.norms) == pytest.approx(sorted(alone.norms), rel=1e-3)
    assert set(changing.states) != set(alone.states), "the order of the sums made no difference: this compares nothing"


def orphan(when: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """A newcomer whose only holder is killed, and which then begins alone (`orphan_ranks`)."""
    with RendezvousServer() as server:
        command = [sys.executable, str(HERE / "orphan_ranks.py"), when, server.address, str(directory)]
        return subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)


@pytest.mark.cluster
def test_a_newcomer_that_has_got_nothing_yet_begins_with_the_scripts_own_values(ranks: Ranks, tmp_path: Path) -> None:
    done = orphan("before", tmp_path)
    assert done.returncode == 0, done.stderr
    assert ((tmp_path / "1.json").read_text(),) == ranks.outcome("plain", ALONE).states


@pytest.mark.cluster
def test_a_newcomer_with_a_part_of_a_lost_state_ends_and_trains_nothing_with_it(tmp_path: Path) -> None:
    done = orphan("begun", tmp_path)
    assert done.returncode == exits.SPOILED, done.stderr
    assert "has lost its initial values" in done.stderr
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.parametrize("case", ["one_shard", *also("sequential", "iterable")])
def test_data_that_is_read_in_sequence_gives_the_bits_of_one_worker_alone(ranks: Ranks, case: str) -> None:
    (expected,) = ranks.outcome(case, ALONE).states
    assert set(ranks.outcome(case, CHANGING).states) == {expected}
    assert set(ranks.outcome(case, ALL).states) == {expected}


@pytest.mark.cluster
def test_processes_that_read_shards_change_no_bit(ranks: Ranks) -> None:
    (expected,) = ranks.outcome("sequential", ALONE).states
    assert set(ranks.outcome("read_ahead", ALONE).states) == {expected}
    assert set(ranks.outcome("read_ahead", CHANGING).states) == {expected}
