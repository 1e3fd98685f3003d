"""A rank of a DistributedDataParallel run with the canonical hook, under torchrun. Rank 0 prints "equal" if the sums are."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from elasticd.worker.gradients.ddp import CanonicalState, canonical_hook
from elasticd.worker.gradients.reduction import TreeAccumulator


class Net(nn.Module):
    """Parameters of two types and odd sizes: buckets that do not divide evenly among the ranks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(13, 301)
        self.last = nn.Linear(301, 7).to(torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.first(x).tanh().double())
        return found


def gradients(model: nn.Module, parameters: list[nn.Parameter], rank: int) -> list[torch.Tensor]:
    for parameter in parameters:
        parameter.grad = None
    x = torch.randn(5, 13, generator=torch.Generator().manual_seed(rank))
    model(x).square().sum().backward()
    return [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]


def tree_mean(leaves: list[torch.Tensor]) -> torch.Tensor:
    tree: TreeAccumulator[torch.Tensor] = TreeAccumulator(len(leaves))
    for virtual_worker, leaf in enumerate(leaves):
        tree.push(virtual_worker, leaf)
    (root,) = tree.nodes()
    return root.buffer.div_(len(leaves))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = Net()
    parameters = list(model.parameters())
    each = [gradients(model, parameters, other) for other in range(ranks)]
    expected = [tree_mean([each[other][position] for other in range(ranks)]) for position in range(len(parameters))]
    parallel = DistributedDataParallel(model, bucket_cap_mb=0.005)
    parallel.register_comm_hook(CanonicalState(), canonical_hook)
    for _ in range(3):  # buckets are rebuilt after the first step
        found = gradients(parallel, parameters, rank)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    dist.barrier()
    if rank == 0:
        print("equal", flush=True)
    os._exit(0)  # DDP keeps Gloo's threads: one that drops a tensor at the interpreter's exit would abort the process


if __name__ == "__main__":
    main()
