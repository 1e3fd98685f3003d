"""The canonical tree: equal bits, whoever hosts what."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elasticd.worker.communicator import Communicator
from elasticd.worker.reduction import CanonicalReducer, PlainReducer, TreeAccumulator, cover
from elasticd.worker.virtual import assign

_spec = importlib.util.spec_from_file_location("communicator_world", Path(__file__).with_name("communicator_world.py"))
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _module
_spec.loader.exec_module(_module)
run_ranks: Callable[..., list[torch.Tensor]] = _module.run_ranks

CPU = torch.device("cpu")


def leaves(n: int, numel: int) -> torch.Tensor:
    """Values of very different sizes, so that every order of addition gives other bits."""
    generator = torch.Generator().manual_seed(n)
    return torch.randn(n, numel, generator=generator) * torch.logspace(-3, 3, n)[:, None]


def accumulate(gradients: torch.Tensor, hosted: range) -> TreeAccumulator:
    tree = TreeAccumulator(len(gradients))
    for v in hosted:
        tree.push(v, gradients[v].clone())
    return tree


def reference(gradients: torch.Tensor) -> torch.Tensor:
    """The definition, recursively."""

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
    """N and any division of it into contiguous ranges, some of them empty."""
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
    total = TreeAccumulator(n)
    for hosted in ranges:
        for node in accumulate(gradients, hosted).nodes():
            total.push_node(*node)
    (root,) = total.nodes()
    assert root[:2] == (0, n)
    assert torch.equal(root.buffer, reference(gradients))


@given(n=st.integers(1, 600))
def test_few_buffers_are_alive_at_any_time(n: int) -> None:
    alive = most = 0

    def recycle(buffer: torch.Tensor) -> None:
        nonlocal alive
        alive -= 1

    tree = TreeAccumulator(n, recycle)
    one = torch.zeros(1)
    for v in range(n):
        alive += 1
        most = max(most, alive)
        tree.push(v, one)
    assert alive == 1
    assert most <= n.bit_length() + 1


def test_a_gap_between_nodes_is_a_bug() -> None:
    tree = TreeAccumulator(4)
    tree.push(0, torch.zeros(1))
    with pytest.raises(AssertionError, match="does not follow"):
        tree.push(2, torch.zeros(1))


def canonical(gradients: torch.Tensor, hosts: list[bool], bucket_elements: int) -> list[torch.Tensor]:
    n, numel = gradients.shape
    ranges = assign(n, hosts)

    def run(communicator: Communicator) -> torch.Tensor:
        reducer = CanonicalReducer(communicator, ranges, n, numel, gradients.dtype, CPU, bucket_elements)
        out = torch.full((numel,), float("nan"), dtype=gradients.dtype)
        for _ in range(2):  # buffers are used again
            reducer.reduce(accumulate(gradients, ranges[communicator.rank]).nodes(), out)
        return out

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
    expected = reference(gradients)
    for out in canonical(gradients, hosts, bucket_elements):
        assert torch.equal(out, expected)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_odd_numbers_of_virtual_workers_and_half_precision_have_equal_bits_too(workers: int) -> None:
    gradients = leaves(7, 501).to(torch.bfloat16)
    for out in canonical(gradients, [True] * workers, 100):
        assert torch.equal(out, reference(gradients))


def test_nodes_of_another_range_are_a_bug() -> None:
    reducer = CanonicalReducer(Communicator.alone(), (range(4),), 4, 3, torch.float32, CPU)
    with pytest.raises(AssertionError, match="not the nodes"):
        reducer.reduce(accumulate(leaves(4, 3), range(3)).nodes(), torch.zeros(3))


def test_the_plain_reduction_sums_over_workers_also_those_that_host_nothing() -> None:
    gradients = torch.arange(12.0).view(4, 3)
    ranges = assign(4, [True, False, True])

    def run(communicator: Communicator) -> torch.Tensor:
        out = torch.full((3,), float("nan"))
        PlainReducer(communicator).reduce(accumulate(gradients, ranges[communicator.rank]).nodes(), out)
        return out

    for out in run_ranks(3, run):
        assert torch.equal(out, gradients.sum(0))
