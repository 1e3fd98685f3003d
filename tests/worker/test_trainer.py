"""transformers.Trainer (`integrations`): weights and logs equal those of a single worker, whatever happens to the job."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from tests.worker.ranks import ALL, ALONE, CHANGING, also

pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("transformers", "accelerate"))),
    reason="the extra `transformers` is not installed",
)

CASES = [
    "tokens",
    "ends_in_an_epoch",
    "half_precision",
    "gradients_that_a_callback_changes",
    "stops_early",
    "the_leader_s_files_are_lost",
    "adapters",
]


@pytest.mark.cluster
@pytest.mark.parametrize("case", [CASES[0], *also(*CASES[1:])])
def test_all_workers_end_with_the_bits_and_the_log_of_one_worker_alone(ranks: Any, case: str) -> None:
    if case == "adapters":
        pytest.importorskip("peft", reason="peft is not installed")
    (expected,) = ranks.outcome(f"trainer_cases.{case}", ALONE).states
    assert set(ranks.outcome(f"trainer_cases.{case}", CHANGING).states) == {expected}
    assert set(ranks.outcome(f"trainer_cases.{case}", ALL).states) == {expected}
