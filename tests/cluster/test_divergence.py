"""A bit flips in one worker's memory: the cluster replaces that worker, and says why; the model is what it would have been."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticd.protocol import exits
from elasticd.protocol.model import JobPhase

pytestmark = pytest.mark.cluster

SCRIPT = Path(__file__).with_name("train_small.py")
USUAL = ("--epochs", "20", "--size", "128", "--pace", "0.02")  # 160 steps


def model_of(path: Path) -> dict[str, torch.Tensor]:
    return dict(torch.load(path, weights_only=True)["model"])


def test_a_worker_with_a_flipped_bit_is_replaced_and_no_bit_of_the_result_differs(
    make_cluster: Callable[..., Any], tmp_path: Path
) -> None:
    cluster = make_cluster(servers=2, slots=2)
    output = tmp_path / "model.pt"
    flip = ("--flip-at", "60", "--once", str(tmp_path / "flipped"))
    job = cluster.submit(str(output), *USUAL, *flip, gpus=(1, 3), compare_every=1)
    view = cluster.until_final(job)
    story = cluster.story()
    assert (tmp_path / "flipped").exists(), story
    assert view.phase is JobPhase.FINISHED, story
    told = rf"exit code {exits.DIVERGED}: step \d+: {job}\.\d+ on s\d:\d differs from 2 workers that agree in parameter 0\.weight"
    assert re.search(told, story), story
    environment = {**os.environ, "ELASTIC_VIRTUAL_WORKERS": "4"}
    alone = tmp_path / "alone.pt"
    subprocess.run([sys.executable, str(SCRIPT), str(alone), *USUAL[:4]], env=environment, check=True, timeout=300)
    expected, found = model_of(alone), model_of(output)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
