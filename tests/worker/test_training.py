"""What a step does with a script's model, optimizers and data: equal bits for any number of workers, and while it changes."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from elasticd.protocol import exits

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("communicator_world", HERE / "communicator_world.py")
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _module
_spec.loader.exec_module(_module)


@dataclass(frozen=True)
class Outcome:
    """What the workers of the last roster end with."""

    states: tuple[str, ...]  # as JSON, in order of worker
    norms: set[float]  # of their models


ALONE = [[0, [0]]]
ALL = [[0, [0, 1, 2, 3]]]
CHANGING = [[0, [0]], [5, [0, 1, 2]], [9, [1, 2]], [13, [3, 1]], [17, [3, 1, 4, 5]]]
QUICK = ["plain", "many_segments", "mixed_precision", "own_batches", "adversarial"]
OTHERS = [
    "checkpointed",
    "compiled_by_default",
    "two_passes",
    "own_sampler",
    "several_optimizers_and_schedulers",
    "several_types",
    "unfreezing",
    "gradients_that_are_changed",
    "global_gradient",
    "compiled",
]


def also(*others: str) -> list[Any]:
    """Parameters of `make test-cluster` alone."""
    return [pytest.param(other, marks=pytest.mark.cluster) for other in others]


class Ranks:
    """The process that forks those who train (`training_ranks`), with everything imported once."""

    def __init__(self) -> None:
        command = [sys.executable, str(HERE / "training_ranks.py")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._outcomes: dict[str, Outcome] = {}

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def outcome(self, case: str, timetable: list[Any]) -> Outcome:
        key = json.dumps([case, timetable])
        if key not in self._outcomes:
            self._outcomes[key] = self.train(case, timetable)
        return self._outcomes[key]

    def train(self, case: str, timetable: list[Any], **named: Any) -> Outcome:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with _module.RendezvousServer() as server, tempfile.TemporaryDirectory() as directory:
            errand = {"case": case, "address": server.address, "timetable": timetable, "directory": directory, **named}
            self._process.stdin.write(f"{json.dumps(errand)}\n")
            self._process.stdin.flush()
            assert self._process.stdout.readline() == "0\n", "a rank has failed: see what it printed"
            found: list[dict[str, Any]] = [json.loads(path.read_text()) for path in sorted(Path(directory).iterdir())]
        finished = [document for document in found if "state" in document]
        assert [document["worker"] for document in finished] == sorted(timetable[-1][1])
        assert len({document["steps"] for document in finished}) == 1
        states = tuple(json.dumps(document["state"], sort_keys=True) for document in finished)
        return Outcome(states, {document["norm"] for document in finished})


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    ranks = Ranks()
    yield ranks
    ranks.close()


@pytest.mark.parametrize("case", [*QUICK, *also(*OTHERS)])
def test_all_workers_end_with_the_bits_of_one_worker_alone(ranks: Ranks, case: str) -> None:
    (expected,) = ranks.outcome(case, ALONE).states
    assert set(ranks.outcome(case, CHANGING).states) == {expected}


@pytest.mark.parametrize("case", ["plain", *also("many_segments", "mixed_precision")])
def test_a_worker_for_each_virtual_worker_gives_the_same_bits(ranks: Ranks, case: str) -> None:
    (expected,) = ranks.outcome(case, ALONE).states
    assert set(ranks.outcome(case, ALL).states) == {expected}


def test_a_roster_may_be_replaced_by_another_while_both_are_more_workers_than_virtual_workers(ranks: Ranks) -> None:
    (expected,) = ranks.outcome("many_segments", ALONE).states
    moving = [[0, [0, 1, 2, 3]], [5, [0, 1, 2, 3, 4, 5, 6]], [9, [4, 5, 6]]]
    assert set(ranks.outcome("many_segments", moving).states) == {expected}


@pytest.mark.parametrize("case", ["data_workers", "saved_in_the_loop", *also("closures", "no_overlap")])
def test_reading_ahead_overlapping_and_saving_change_no_bit(ranks: Ranks, case: str) -> None:
    (expected,) = ranks.outcome("plain", ALONE).states
    assert set(ranks.outcome(case, ALONE).states) == {expected}
    assert set(ranks.outcome(case, CHANGING).states) == {expected}


@pytest.mark.cluster
def test_activations_that_are_computed_again_change_no_bit(ranks: Ranks) -> None:
    assert ranks.outcome("not_checkpointed", ALONE).states == ranks.outcome("checkpointed", ALONE).states


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
    """A newcomer whose only holder is killed and which is told to begin alone (`orphan_ranks`)."""
    with _module.RendezvousServer() as server:
        command = [sys.executable, str(HERE / "orphan_ranks.py"), when, server.address, str(directory)]
        return subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)


def test_a_newcomer_that_has_got_nothing_yet_begins_with_the_scripts_own_values(ranks: Ranks, tmp_path: Path) -> None:
    done = orphan("before", tmp_path)
    assert done.returncode == 0, done.stderr
    assert ((tmp_path / "1.json").read_text(),) == ranks.outcome("plain", ALONE).states


def test_a_newcomer_with_a_part_of_a_lost_state_ends_and_trains_nothing_with_it(tmp_path: Path) -> None:
    done = orphan("begun", tmp_path)
    assert done.returncode == exits.SPOILED, done.stderr
    assert "has lost its initial values" in done.stderr
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.parametrize("case", ["sequential", "one_shard", "iterable"])
def test_data_that_is_read_in_sequence_gives_the_bits_of_one_worker_alone(ranks: Ranks, case: str) -> None:
    (expected,) = ranks.outcome(case, ALONE).states
    assert set(ranks.outcome(case, CHANGING).states) == {expected}
    assert set(ranks.outcome(case, ALL).states) == {expected}


def test_processes_that_read_shards_change_no_bit(ranks: Ranks) -> None:
    (expected,) = ranks.outcome("sequential", ALONE).states
    assert set(ranks.outcome("read_ahead", ALONE).states) == {expected}
    assert set(ranks.outcome("read_ahead", CHANGING).states) == {expected}
