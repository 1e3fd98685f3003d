"""Copies through pinned buffers keep bits, types, shapes and strides of any tensor."""

from __future__ import annotations

import pytest
import torch

from elasticd.worker.state.host_copies import HostCopies

GAPS = torch.arange(60.0).reshape(6, 10)
TENSORS = {
    "plain": torch.randn(7, 5),
    "no dimension": torch.tensor(3, dtype=torch.int64),
    "empty": torch.empty(0, 4),
    "bool": torch.tensor([True, False, True]),
    "half": torch.randn(33).to(torch.bfloat16),
    "complex": torch.randn(5, dtype=torch.complex64),
    "conjugated": torch.randn(5, dtype=torch.complex64).conj(),
    "negated": torch.randn(5, dtype=torch.complex64).conj().imag,
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "transposed": torch.randn(4, 6).t(),
    "with gaps": GAPS[:, 2:7],
    "behind an offset": GAPS[3],
    "expanded": torch.randn(3, 1).expand(3, 4),
}


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("piece_bytes", [16, 48, 1 << 20])
def test_a_copy_has_the_same_bits_type_shape_and_strides(name: str, piece_bytes: int) -> None:
    tensor = TENSORS[name]
    expected = tensor.to("cpu", copy=True)
    made: list[torch.Tensor] = []

    def make(size: int) -> torch.Tensor:
        made.append(torch.full((size,), 255, dtype=torch.uint8))
        return made[-1]

    copies = HostCopies(make, piece_bytes)
    for _ in range(2):  # the buffers are reused
        copy = copies.of_one(tensor)
        assert (copy.dtype, copy.shape, copy.stride()) == (expected.dtype, expected.shape, expected.stride())
        assert torch.equal(copy, expected)
        assert tensor.numel() == 0 or copy.data_ptr() != tensor.data_ptr()
    assert len(made) <= 2


def test_what_lies_in_memory_takes_no_buffer() -> None:
    def make(size: int) -> torch.Tensor:
        raise AssertionError("no buffer is needed")

    (copy,) = HostCopies(make).of([GAPS])
    assert torch.equal(copy, GAPS)
    assert copy.data_ptr() != GAPS.data_ptr()
