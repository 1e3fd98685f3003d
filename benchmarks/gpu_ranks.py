"""Processes of `benchmarks.gpu`: `python -m benchmarks.gpu_ranks ROLE RANK SIZE RESULT SETTINGS`.

Each process sees one GPU (or none), as workers of an agent do. torch's own process group, for the compared libraries, is created
before any of this runtime's, so that it has stock settings.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

import elasticd as elastic
from elasticd.worker.control import ClusterControl
from elasticd.worker.environment import read_cluster
from elasticd.worker.events import Arrived, EnterGeneration
from elasticd.worker.gradients.layout import Layout
from elasticd.worker.gradients.reduction import CanonicalReducer, Node, TreeAccumulator
from elasticd.worker.state.replication import Replication, Transfer
from elasticd.worker.state.training_state import describe
from elasticd.worker.virtual import assign

from . import gpu_races
from .gpu_job import digest
from .runtime.loops import ENDLESS, Loop, Rival, Times, in_turn, ours
from .runtime.ranks import place_in, share_with_rivals
from .runtime.workloads import build, sgd

TENSORS = 25  # per state or gradient


def synchronize(device: torch.device) -> None:
    """Block until the device has completed all issued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class OnDevice(Rival):
    """A loop with steps that end when the device has completed them."""

    def __init__(self, name: str, loop: Loop, device: torch.device) -> None:
        super().__init__(name, loop)
        self._device = device

    def steps(self, count: int) -> float:
        synchronize(self._device)
        began = perf_counter()
        super().steps(count)
        synchronize(self._device)
        return (perf_counter() - began) / count


def stock(name: str, rank: int, size: int, device: torch.device) -> Loop:
    """Return stock DistributedDataParallel, with each rank on its share of every shuffled step."""
    workload = build(name)
    model = torch.nn.parallel.DistributedDataParallel(workload.model.to(device))
    optimizer = sgd(model)
    x, y = workload.data
    generator = torch.Generator().manual_seed(0)
    while True:
        for rows in torch.randperm(len(x), generator=generator).split(workload.batch_size * size):
            mine = rows[rank * workload.batch_size : (rank + 1) * workload.batch_size]
            if not len(mine):
                continue
            workload.loss(model(x[mine].to(device)), y[mine].to(device)).backward()
            optimizer.step()
            optimizer.zero_grad()
            yield


def compare(rank: int, size: int, device: torch.device, settings: dict[str, Any]) -> dict[str, Times]:
    """Time steps of stock DistributedDataParallel and of this runtime, in alternating blocks."""
    model = settings["model"]
    rivals: list[Rival] = []  # this runtime first: its loop refuses models that others have changed
    for name, variables in settings["variables"].items():
        rivals.append(OnDevice(name, _steps_of(ours(name, model, variables)), device))
    rivals.append(OnDevice("ddp", stock(model, rank, size, device), device))
    return in_turn(rivals, settings["warm_up"], settings["blocks"], settings["steps"])


def _steps_of(rival: Rival) -> Iterator[None]:
    while True:
        rival.steps(1)
        yield


def exchange(rank: int, size: int, device: torch.device, settings: dict[str, Any]) -> dict[str, Any]:
    """Time the communicator alone: the canonical reduction against the library's all-reduce, and a state transfer."""
    with place_in(settings["variables"]["bench"]):
        environment = read_cluster(os.environ)
    assert environment is not None
    control = ClusterControl(environment)
    control.start()
    control.tell(Arrived(total_steps=1, steps_per_epoch=1))
    assert isinstance(control.next(), EnterGeneration)
    communicator = control.communicator
    elements, repetitions = settings["elements"], settings["repetitions"]

    ranges = assign(size, [True] * size)
    part = torch.nn.Parameter(torch.zeros(elements // TENSORS, device=device))
    layout = Layout([part for _ in range(TENSORS)], padding=size)
    reducer = CanonicalReducer(communicator, ranges, size, layout)
    tree: TreeAccumulator[Any] = TreeAccumulator(size)
    tree.push(rank, layout.allocate())
    nodes: list[Node[Any]] = tree.nodes()
    flat = torch.ones(elements, device=device)

    def canonical() -> None:
        reducer.start(nodes, nodes[0].buffer)
        reducer.finish(lambda: None)

    state = [torch.ones(elements // TENSORS, device=device) for _ in range(TENSORS)]

    plan = (Transfer(0, 1),)

    def transfer() -> None:
        if rank == 0:
            header = {"tensors": [describe("state", tensor) for tensor in state]}
            Replication(communicator, plan).give(header, state).wait()
        elif rank == 1:
            Replication(communicator, plan).take(device).wait()

    rivals: dict[str, Callable[[], object]] = {
        "all-reduce": lambda: dist.all_reduce(flat),
        "canonical": canonical,
        "transfer": transfer,
    }
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for turn in range(repetitions + 1):
        for name, run in rivals.items():
            synchronize(device)
            dist.barrier()
            began = perf_counter()
            run()
            synchronize(device)
            dist.barrier()
            if turn:
                times[name].append(perf_counter() - began)
    return {"times_s": times, "bytes": elements // TENSORS * TENSORS * 4}


def train(rank: int, size: int, device: torch.device, settings: dict[str, Any]) -> str:
    """Train a whole job as one of its workers. Returns the digest of the model's and the optimizer's bits."""
    with place_in(settings["variables"]["bits"]):
        run = elastic.join()
    workload = build(settings["model"])
    plain = sgd(workload.model)
    model, optimizer, batches = run.prepare(workload.model, plain, workload.data, workload.batch_size)
    for _ in run.epochs(ENDLESS):
        for x, y in batches:
            workload.loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return digest(model, plain)


ROLES: dict[str, Callable[[int, int, torch.device, dict[str, Any]], Any]] = {
    "compare": compare,
    "exchange": exchange,
    "train": train,
}


def main() -> None:
    role, rank, size, result, text = sys.argv[1:]
    settings = json.loads(text)
    torch.set_num_threads(1)
    device = torch.device(settings["device"])
    if device.type == "cuda":
        device = torch.device("cuda", 0)
        torch.cuda.set_device(device)
    if gpu_races.SLEEPS in os.environ:
        gpu_races.begin(os.environ[gpu_races.SLEEPS], device)
    share_with_rivals()
    if role != "train":  # workers of "train" come and go
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", rank=int(rank), world_size=int(size))
    value = ROLES[role](int(rank), int(size), device, settings)
    Path(result).write_text(json.dumps(value))
    if role != "train":
        dist.barrier()


if __name__ == "__main__":
    code = 0
    try:
        main()
    except SystemExit as left:  # a worker that is no longer needed
        code = int(left.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)  # jobs are joined but not finished, so none of their exit handlers may run
