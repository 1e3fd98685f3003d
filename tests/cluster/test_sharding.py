"""A divided optimizer state with real processes: lost workers, also an owner with its mirror; a pause, and an export."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticd.protocol.model import Sharding
from tests.cluster.test_stopping import Desk, digest

pytestmark = pytest.mark.cluster

SCRIPT = """
import sys, time
import torch
import elasticd as elastic

run = elastic.join()
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.GELU(), torch.nn.Linear(256, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.utils.data.TensorDataset(torch.randn(160, 32), torch.randint(0, 8, (160,)))
model, optimizer, batches = run.prepare(model, optimizer, data, batch_size=5, max_grad_norm=1.0)
for epoch in run.epochs(12):
    for x, y in batches:
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(float(sys.argv[2]))
run.save({"model": model.state_dict()}, sys.argv[1])
"""


def trained_alone(code: str, directory: Path) -> tuple[Path, Path]:
    """Train without a cluster. Return the script, and what it has saved."""
    script, saved = directory / "train.py", directory / "alone.pt"
    script.write_text(code)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ELASTIC")}
    environment["ELASTIC_VIRTUAL_WORKERS"] = "4"
    subprocess.run([sys.executable, str(script), str(saved), "0"], env=environment, check=True, cwd=directory)
    return script, saved


def test_losses_resizes_and_a_pause_change_no_bit(make_cluster: Callable[..., Any], tmp_path: Path) -> None:
    script, alone = trained_alone(SCRIPT, tmp_path)
    divided, out = tmp_path / "divided.pt", tmp_path / "exported.pt"
    cluster = make_cluster(servers=2, slots=2)
    desk = Desk(cluster)
    job = cluster.submit(
        str(divided), "0.05", script=script, checkpoint_every_s=1.0, sharding=Sharding.OPTIMIZER, name="divided"
    )
    cluster.until_share(job, 4)
    cluster.until_step(job, 5)
    os.kill(next(iter(cluster.pids(job).values())), signal.SIGKILL)
    cluster.until_step(job, 10)
    cluster.scale(job, 3)
    cluster.until_step(job, cluster.job(job).step + 3)
    desk("pause", job)
    view = cluster.job(job)
    assert view.saved_step == view.step, "no step is lost"
    desk("export", job, str(out))
    states = torch.load(out, weights_only=True)["optimizer"]["state"]
    assert [state["exp_avg"].numel() for state in states.values()] == [32 * 256, 256, 256 * 8, 8], "it is whole"
    desk("resume", job)
    cluster.until_step(job, view.step + 3)
    for pid in {
        worker.server: worker.pid for worker in cluster.job(job).workers
    }.values():  # mirrors are on the other server
        os.kill(pid, signal.SIGKILL)
    view = cluster.until_final(job)
    assert view.restarts == 1
    assert view.step == view.total_steps - 1
    assert digest(divided) == digest(alone)


UNDER_FULLY_SHARD = """
import sys, time
import torch
import elasticd as elastic

run = elastic.join()
torch.manual_seed(1)
layers = [torch.nn.TransformerEncoderLayer(12, 2, 30, 0.1, batch_first=True) for _ in range(2)]
model = torch.nn.Sequential(torch.nn.Linear(4, 12), *layers, torch.nn.Flatten(), torch.nn.Linear(96, 8))
if sys.argv[3:]:
    from torch.distributed.fsdp import fully_shard

    for layer in layers:
        fully_shard(layer, mesh=run.mesh())
    fully_shard(model, mesh=run.mesh())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.utils.data.TensorDataset(torch.randn(160, 8, 4), torch.randint(0, 8, (160,)))
model, optimizer, batches = run.prepare(model, optimizer, data, batch_size=5, max_grad_norm=1.0)
for epoch in run.epochs(12):
    for x, y in batches:
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(float(sys.argv[2]))
run.save({"model": model.state_dict()}, sys.argv[1])
"""


def test_a_model_under_fully_shard_goes_on_after_resizes_a_loss_and_a_pause(
    make_cluster: Callable[..., Any], tmp_path: Path
) -> None:
    script, alone = trained_alone(UNDER_FULLY_SHARD, tmp_path)
    divided, out = tmp_path / "divided.pt", tmp_path / "exported.pt"
    cluster = make_cluster(servers=2, slots=2)
    desk = Desk(cluster)
    job = cluster.submit(str(divided), "0.05", "divided", script=script, checkpoint_every_s=1.0, name="divided")
    cluster.until_share(job, 4)
    cluster.until_step(job, 5)
    cluster.scale(job, 3)
    before = cluster.until_step(job, cluster.job(job).step + 3)
    assert before.restarts == 0, "a resize needs no checkpoint"
    cluster.until(f"{job} has a checkpoint", lambda: cluster.job(job).saved_step)
    os.kill(next(iter(cluster.pids(job).values())), signal.SIGKILL)
    cluster.until(f"{job} has begun again", lambda: cluster.job(job).restarts)
    cluster.until_step(job, before.step + 5)
    cluster.scale(job, 2)
    cluster.until_step(job, cluster.job(job).step + 2)
    desk("pause", job)
    view = cluster.job(job)
    assert view.saved_step == view.step, "no step is lost"
    desk("export", job, str(out))
    exported = torch.load(out, weights_only=True)
    shapes = [each.shape for each in exported["model"].values()]
    assert [state["exp_avg"].shape for state in exported["optimizer"]["state"].values()] == shapes, "it is whole"
    desk("resume", job)
    view = cluster.until_final(job)
    assert view.restarts == 1, "that of the lost worker"
    assert view.step == view.total_steps - 1
    assert digest(divided) == digest(alone)
