"""What a step does with a script's model, optimizers and data: equal bits for any number of workers, and while it changes."""

from __future__ import annotations

import functools
import importlib.util
import json
import subprocess
import sys
import tempfile
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

ALONE = [[0, [0]]]
ALL = [[0, [0, 1, 2, 3]]]
CHANGING = [[0, [0]], [5, [0, 1, 2]], [9, [1, 2]], [13, [3, 1]], [17, [3, 1, 4, 5]]]
CASES = [
    "plain",
    "many_segments",
    "several_optimizers_and_schedulers",
    "mixed_precision",
    "several_types",
    "unfreezing",
    "gradients_that_are_changed",
    "global_gradient",
    "compiled",
]


@functools.cache
def outcome(case: str, timetable: str) -> tuple[tuple[str, ...], set[float]]:
    """What the workers of the last roster end with, as JSON, in order of worker; and the norms of their models."""
    with _module.RendezvousServer() as server, tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, str(HERE / "training_world.py"), case, server.address, timetable, directory]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = [json.loads(path.read_text()) for path in sorted(Path(directory).iterdir())]
    last = sorted(json.loads(timetable)[-1][1])
    finished = [document for document in found if "state" in document]
    assert [document["worker"] for document in finished] == last
    assert len({document["steps"] for document in finished}) == 1
    return tuple(json.dumps(document["state"], sort_keys=True) for document in finished), {
        document["norm"] for document in finished
    }


def run(case: str, timetable: list[Any]) -> tuple[str, ...]:
    return outcome(case, json.dumps(timetable))[0]


@pytest.mark.parametrize("case", CASES)
def test_all_workers_end_with_the_bits_of_one_worker_alone(case: str) -> None:
    (expected,) = run(case, ALONE)
    assert set(run(case, CHANGING)) == {expected}


@pytest.mark.parametrize("case", ["plain", "many_segments", "mixed_precision"])
def test_a_worker_for_each_virtual_worker_gives_the_same_bits(case: str) -> None:
    (expected,) = run(case, ALONE)
    assert set(run(case, ALL)) == {expected}


def test_a_roster_may_be_replaced_by_another_while_both_are_more_workers_than_virtual_workers() -> None:
    (expected,) = run("many_segments", ALONE)
    moving = [[0, [0, 1, 2, 3]], [5, [0, 1, 2, 3, 4, 5, 6]], [9, [4, 5, 6]]]
    assert set(run("many_segments", moving)) == {expected}


@pytest.mark.parametrize("case", ["data_workers", "no_overlap"])
def test_reading_ahead_and_overlapping_change_no_bit(case: str) -> None:
    (expected,) = run("plain", ALONE)
    assert set(run(case, ALONE)) == {expected}
    assert set(run(case, CHANGING)) == {expected}


@pytest.mark.parametrize("determinism", ["none", "static"])
def test_without_the_canonical_order_all_workers_agree_but_the_bits_are_their_number_s(determinism: str) -> None:
    case = f"many_segments:{determinism}"
    states, (norm,) = outcome(case, json.dumps(CHANGING))
    assert len(set(states)) == 1
    (expected,), (alone,) = outcome("many_segments", json.dumps(ALONE))
    assert norm == pytest.approx(alone, rel=1e-3)
    assert set(states) != {expected}, "the order of the sums made no difference: this compares nothing"


def orphan(when: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """A newcomer whose only holder is killed and which is told to begin alone (`orphan_ranks`)."""
    with _module.RendezvousServer() as server:
        command = [sys.executable, str(HERE / "orphan_ranks.py"), when, server.address, str(directory)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_newcomer_that_has_got_nothing_yet_begins_with_the_scripts_own_values(tmp_path: Path) -> None:
    done = orphan("before", tmp_path)
    assert done.returncode == 0, done.stderr
    assert ((tmp_path / "1.json").read_text(),) == run("plain", ALONE)


def test_a_newcomer_with_a_part_of_a_lost_state_ends_and_trains_nothing_with_it(tmp_path: Path) -> None:
    done = orphan("begun", tmp_path)
    assert done.returncode == exits.SPOILED, done.stderr
    assert "has lost its initial values" in done.stderr
    assert not list(tmp_path.iterdir())
