"""The gradient reduction, the same for every number of workers (design: worker-runtime 3; EasyScale 3.3, D1).

A floating-point sum depends on its order, so the order is fixed: a balanced binary tree over the virtual workers
0..N-1, cut off at N. A *node* of it is an interval [lo, hi) of leaves: lo is a multiple of a power of two s, and hi =
min(lo + s, N). A worker hosts a contiguous range of leaves and adds siblings as soon as it has both, which leaves it
with the maximal nodes that its range covers. These nodes follow from the range, so all workers know each worker's nodes
without a message.

To complete the tree the flat gradients are cut into buckets, and each bucket into one slice per worker. A worker
receives its slice of all workers' nodes (all-to-all) and adds the rest of the tree; then all slices are gathered
(all-gather). This is the traffic of a ring all-reduce if each worker has one node. Addition is elementwise, so neither
buckets nor slices change a bit of the result.

A worker that hosts no virtual worker (a joining worker in its first step) has no node but takes its slice like all
others. Two workers with one node each need none of this: a sum of two values has no order, so the library's all-reduce
is canonical.

A reduction begins before the gradient is complete: `advance` is called with the completed part, and starts the
collectives that can start without waiting, from within the backward pass. The collectives are started in one fixed
order on all workers, in whatever order gradients complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import torch
import torch.distributed as dist

from ..communication.communicator import Communicator, CommunicatorBroken
from .layout import Gradient, Layout

BUCKET_ELEMENTS = 1 << 21  # measured: smaller buckets pay for latency, larger ones do not overlap sums with transfers
PLAIN_BUCKET_ELEMENTS = 1 << 22
BUCKETS_IN_FLIGHT = 3


class Summable(Protocol):
    """A value that can be added up in a tree: a tensor, or a gradient of several tensors."""

    def add_(self, other: Any, /) -> Any:
        """Add `other`, elementwise, in place."""


B = TypeVar("B", bound=Summable)


@dataclass(frozen=True)
class Node(Generic[B]):
    """The sum over the virtual workers [lo, hi), a node of the tree."""

    lo: int
    hi: int
    buffer: B


def cover(lo: int, hi: int, n: int) -> list[tuple[int, int]]:
    """Return the maximal nodes of the tree over n leaves that make up [lo, hi), from left to right."""
    nodes: list[tuple[int, int]] = []
    while lo < hi:
        size = 1
        while lo % (2 * size) == 0 and lo + size < n and min(lo + 2 * size, n) <= hi:
            size *= 2
        nodes.append((lo, min(lo + size, n)))
        lo = nodes[-1][1]
    return nodes


def are_siblings(left: tuple[int, int], right: tuple[int, int], n: int) -> bool:
    """Return whether two adjacent nodes of the tree over n leaves have the same parent."""
    size = left[1] - left[0]
    return left[0] % (2 * size) == 0 and right == (left[1], min(left[0] + 2 * size, n))


class TreeAccumulator(Generic[B]):
    """Adds leaves (or nodes) from left to right. Siblings merge at once, so at most log2 n + 1 buffers are alive."""

    def __init__(self, n: int, recycle: Callable[[B], None] = lambda buffer: None) -> None:
        """recycle: called with each buffer whose value has been added to another one."""
        self._n = n
        self._recycle = recycle
        self._nodes: list[Node[B]] = []

    def push(self, virtual_worker: int, buffer: B) -> None:
        """Take over `buffer`, the gradient of `virtual_worker`."""
        self.push_node(virtual_worker, virtual_worker + 1, buffer)

    def push_node(self, lo: int, hi: int, buffer: B) -> None:
        """Take over `buffer`, the node [lo, hi), which begins where the last one ended."""
        self.hold(lo, hi, buffer)
        self.merge()

    def hold(self, lo: int, hi: int, buffer: B) -> None:
        """Take over `buffer`, the node [lo, hi), with a value that is still to come: `merge` adds it up.

        In a rehearsal leaves may come from right to left.
        """
        if self._nodes and self._nodes[0].lo == hi:
            self._nodes.insert(0, Node(lo, hi, buffer))
            return
        assert not self._nodes or self._nodes[-1].hi == lo, f"[{lo}, {hi}) does not follow {self._nodes[-1]}"
        self._nodes.append(Node(lo, hi, buffer))

    def extend(self, hi: int) -> None:
        """Let the last node, of which the buffer holds the sum up to `hi`, end at `hi`."""
        last = self._nodes.pop()
        self._nodes.append(Node(last.lo, hi, last.buffer))

    def merge(self) -> None:
        """Add up siblings, from the right."""
        while len(self._nodes) > 1:
            left, right = self._nodes[-2:]
            if not are_siblings((left.lo, left.hi), (right.lo, right.hi), self._n):
                return
            left.buffer.add_(right.buffer)
            self._nodes[-2:] = [Node(left.lo, right.hi, left.buffer)]
            self._recycle(right.buffer)

    def nodes(self) -> list[Node[B]]:
        """Return the present nodes, from left to right."""
        return list(self._nodes)


class Reducer(Protocol):
    """Computes the mean over all virtual workers of all workers.

    All workers start and finish a reduction in the same step. After CommunicatorBroken the abandoned operations may
    still write to `out` and read the nodes. Neither may be used again, nor may the reducer.
    """

    def start(self, nodes: Sequence[Node[Gradient]], out: Gradient) -> None:
        """Begin a reduction.

        nodes: this worker's, from left to right. Siblings need not be added up yet, and values may still come.

        out: receives the result: the first node's buffer, or any other gradient if there is no node.
        """

    def advance(self, flat: int, elements: int) -> None:
        """Report that the nodes are complete up to this element of the flat tensor `flat`. Neither blocks nor raises."""

    def finish(self, beside: Callable[[], None]) -> None:
        """Wait until the result is in `out`; the nodes are complete. Raises CommunicatorBroken.

        beside: issues another collective, at one fixed place among those of the reduction.
        """


@dataclass(frozen=True)
class _Bucket:
    """A part of a flat tensor that is reduced at once: `slice` elements for each worker; the last slice may reach into
    the padding.
    """

    flat: int
    begin: int
    slice: int
    complete_at: int  # elements of the flat tensor up to the bucket's end

    def of(self, tensor: torch.Tensor, workers: int) -> torch.Tensor:
        return tensor[self.begin : self.begin + workers * self.slice]


def _buckets(layout: Layout, workers: int, elements: int) -> list[_Bucket]:
    found: list[_Bucket] = []
    for flat, size in enumerate(layout.sizes):
        step = workers * -(-min(elements, size) // workers)
        for begin in range(0, size, step):
            rest = min(step, size - begin)
            found.append(_Bucket(flat, begin, -(-rest // workers), begin + rest))
    return found


class PlainReducer:
    """The library's all-reduce over workers, for jobs without determinism: the order of the sum depends on their
    number.
    """

    def __init__(
        self, communicator: Communicator, layout: Layout, n: int, elements: int = PLAIN_BUCKET_ELEMENTS
    ) -> None:
        self._communicator = communicator
        self._n = n
        self._buckets = _buckets(layout, communicator.size, elements)

    def start(self, nodes: Sequence[Node[Gradient]], out: Gradient) -> None:
        if not nodes:
            out.zero_()
        self._out = out
        self._works: list[dist.Work] = []
        # Not the exception itself: its frames refer to the tensors, so that only the garbage collector would free them.
        self._broken: str | None = None

    def advance(self, flat: int, elements: int) -> None:
        while self._broken is None and len(self._works) < len(self._buckets):
            bucket = self._buckets[len(self._works)]
            if (bucket.flat, bucket.complete_at) > (flat, elements):
                return
            part = self._out.flats[bucket.flat][bucket.begin : bucket.complete_at]
            part.div_(self._n)
            try:
                self._works.append(self._communicator.all_reduce(part))
            except CommunicatorBroken as error:
                self._broken = str(error)

    def finish(self, beside: Callable[[], None]) -> None:
        last = self._buckets[-1]
        self.advance(last.flat, last.complete_at)
        if self._broken is not None:
            raise CommunicatorBroken(self._broken)
        beside()
        for work in self._works:
            self._communicator.wait(work)


@dataclass
class _Lane:
    """Memory of one bucket in flight. Kept from step to step: fresh memory costs more than the sums (8x against 2x)."""

    incoming: torch.Tensor  # this worker's slice of each node of all workers
    # slices of this worker's nodes, by receiver, unless the nodes' memory has that order already
    outgoing: torch.Tensor


@dataclass
class _Flight:
    """A reduction in progress."""

    nodes: Sequence[Node[Gradient]]
    out: Gradient
    steps: Iterator[tuple[str, int]]
    next: tuple[str, int] | None
    exchanges: list[dist.Work] = field(default_factory=list)
    gathers: list[dist.Work] = field(default_factory=list)
    broken: str | None = None


class CanonicalReducer:
    """Completes the canonical tree.

    The bits of the result depend on the leaves only, not on the workers that host them.
    """

    def __init__(
        self,
        communicator: Communicator,
        ranges: Sequence[range],
        n: int,
        layout: Layout,
        bucket_elements: int = BUCKET_ELEMENTS,
    ) -> None:
        """ranges: the virtual workers of each rank (`hosting.assign`). n: number of virtual workers."""
        self._communicator = communicator
        self._n = n
        self._workers = communicator.size
        covers = [cover(hosted.start, hosted.stop, n) for hosted in ranges]
        hosting = [position for position, nodes in enumerate(covers) if nodes]
        assert len(covers) == self._workers
        assert sorted(hosting, key=lambda rank: ranges[rank].start) == hosting, "ranges must ascend with the rank"
        self._own = covers[communicator.rank]
        self._counts = [len(nodes) for nodes in covers]
        self._all = [node for nodes in covers for node in nodes]
        self._buckets = _buckets(layout, self._workers, bucket_elements)
        self._pair = self._counts == [1, 1]
        self._lanes: list[list[_Lane]] = []
        if self._workers > 1 and not self._pair:
            self._lanes = [
                [self._new_lane(flat, layout) for flat in range(len(layout.sizes))] for _ in range(BUCKETS_IN_FLIGHT)
            ]

    def _new_lane(self, flat: int, layout: Layout) -> _Lane:
        dtype, device = layout.kinds[flat]
        largest = max(bucket.slice for bucket in self._buckets if bucket.flat == flat)
        rows = len(self._own) if len(self._own) > 1 else 0
        return _Lane(
            incoming=torch.zeros(len(self._all) * largest, dtype=dtype, device=device),
            outgoing=torch.zeros(self._workers * rows * largest, dtype=dtype, device=device),
        )

    def start(self, nodes: Sequence[Node[Gradient]], out: Gradient) -> None:
        steps = self._steps()
        self._flight = _Flight(nodes, out, steps, next(steps, None))

    def _steps(self) -> Iterator[tuple[str, int]]:
        """Yield the collectives in order: bucket b is gathered when the exchanges of the next buckets have begun."""
        count = len(self._buckets)
        if self._pair:
            yield from (("add", turn) for turn in range(count))
            yield "beside", 0
            return
        ahead = BUCKETS_IN_FLIGHT - 1
        for turn in range(count + ahead if self._workers > 1 else 0):
            if turn < count:
                yield "exchange", turn
            elif turn == count:
                yield "beside", 0
            if turn >= ahead:
                yield "gather", turn - ahead

    def advance(self, flat: int, elements: int) -> None:
        flight = self._flight
        try:
            while flight.broken is None and flight.next is not None:
                kind, number = flight.next
                if kind == "beside":
                    return
                bucket = self._buckets[number]
                if kind == "gather":
                    ready = self._communicator.poll(flight.exchanges[number])
                else:
                    ready = (bucket.flat, bucket.complete_at) <= (flat, elements)
                if not ready:
                    return
                self._take_step(flight)
        except CommunicatorBroken as error:
            flight.broken = str(error)

    def finish(self, beside: Callable[[], None]) -> None:
        flight = self._flight
        if self._workers == 1:
            beside()
            self._sum_alone(flight.nodes)
            return
        while flight.broken is None and flight.next is not None:
            kind, number = flight.next
            if kind == "beside":
                flight.next = next(flight.steps, None)
                beside()
                continue
            if kind == "gather":
                self._communicator.wait(flight.exchanges[number])
            self._take_step(flight)
        if flight.broken is not None:
            raise CommunicatorBroken(flight.broken)
        if self._pair:
            self._finish_pair(flight)
        for work in flight.gathers:
            self._communicator.wait(work)

    def _finish_pair(self, flight: _Flight) -> None:
        for bucket, work in zip(self._buckets, flight.exchanges, strict=True):
            self._communicator.wait(work)
            bucket.of(flight.out.flats[bucket.flat], self._workers).div_(self._n)

    def _sum_alone(self, nodes: Sequence[Node[Gradient]]) -> None:
        if len(nodes) > 1:
            tree: TreeAccumulator[Gradient] = TreeAccumulator(self._n)
            for node in nodes:
                tree.push_node(node.lo, node.hi, node.buffer)
            nodes = tree.nodes()
        assert [(node.lo, node.hi) for node in nodes] == self._own, "these are not the nodes of the hosted range"
        (root,) = nodes
        if self._n > 1:
            for flat in root.buffer.flats:
                flat.div_(self._n)

    def _take_step(self, flight: _Flight) -> None:
        assert flight.next is not None
        kind, number = flight.next
        flight.next = next(flight.steps, None)
        if kind == "add":
            (own,) = self._own_nodes(self._buckets[number], flight.nodes)
            flight.exchanges.append(self._communicator.all_reduce(own.buffer))
        elif kind == "exchange":
            flight.exchanges.append(self._exchange(number, flight.nodes))
        else:
            flight.gathers.append(self._gather(number, flight.out))

    def _lane(self, number: int) -> _Lane:
        return self._lanes[number % BUCKETS_IN_FLIGHT][self._buckets[number].flat]

    def _own_nodes(self, bucket: _Bucket, nodes: Sequence[Node[Gradient]]) -> list[Node[torch.Tensor]]:
        """Return this worker's nodes of one bucket, with siblings added up."""
        tree: TreeAccumulator[torch.Tensor] = TreeAccumulator(self._n)
        for node in nodes:
            tree.push_node(node.lo, node.hi, bucket.of(node.buffer.flats[bucket.flat], self._workers))
        own = tree.nodes()
        assert [(node.lo, node.hi) for node in own] == self._own, "these are not the nodes of the hosted range"
        return own

    def _exchange(self, number: int, nodes: Sequence[Node[Gradient]]) -> dist.Work:
        """Send each worker its slice of this worker's nodes, and receive this worker's slice of all nodes."""
        bucket, lane, workers = self._buckets[number], self._lane(number), self._workers
        own = self._own_nodes(bucket, nodes)
        incoming = lane.incoming[: len(self._all) * bucket.slice].view(len(self._all), bucket.slice)
        if len(own) == 1:
            outgoing = own[0].buffer.view(workers, bucket.slice)  # its memory already has the order of receivers
        else:
            rows = workers * len(own)
            outgoing = lane.outgoing[: rows * bucket.slice].view(rows, bucket.slice)
            table = outgoing.view(workers, len(own), bucket.slice)
            for position, part in enumerate(own):
                table[:, position].copy_(part.buffer.view(workers, bucket.slice))
        return self._communicator.all_to_all(incoming, outgoing, self._counts, [len(own)] * workers)

    def _gather(self, number: int, out: Gradient) -> dist.Work:
        """Add up this worker's slice, and gather all slices.

        The bucket's exchange is over, so its part of the nodes is free.
        """
        bucket = self._buckets[number]
        incoming = self._lane(number).incoming[: len(self._all) * bucket.slice].view(len(self._all), bucket.slice)
        tree: TreeAccumulator[torch.Tensor] = TreeAccumulator(self._n)
        for position, (lo, hi) in enumerate(self._all):
            tree.push_node(lo, hi, incoming[position])
        (root,) = tree.nodes()
        part = bucket.of(out.flats[bucket.flat], self._workers)
        own = part.view(self._workers, bucket.slice)[self._communicator.rank]
        torch.div(root.buffer, self._n, out=own)  # writes in place, which frees the lane and saves a copy in the gather
        return self._communicator.all_gather(part, own)
