"""Digests that tell whether two tensors, or two plain values, have the same bits."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticd.worker.digests import POOL, WIDTH, digests, mixed, of_values, together

SIZES = [1, 3, 64, 2 * WIDTH - 1, 2 * WIDTH, 4 * WIDTH, 9 * WIDTH + 5, 2 * POOL + 77]
DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.complex128,
    torch.int64,
    torch.int16,
    torch.uint8,
    torch.bool,
]


def one(tensor: torch.Tensor) -> int:
    return int(together(digests([tensor])))


def random_bytes(dtype: torch.dtype, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    if dtype is torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).bool()
    size = torch.empty(0, dtype=dtype).element_size()
    return torch.randint(0, 256, (count * size,), generator=generator, dtype=torch.uint8).view(dtype)


def flipped(tensor: torch.Tensor, bit: int) -> torch.Tensor:
    data = tensor.clone().view(torch.uint8)
    data[bit // 8] ^= 1 << bit % 8
    return data.view(tensor.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES[:-1])
def test_each_type_and_size_tells_its_first_and_its_last_bit(dtype: torch.dtype, size: int) -> None:
    tensor = random_bytes(dtype, size)
    digest = one(tensor)
    assert one(tensor.clone()) == digest
    last = tensor.numel() * tensor.element_size() * 8 - 8
    for bit in (0, last // 2 // 8 * 8, last) if dtype is torch.bool else (0, 7, last // 2, last + 7):
        assert one(flipped(tensor, bit)) != digest


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(SIZES), st.data())
def test_any_single_bit_counts(size: int, data: st.DataObject) -> None:
    tensor = random_bytes(torch.float32, size)
    bit = data.draw(st.integers(0, size * 32 - 1))
    assert one(flipped(tensor, bit)) != one(tensor)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(SIZES[2:]), st.data())
def test_values_that_change_places_are_told(size: int, data: st.DataObject) -> None:
    tensor = torch.arange(size, dtype=torch.float32)
    left, right = data.draw(st.lists(st.integers(0, size - 1), min_size=2, max_size=2, unique=True))
    swapped = tensor.clone()
    swapped[left], swapped[right] = tensor[right], tensor[left]
    same_column = size * 4 // (8 * WIDTH) > 1 and left // 2 % WIDTH == right // 2 % WIDTH and left % 2 == right % 2
    if not same_column:
        assert one(swapped) != one(tensor)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SIZES[1:]), st.sampled_from([torch.float32, torch.float64, torch.bfloat16]), st.data())
def test_any_two_changed_signs_count(size: int, dtype: torch.dtype, data: st.DataObject) -> None:
    tensor = random_bytes(dtype, size)
    places = data.draw(st.lists(st.integers(0, size - 1), min_size=2, max_size=2, unique=True))
    changed = tensor.clone()
    changed[places] = -changed[places]
    width = 8 // tensor.element_size() * WIDTH
    same_column = tensor.numel() >= 2 * width and places[0] % width == places[1] % width
    if dtype is torch.float64 or not same_column:
        assert one(changed) != one(tensor)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.complex64, torch.complex128])
@pytest.mark.parametrize("size", SIZES)
def test_a_tensor_and_its_negative_differ(dtype: torch.dtype, size: int) -> None:
    tensor = torch.full((size,), 1 + 1j if dtype.is_complex else 1.0, dtype=dtype)
    assert one(-tensor) != one(tensor)
    if dtype.is_complex:
        assert one(tensor.conj()) != one(tensor)


def test_bits_are_compared_and_not_values() -> None:
    assert one(torch.tensor([0.0])) != one(torch.tensor([-0.0]))
    assert one(torch.tensor([math.nan])) == one(torch.tensor([math.nan]))
    other_nan = torch.tensor([math.nan]).view(torch.int32).add(1).view(torch.float32)
    assert one(other_nan) != one(torch.tensor([math.nan]))


@pytest.mark.parametrize("rows", [3, 300])
def test_the_order_of_elements_counts_and_not_how_they_lie_in_memory(rows: int) -> None:
    matrix = torch.randn(rows, 64, generator=torch.Generator().manual_seed(1))
    lies_otherwise = matrix.t().contiguous().t()
    assert one(lies_otherwise) == one(matrix)
    assert one(matrix.t()) != one(matrix)
    shifted = torch.cat([torch.zeros(1), matrix.flatten()])[1:]  # does not begin at a 64-bit integer
    assert one(shifted) == one(matrix)


def test_a_conjugation_that_is_still_to_be_applied_counts() -> None:
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    assert one(numbers.conj()) == one(torch.tensor([1 - 2j, 3 + 4j])) != one(numbers)


def test_each_tensor_of_a_list_has_its_own_number() -> None:
    parts = [random_bytes(dtype, size) for size in SIZES for dtype in DTYPES if size < POOL] + [torch.tensor(1.0)]
    before = digests(parts).tolist()
    assert len(set(before)) == len(parts)
    for position in (0, len(parts) // 2, len(parts) - 1):
        changed = list(parts)
        changed[position] = flipped(parts[position].reshape(-1), 0)
        after = digests(changed).tolist()
        assert [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b] == [position]


def test_empty_tensors_and_empty_lists_have_numbers() -> None:
    assert digests([]).tolist() == []
    assert digests([torch.zeros(0), torch.zeros(0, 3)]).tolist() == [0, 0]
    assert int(together(digests([]))) == 0


def test_the_number_of_a_whole_list_depends_on_its_order() -> None:
    first, second = torch.tensor([1.0, 2.0]), torch.tensor([3.0])
    assert int(together(digests([first, second]))) != int(together(digests([second, first])))


def test_plain_values_are_told_by_type_and_bits() -> None:
    values = [0, 0.0, -0.0, False, None, "", [], {"dict": []}, "0", 1, 1.0, True, 0.1, 0.1 + 2**-56]
    assert len({of_values(value) for value in values}) == len(values)
    assert of_values({"lr": 0.1}) == of_values({"lr": 0.1})
    assert mixed([1, -2]) != mixed([-2, 1])
