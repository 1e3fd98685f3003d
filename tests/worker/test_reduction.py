"""The canonical reduction tree: equal bits for every distribution of virtual workers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elasticd.worker.communication.communicator import Communicator
from elasticd.worker.gradients.layout import Gradient, Layout
from elasticd.worker.gradients.reduction import CanonicalReducer, Node, PlainReducer, TreeAccumulator, cover
from elasticd.worker.virtual import assign

from .communicator_world import run_ranks


def leaves(n: int, numel: int) -> torch.Tensor:
    """Values of very different magnitudes, so that every order of addition gives other bits."""
    generator = torch.Generator().manual_seed(n)
    return torch.randn(n, numel, generator=generator) * torch.logspace(-3, 3, n)[:, None]


def accumulate(gradients: torch.Tensor, hosted: range) -> TreeAccumulator[torch.Tensor]:
    tree: TreeAccumulator[torch.Tensor] = TreeAccumulator(len(gradients))
    for v in hosted:
        tree.push(v, gradients[v].clone())
    return tree


def reference(gradients: torch.Tensor) -> torch.Tensor:
    """The definition, as a recursion."""

    def add(lo: int, size: int) -> torch.Tensor:
        if size == 1:
            return gradients[lo]
        half = size // 2
        left = add(lo, half)
        return left + add(lo + half, half) if lo + half < len(gradients) else left

    size = 1
    while size < len(gradients):
        size *= 2
    return add(0, size)


@st.composite
def hosted_ranges(draw: st.DrawFn) -> tuple[int, list[range]]:
    """N and a division of it into contiguous ranges, some of them empty."""
    n = draw(st.integers(1, 70))
    cuts = sorted(draw(st.lists(st.integers(0, n), max_size=9)))
    return n, [range(lo, hi) for lo, hi in zip([0, *cuts], [*cuts, n], strict=True)]


@given(case=hosted_ranges())
def test_nodes_left_after_accumulation_are_those_that_everybody_expects(case: tuple[int, list[range]]) -> None:
    n, ranges = case
    gradients = leaves(n, 1)
    for hosted in ranges:
        nodes = accumulate(gradients, hosted).nodes()
        assert [(node.lo, node.hi) for node in nodes] == cover(hosted.start, hosted.stop, n)


@given(case=hosted_ranges())
def test_the_sum_has_the_bits_of_the_definition_for_every_division(case: tuple[int, list[range]]) -> None:
    n, ranges = case
    gradients = leaves(n, 17)
    total: TreeAccumulator[torch.Tensor] = TreeAccumulator(n)
    for hosted in ranges:
        for node in accumulate(gradients, hosted).nodes():
            total.push_node(node.lo, node.hi, node.buffer)
    (root,) = total.nodes()
    assert (root.lo, root.hi) == (0, n)
    assert torch.equal(root.buffer, reference(gradients))


@given(n=st.integers(1, 600))
def test_few_buffers_are_alive_at_any_time(n: int) -> None:
    alive = most = 0

    def recycle(buffer: torch.Tensor) -> None:
        nonlocal alive
        alive -= 1

    tree: TreeAccumulator[torch.Tensor] = TreeAccumulator(n, recycle)
    one = torch.zeros(1)
    for v in range(n):
        alive += 1
        most = max(most, alive)
        tree.push(v, one)
    assert alive == 1
    assert most <= n.bit_length() + 1


def test_a_gap_between_nodes_is_a_bug() -> None:
    tree: TreeAccumulator[torch.Tensor] = TreeAccumulator(4)
    tree.push(0, torch.zeros(1))
    with pytest.raises(AssertionError, match="does not follow"):
        tree.push(2, torch.zeros(1))


def layout_of(numel: int, n: int, dtype: torch.dtype = torch.float32) -> Layout:
    """A model with parameters of several sizes, `numel` elements in all."""
    sizes = [size for size in (numel // 2, numel // 3, numel - numel // 2 - numel // 3) if size]
    return Layout([torch.nn.Parameter(torch.zeros(size, dtype=dtype)) for size in sizes], padding=n + 1)


def nodes_of(layout: Layout, gradients: torch.Tensor, hosted: range, merged: bool) -> list[Node[Gradient]]:
    """This range's part of the tree; `merged`: with sibling nodes added up."""
    tree: TreeAccumulator[Gradient] = TreeAccumulator(len(gradients))
    for v in hosted:
        leaf = layout.allocate()
        leaf.flats[0][: gradients.shape[1]].copy_(gradients[v])
        tree.hold(v, v + 1, leaf)
        if merged or v + 1 < hosted.stop:
            tree.merge()
    return tree.nodes()


def canonical(gradients: torch.Tensor, hosts: list[bool], bucket_elements: int) -> list[torch.Tensor]:
    """The reducer's results on each rank: all at once, or in pieces as hooks complete them."""
    n, numel = gradients.shape
    ranges = assign(n, hosts)

    def run(communicator: Communicator) -> torch.Tensor:
        layout = layout_of(numel, n, gradients.dtype)
        reducer = CanonicalReducer(communicator, ranges, n, layout, bucket_elements)
        hosted = ranges[communicator.rank]
        words: list[tuple[torch.Tensor, Any]] = []

        def beside() -> None:
            word = torch.tensor([communicator.rank])
            words.append((word, communicator.all_reduce_max(word)))

        nodes = nodes_of(layout, gradients, hosted, merged=True)
        out = nodes[0].buffer if nodes else layout.allocate()
        reducer.start(nodes, out)
        reducer.finish(beside)
        first = out.flats[0].clone()
        nodes = nodes_of(layout, gradients, hosted, merged=False)
        out = nodes[0].buffer if nodes else layout.allocate()
        reducer.start(nodes, out)
        late = [node.buffer.flats[0].clone() for node in nodes]
        for node in nodes:
            node.buffer.flats[0][:numel].fill_(float("nan"))  # not computed yet
        step = max(1, numel // 7)
        for begin in range(0, numel if hosted else 0, step):
            for node, flat in zip(nodes, late, strict=True):
                node.buffer.flats[0][begin : begin + step].copy_(flat[begin : begin + step])
            reducer.advance(0, min(begin + step, numel))
        reducer.finish(beside)
        second = out.flats[0].clone()
        assert torch.equal(first, second)
        for word, work in words:
            communicator.wait(work)
            assert int(word) == communicator.size - 1
        assert len(words) == 2
        return second[:numel]

    return [run(Communicator.alone())] if len(hosts) == 1 else run_ranks(len(hosts), run)


@pytest.mark.parametrize(
    "hosts",
    [
        [True],
        [True] * 2,
        [True] * 3,
        [True] * 4,
        [True] * 8,
        [True] * 9,  # more workers than virtual workers
        [True, False],  # 1 -> 2
        [False, True, False, True],
    ],
    ids=lambda hosts: "".join("x" if host else "-" for host in hosts),
)
@pytest.mark.parametrize(("numel", "bucket_elements"), [(1003, 1 << 20), (1003, 64), (1, 64), (768, 96)])
def test_the_reduction_has_equal_bits_for_every_number_of_workers(
    hosts: list[bool], numel: int, bucket_elements: int
) -> None:
    gradients = leaves(8, numel)
    expected = reference(gradients) / 8
    for out in canonical(gradients, hosts, bucket_elements):
        assert torch.equal(out, expected)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_odd_numbers_of_virtual_workers_and_half_precision_have_equal_bits_too(workers: int) -> None:
    gradients = leaves(7, 501).to(torch.bfloat16)
    for out in canonical(gradients, [True] * workers, 100):
        assert torch.equal(out, reference(gradients) / 7)


def test_parameters_of_several_types_are_reduced_each_in_its_own() -> None:
    def run(communicator: Communicator) -> list[torch.Tensor]:
        kinds = (torch.float32, torch.bfloat16, torch.float64, torch.float32)
        layout = Layout([torch.nn.Parameter(torch.zeros(50, dtype=kind)) for kind in kinds], padding=4)
        leaf = layout.allocate()
        for position, view in enumerate(leaf.views):
            view.fill_(0.1 * (position + 1) * (communicator.rank + 1))
        reducer = CanonicalReducer(communicator, assign(2, [True, True]), 2, layout, 16)
        reducer.start([Node(communicator.rank, communicator.rank + 1, leaf)], leaf)
        reducer.finish(lambda: None)
        return [view.clone() for view in leaf.views]

    for views in run_ranks(2, run):
        assert [view.dtype for view in views] == [torch.float32, torch.float32, torch.float64, torch.bfloat16]
        for position, view in enumerate(views):
            expected = torch.full_like(view, 0.1 * (position + 1)).add_(torch.full_like(view, 0.2 * (position + 1)))
            assert torch.equal(view, expected / 2)


def test_nodes_of_another_range_are_a_bug() -> None:
    layout = layout_of(3, 4)
    reducer = CanonicalReducer(Communicator.alone(), (range(4),), 4, layout)
    nodes = nodes_of(layout, leaves(4, 3), range(3), merged=True)
    reducer.start(nodes, nodes[0].buffer)
    with pytest.raises(AssertionError, match="not the nodes"):
        reducer.finish(lambda: None)


def test_the_plain_reduction_averages_over_workers_also_those_that_host_nothing() -> None:
    gradients = torch.arange(12.0).view(4, 3)
    ranges = assign(4, [True, False, True])

    def run(communicator: Communicator) -> torch.Tensor:
        layout = layout_of(3, 4)
        hosted = ranges[communicator.rank]
        nodes = []
        if hosted:
            leaf = layout.allocate()
            leaf.flats[0][:3].copy_(gradients[hosted.start : hosted.stop].sum(0))
            nodes = [Node(hosted.start, hosted.stop, leaf)]
        reducer = PlainReducer(communicator, layout, 4)
        out = nodes[0].buffer if nodes else layout.allocate()
        reducer.start(nodes, out)
        reducer.finish(lambda: None)
        return out.flats[0][:3].clone()

    for out in run_ranks(3, run):
        assert torch.equal(out, gradients.mean(0))
