"""One gradient reduction, the same for every number of workers (design: worker-runtime 3; EasyScale 3.3, D1).

A floating-point sum depends on its order, so the order is fixed: a balanced binary tree over the virtual workers 0..N-1, cut off
at N. A *node* of it is an interval [lo, hi) of leaves: lo is a multiple of a power of two s, and hi = min(lo + s, N). A worker
hosts a contiguous range of leaves and adds siblings as soon as it has both, which leaves it with the maximal nodes that
its range covers. Which nodes those are follows from the range, so everybody knows who brings which, and nobody says so.

To complete the tree the flat gradient is cut into buckets, and each bucket into one slice per worker. A worker receives
its slice of everybody's nodes (all-to-all), adds the rest of the tree, and all slices are gathered: the traffic of a ring
all-reduce if each worker brings one node. Addition is elementwise, so neither buckets nor slices change a bit of the result.

A worker that hosts nothing (a joiner in its first step) brings no node but takes its slice like all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist

from .communicator import Communicator

BUCKET_ELEMENTS = 1 << 20  # measured: smaller ones pay for latency, one for all does not overlap sums with transfers
BUCKETS_IN_FLIGHT = 2


class Node(NamedTuple):
    """The sum over the virtual workers [lo, hi), a node of the tree."""

    lo: int
    hi: int
    buffer: torch.Tensor


def cover(lo: int, hi: int, n: int) -> list[tuple[int, int]]:
    """The maximal nodes of the tree over n leaves that make up [lo, hi), from left to right."""
    nodes: list[tuple[int, int]] = []
    while lo < hi:
        size = 1
        while lo % (2 * size) == 0 and lo + size < n and min(lo + 2 * size, n) <= hi:
            size *= 2
        nodes.append((lo, min(lo + size, n)))
        lo = nodes[-1][1]
    return nodes


def are_siblings(left: tuple[int, int], right: tuple[int, int], n: int) -> bool:
    """Whether two adjacent nodes of the tree over n leaves have one parent."""
    size = left[1] - left[0]
    return left[0] % (2 * size) == 0 and right == (left[1], min(left[0] + 2 * size, n))


class TreeAccumulator:
    """Adds leaves (or nodes) from left to right; siblings merge at once, so at most log2 n + 1 buffers are alive."""

    def __init__(self, n: int, recycle: Callable[[torch.Tensor], None] = lambda buffer: None) -> None:
        """recycle: is given each buffer whose value has been added to another one."""
        self._n = n
        self._recycle = recycle
        self._nodes: list[Node] = []

    def push(self, virtual_worker: int, buffer: torch.Tensor) -> None:
        """Take over `buffer`, the gradient of `virtual_worker`."""
        self.push_node(virtual_worker, virtual_worker + 1, buffer)

    def push_node(self, lo: int, hi: int, buffer: torch.Tensor) -> None:
        """Take over `buffer`, the node [lo, hi), which starts where the last one ended."""
        assert not self._nodes or self._nodes[-1].hi == lo, f"[{lo}, {hi}) does not follow {self._nodes[-1][:2]}"
        self._nodes.append(Node(lo, hi, buffer))
        while len(self._nodes) > 1 and are_siblings(self._nodes[-2][:2], self._nodes[-1][:2], self._n):
            right = self._nodes.pop()
            left = self._nodes.pop()
            left.buffer.add_(right.buffer)
            self._nodes.append(Node(left.lo, right.hi, left.buffer))
            self._recycle(right.buffer)

    def nodes(self) -> list[Node]:
        """What there is, from left to right."""
        return list(self._nodes)


class Reducer(Protocol):
    """Sums over all virtual workers of all workers."""

    def reduce(self, nodes: Sequence[Node], out: torch.Tensor) -> None:
        """Write the sum of everybody's nodes to `out`, flat, on every worker. All workers call it in the same step.

        `out` may not share memory with a node. After CommunicatorBroken the abandoned operations may still write to `out` and
        read the nodes: neither may be used again, and this reducer may not either.
        """


class PlainReducer:
    """The library's all-reduce over workers, for jobs that do not ask for more: the order depends on their number."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator

    def reduce(self, nodes: Sequence[Node], out: torch.Tensor) -> None:
        if not nodes:
            out.zero_()
        for position, node in enumerate(nodes):
            if position == 0:
                out.copy_(node.buffer)
            else:
                out.add_(node.buffer)
        self._communicator.wait(self._communicator.all_reduce(out))


@dataclass
class _Lane:
    """Buffers of one bucket in flight. Kept from step to step: fresh ones cost more than the sums (8x against 2x)."""

    incoming: torch.Tensor  # [nodes of all workers, slice]: our slice of them
    outgoing: torch.Tensor  # [workers * own nodes, slice]: what each worker gets of our nodes
    gathered: torch.Tensor  # [workers * slice], for a bucket that does not fit into the result as it is


class CanonicalReducer:
    """Completes the canonical tree. The bits of the result depend on the leaves only, not on who hosts them."""

    def __init__(
        self,
        communicator: Communicator,
        ranges: Sequence[range],
        n: int,
        numel: int,
        dtype: torch.dtype,
        device: torch.device,
        bucket_elements: int = BUCKET_ELEMENTS,
    ) -> None:
        """ranges: the virtual workers of each rank (`virtual.assign`). numel: of the flat gradient."""
        self._communicator = communicator
        self._n = n
        self._numel = numel
        self._workers = communicator.size
        covers = [cover(hosted.start, hosted.stop, n) for hosted in ranges]
        hosting = [position for position, nodes in enumerate(covers) if nodes]
        assert len(covers) == self._workers
        assert sorted(hosting, key=lambda rank: ranges[rank].start) == hosting, "ranges must ascend with the rank"
        self._own = covers[communicator.rank]
        self._counts = [len(nodes) for nodes in covers]
        self._all = [node for nodes in covers for node in nodes]
        self._slice = -(-min(bucket_elements, max(numel, 1)) // self._workers)
        self._bucket = self._slice * self._workers
        self._lanes: list[_Lane] = []
        if self._workers > 1:
            lanes = min(BUCKETS_IN_FLIGHT, -(-numel // self._bucket))
            self._lanes = [self._new_lane(dtype, device) for _ in range(lanes)]

    def _new_lane(self, dtype: torch.dtype, device: torch.device) -> _Lane:
        # Zeros, since the last bucket's padding is added and sent too, and must not slow the sums down as denormals.
        return _Lane(
            incoming=torch.zeros(len(self._all), self._slice, dtype=dtype, device=device),
            outgoing=torch.zeros(self._workers * len(self._own), self._slice, dtype=dtype, device=device),
            gathered=torch.zeros(self._bucket, dtype=dtype, device=device),
        )

    def reduce(self, nodes: Sequence[Node], out: torch.Tensor) -> None:
        assert [(node.lo, node.hi) for node in nodes] == self._own, "these are not the nodes of the hosted range"
        assert out.numel() == self._numel
        if self._workers == 1:
            out.copy_(nodes[0].buffer)
            return
        buckets = -(-self._numel // self._bucket)
        exchanges: list[dist.Work] = []
        gathers: list[dist.Work] = []
        # Bucket b's all-to-all travels while the sums of bucket b - 1 are made and the gathering of bucket b - 2 ends. That
        # one has to end before its lane is filled again, since it still reads from there.
        for turn in range(buckets + 2):
            if turn >= 2:
                self._communicator.wait(gathers[turn - 2])
                self._finish(turn - 2, out)
            if turn < buckets:
                exchanges.append(self._exchange(turn, nodes))
            if 1 <= turn <= buckets:
                self._communicator.wait(exchanges[turn - 1])
                gathers.append(self._gather(turn - 1, out))

    def _lane(self, bucket: int) -> _Lane:
        return self._lanes[bucket % len(self._lanes)]

    def _part(self, bucket: int, flat: torch.Tensor) -> torch.Tensor:
        return flat[bucket * self._bucket : (bucket + 1) * self._bucket]

    def _exchange(self, bucket: int, nodes: Sequence[Node]) -> dist.Work:
        lane = self._lane(bucket)
        outgoing = lane.outgoing
        table = outgoing.view(self._workers, len(nodes), self._slice)
        for position, node in enumerate(nodes):
            part = self._part(bucket, node.buffer)
            if part.numel() < self._bucket:
                self._fill_short(table[:, position], part)
            elif len(nodes) == 1:
                outgoing = part.view(self._workers, self._slice)  # has the right form already
            else:
                table[:, position].copy_(part.view(self._workers, self._slice))
        return self._communicator.all_to_all(lane.incoming, outgoing, self._counts, [len(nodes)] * self._workers)

    def _fill_short(self, rows: torch.Tensor, part: torch.Tensor) -> None:
        """The last bucket: what is missing is zeros."""
        full, rest = divmod(part.numel(), self._slice)
        rows[:full].copy_(part[: full * self._slice].view(full, self._slice))
        rows[full:].zero_()
        if rest:
            rows[full, :rest].copy_(part[full * self._slice :])

    def _gather(self, bucket: int, out: torch.Tensor) -> dist.Work:
        lane = self._lane(bucket)
        tree = TreeAccumulator(self._n)
        for position, (lo, hi) in enumerate(self._all):
            tree.push_node(lo, hi, lane.incoming[position])
        (root,) = tree.nodes()
        part = self._part(bucket, out)
        target = part if part.numel() == self._bucket else lane.gathered
        return self._communicator.all_gather(target, root.buffer)

    def _finish(self, bucket: int, out: torch.Tensor) -> None:
        part = self._part(bucket, out)
        if part.numel() < self._bucket:
            part.copy_(self._lane(bucket).gathered[: part.numel()])
