"""A training script of `benchmarks.sharded`: the same model with replicas, divided by this project, or by PyTorch.

    python benchmarks/sharded_job.py elastic|zero STEPS WIDTH LAYERS

`elastic` takes the job file's `sharding`; `zero` is DistributedDataParallel with ZeroRedundancyOptimizer. Each process
prints a line of JSON with its figures.
"""

from __future__ import annotations

import json
import os
import sys
import time
from statistics import median
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

BATCH = 8


def model_of(width: int, layers: int) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)))


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (model(x) - x).square().mean()


def state_bytes(states: Any) -> int:
    return sum(value.nbytes for state in states for value in state.values() if isinstance(value, torch.Tensor))


def tell(times: list[float], processor: float, held: int, model: nn.Module) -> None:
    figures = {
        "step_s": median(times[len(times) // 4 :]),
        "processor_s": processor / len(times),
        "state_bytes": held,
        "rss_bytes": psutil.Process().memory_info().rss,
        "sum": float(sum(parameter.detach().double().sum() for parameter in model.parameters())),
    }
    print(json.dumps(figures), flush=True)


def elastic(steps: int, width: int, layers: int) -> None:
    import elasticd

    run = elasticd.join()
    model = model_of(width, layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(2)
    data = torch.randn(steps * BATCH * int(os.environ["ELASTICD_VIRTUAL_WORKERS"]), width)
    model, optimizer, batches = run.prepare(model, optimizer, (data,), batch_size=BATCH)
    times: list[float] = []
    begun, processor = time.perf_counter(), time.process_time()
    for _ in run.epochs(1):
        for (x,) in batches:
            loss_of(model, x).backward()
            optimizer.step()
            optimizer.zero_grad()
            times.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            divided = run._trainer.held.parts.divided  # type: ignore[union-attr]
            held = state_bytes(optimizer.state.values()) if divided is None else divided.nbytes
    spent = time.process_time() - processor
    run.finish()
    tell(times, spent, held, model)


def zero(steps: int, width: int, layers: int) -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(model_of(width, layers))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    torch.manual_seed(2 + dist.get_rank())
    times: list[float] = []
    begun, processor = time.perf_counter(), time.process_time()
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, torch.randn(BATCH, width)).backward()
        optimizer.step()
        times.append(time.perf_counter() - begun)
        begun = time.perf_counter()
    held = state_bytes(optimizer.optim.state.values())
    tell(times, time.process_time() - processor, held, model)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"elastic": elastic, "zero": zero}[sys.argv[1]](*(int(each) for each in sys.argv[2:]))
