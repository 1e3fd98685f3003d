"""The canonical sum for DistributedDataParallel: a communication hook that gives plain DDP the bits of an elastic run.

A run under DDP with one process for each virtual worker, the same data and the same seeds then ends with the parameters
of the elastic run, bit for bit, so that one can be checked against the other (EasyScale 3.3 compares with DDP in the
same way)::

    model = DistributedDataParallel(model)
    model.register_comm_hook(CanonicalState(), canonical_hook)

DDP's own all-reduce adds in an order that depends on the library, the size of a bucket and the number of processes;
only two processes have just one order. The hook cuts each bucket into one slice for each rank, gives every rank its
slice of all gradients (all-to-all), adds the slices in the order of the canonical tree, and gathers the sums.
"""

# Without "from __future__ import annotations": DDP checks that the hook's annotations are types, not their names.

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket  # the stubs of torch.distributed lack it

from .reduction import TreeAccumulator


@dataclass
class CanonicalState:
    """State of the communication hook: the process group, and scratch memory."""

    process_group: dist.ProcessGroup | None = None  # None: the default one
    _scratch: dict[tuple[torch.dtype, torch.device, int], tuple[torch.Tensor, torch.Tensor]] = field(
        default_factory=dict, repr=False
    )  # memory that is reused for each bucket of a size; its contents are useless after the bucket's sums

    def scratch(self, bucket: torch.Tensor, world_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return two tensors for `bucket`, each with its size rounded up to a multiple of `world_size`."""
        key = (bucket.dtype, bucket.device, bucket.numel())
        if key not in self._scratch:
            padded = -(-bucket.numel() // world_size) * world_size
            outgoing, incoming = (torch.zeros(padded, dtype=bucket.dtype, device=bucket.device) for _ in range(2))
            self._scratch[key] = outgoing, incoming
        return self._scratch[key]


def canonical_hook(state: CanonicalState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket over all ranks, in the order of the canonical tree over the same number of virtual workers.

    Register it with `DistributedDataParallel.register_comm_hook(state, canonical_hook)`. Rank r stands for virtual
    worker r. On a GPU the hook does not block the host. With Gloo it waits for both exchanges: a callback would run in
    one of Gloo's threads, and a thread that still needs the interpreter when the process ends aborts the process.
    """
    group = state.process_group if state.process_group is not None else dist.group.WORLD
    world_size = dist.get_world_size(group)
    gradient = bucket.buffer()
    outgoing, incoming = state.scratch(gradient, world_size)
    outgoing[: gradient.numel()].copy_(gradient)
    exchange = dist.all_to_all_single(incoming, outgoing, group=group, async_op=True)
    assert exchange is not None
    exchange.wait()
    tree: TreeAccumulator[torch.Tensor] = TreeAccumulator(world_size)
    for rank, part in enumerate(incoming.view(world_size, -1)):
        tree.push(rank, part)
    (root,) = tree.nodes()
    root.buffer.div_(world_size)
    gather = dist.all_gather_into_tensor(outgoing, root.buffer, group=group, async_op=True)
    assert gather is not None

    if not gradient.is_cuda:
        gather.wait()
        averaged: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        averaged.set_result(gradient.copy_(outgoing[: gradient.numel()]))
        return averaged

    def copy_back(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        future.wait()  # raises the error of the gather
        gradient.copy_(outgoing[: gradient.numel()])
        return gradient

    later: torch.futures.Future[torch.Tensor] = gather.get_future().then(copy_back)
    return later
