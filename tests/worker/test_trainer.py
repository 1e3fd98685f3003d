"""transformers.Trainer (`integrations`): weights and all logs are those of one worker alone, whatever happens to the job."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the extra `transformers` is not installed")
pytest.importorskip("accelerate", reason="the extra `transformers` is not installed")

_spec = importlib.util.spec_from_file_location("test_training", Path(__file__).with_name("test_training.py"))
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _module
_spec.loader.exec_module(_module)
Ranks, ALONE, ALL, CHANGING, also = _module.Ranks, _module.ALONE, _module.ALL, _module.CHANGING, _module.also

CASES = [
    "tokens",
    "ends_in_an_epoch",
    "half_precision",
    "gradients_that_a_callback_changes",
    "stops_early",
    "the_leader_s_files_are_lost",
    "adapters",
]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Any]:
    ranks = Ranks()
    yield ranks
    ranks.close()


@pytest.mark.parametrize("case", [CASES[0], *also(*CASES[1:])])
def test_all_workers_end_with_the_bits_and_the_log_of_one_worker_alone(ranks: Any, case: str) -> None:
    if case == "adapters":
        pytest.importorskip("peft", reason="peft is not installed")
    (expected,) = ranks.outcome(f"trainer_cases.{case}", ALONE).states
    assert set(ranks.outcome(f"trainer_cases.{case}", CHANGING).states) == {expected}
    assert set(ranks.outcome(f"trainer_cases.{case}", ALL).states) == {expected}
