"""Every framework's script begins on one GPU, on several, and again after it has had none, with the same result.

Agents start the scripts of all frameworks alike, so one of them is in `make test-cluster`, where tests/cluster/test_scripts.py
also plays resizes, kills and a preemption of each without agents. The others are a campaign (`make test-survival`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticd.protocol.messages import Scale, Scaled
from verification.bits.verdict import differing_bits
from verification.scripts.__main__ import missing

SCRIPT = Path(__file__).with_name("train_framework.py")
OTHERS = ("own", "ddp", "accelerated", "fabric", "lightning_trainer")
SCRIPTS = ("trainer", *(pytest.param(name, marks=pytest.mark.campaign) for name in OTHERS))

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_begins_on_one_gpu_on_two_and_after_a_preemption(
    make_cluster: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    if why := missing(name):
        pytest.skip(why)
    cluster = make_cluster(servers=2, slots=1)

    def submit(gpus: tuple[int, int], result: str) -> str:
        job: str = cluster.submit(name, str(tmp_path / result), gpus=gpus, script=SCRIPT)
        return job

    cluster.until_final(submit((1, 1), "one.pt"))
    cluster.until_final(submit((2, 2), "two.pt"))
    job = submit((1, 2), "preempted.pt")
    view = cluster.until_step(job, 3)
    assert len(view.workers) == 2
    other = submit((2, 2), "other.pt")
    assert isinstance(cluster.client.ask(Scale(job=other, share=2)), Scaled)
    cluster.until("the job is preempted", lambda: not cluster.pids(job))
    cluster.until_final(other)
    view = cluster.until_final(job)
    assert view.restarts == 0
    one, two, preempted = (torch.load(tmp_path / f"{each}.pt") for each in ("one", "two", "preempted"))
    assert (differing_bits(one, two), differing_bits(one, preempted)) == (0, 0)
    assert one["log"] == two["log"] == preempted["log"]
