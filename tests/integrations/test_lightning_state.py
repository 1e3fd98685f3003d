"""State of a Lightning Trainer: a worker that receives it within its loop continues like the sender."""

from __future__ import annotations

import importlib
import importlib.util

import pytest


@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="the extra `lightning` is not installed")
def test_the_last_batch_is_known_after_the_state_of_a_later_step_was_received() -> None:
    training = importlib.import_module("tests.integrations.lightning_training")
    giver = training.trained(training.Model(gives=2))
    assert giver.last == [False, False, False, True]
    joiner = training.trained(training.Model(taken=giver.given))
    assert joiner.last == [False, False, True]
