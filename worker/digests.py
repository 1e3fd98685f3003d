"""Digests that show whether two states have the same bits: one for each tensor, and one for plain values.

A tensor's bits are read as integers of at most 32 bits, each is multiplied by an odd 64-bit number that depends on its
position, and the products are added modulo 2^64. So one changed integer always changes the sum. (Integers of 64 bits
would not do: two changes of the highest bit cancel each other, whatever odd factors they have.) Bits are compared, not
values: NaN equals itself, and -0.0 is not 0.0. Integers have no rounding, so the result does not depend on the order of
the additions, nor on the device.

A large tensor costs as much as reading it once: its bits are laid out in rows of `WIDTH` 64-bit integers. The rows are
added up, and only their sum is multiplied. So changes in one column of the rows may cancel each other. `WIDTH` is a
prime, so that related elements seldom stand in one column. The rests, and small tensors, are collected in a pool and
multiplied in a few calls. All work stays on the tensors' device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch

WIDTH = 1021  # 64-bit integers in a row
POOL = 1 << 18  # integers that are multiplied at once
ALIGNED = 64  # a part of a tensor should begin at a multiple of so many elements

_ROW_BYTES = 8 * WIDTH
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32, 16: torch.int32}
_ROWS_AT_ONCE = 512
# odd factor that separates the rest of a tensor from its rows, which have the same weights
_APART = -0x2545F4914F6CDD1D


def digests(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return one integer for each of these tensors, which are on one device: shape [len(parts)], int64, on that device.

    A digest depends on the bits of the tensor's elements in their order, and on the position among `parts`: only
    results of equal lists of shapes can be compared.
    """
    device = parts[0].device if parts else torch.device("cpu")
    found = torch.zeros(len(parts), dtype=torch.int64, device=device)
    pools: dict[tuple[torch.dtype, bool], _Pool] = {}

    def put(position: int, piece: torch.Tensor, sums: bool) -> None:
        pool = pools.setdefault((piece.dtype, sums), _Pool(1 if sums else _APART))
        pool.put(position, piece)
        if pool.size >= POOL:
            pool.add_to(found)

    for position, part in enumerate(parts):
        flat = _flat(part)
        count = flat.numel() * flat.element_size() // _ROW_BYTES
        if count > 1:
            rest = count * _ROW_BYTES // flat.element_size()
            rows = _whole_words(flat[:rest]).view(count, WIDTH)
            put(position, rows.sum(0).view(torch.int32), True)
            if part.element_size() > 4:
                put(position, _upper_halves(rows).view(torch.int32), True)
            flat = flat[rest:]
        if flat.numel():
            put(position, flat, False)
    for pool in pools.values():
        pool.add_to(found)
    return found


def together(each: torch.Tensor) -> torch.Tensor:
    """Return one integer for all of these digests in their order, on their device: shape []."""
    return (each * _weights(each.numel(), each.device)).sum()


def of_values(packed: Any) -> int:
    """Return a digest of plain values (`plain.pack`): 64 bits, signed. It differs if a bit of a value does."""
    return _hashed(msgspec.msgpack.encode(packed))


def mixed(numbers: Sequence[int]) -> int:
    """Return one digest of several such integers, in their order."""
    return _hashed(b"".join(number.to_bytes(8, "little", signed=True) for number in numbers))


def _hashed(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True)


@dataclass
class _Pool:
    """Pieces of one type that are multiplied in one call."""

    factor: int
    pieces: list[torch.Tensor] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    size: int = 0  # integers

    def put(self, position: int, piece: torch.Tensor) -> None:
        self.pieces.append(piece)
        self.positions.append(position)
        self.size += piece.numel()
        self.ends.append(self.size)

    def add_to(self, found: torch.Tensor) -> None:
        """Add each piece's sum to its tensor's digest, and empty the pool."""
        if not self.pieces:
            return
        device = found.device
        products = _scratch(self.size, device)
        torch.mul(torch.cat(self.pieces), _weights(self.size, device), out=products)
        sums = torch.cumsum(products, 0, out=products)
        ends = sums[torch.tensor(self.ends, device=device) - 1]
        ends[1:] -= ends[:-1].clone()
        found.index_add_(0, torch.tensor(self.positions, device=device), ends * self.factor)
        self.pieces, self.positions, self.ends, self.size = [], [], [], 0


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements in their order as integers, with a pending conjugation or negation applied."""
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor.detach().reshape(-1).contiguous().view(_INTEGERS[tensor.element_size()])


def _whole_words(flat: torch.Tensor) -> torch.Tensor:
    if flat.storage_offset() * flat.element_size() % 8:
        flat = flat.clone()
    return flat.view(torch.int64)


def _upper_halves(rows: torch.Tensor) -> torch.Tensor:
    """Return the sum of the rows' upper halves.

    In the sum of whole 64-bit integers two changes of the highest bit cancel each other. That bit is the sign of each
    wide number, and of every second or fourth narrow one.
    """
    found = torch.zeros(WIDTH, dtype=torch.int64, device=rows.device)
    for part in torch.split(rows, _ROWS_AT_ONCE):
        found += (part >> 32).sum(0)
    return found


_known_weights: dict[torch.device, torch.Tensor] = {}
_known_scratch: dict[torch.device, torch.Tensor] = {}  # the first use of memory costs more than the sums


def _weights(count: int, device: torch.device) -> torch.Tensor:
    """Return odd numbers without a pattern: SplitMix64 (Steele et al., OOPSLA 2014) of the positions."""
    known = _known_weights.get(device)
    if known is None or known.numel() < count:
        size = max(1 << 12, 1 << (count - 1).bit_length())
        known = _known_weights[device] = _split_mix(torch.arange(1, size + 1, device=device)) | 1
    return known[:count]


def _scratch(count: int, device: torch.device) -> torch.Tensor:
    known = _known_scratch.get(device)
    if known is None or known.numel() < count:
        known = _known_scratch[device] = torch.empty(_weights(count, device).numel(), dtype=torch.int64, device=device)
    return known[:count]


def _split_mix(numbers: torch.Tensor) -> torch.Tensor:
    found = numbers * _signed(0x9E3779B97F4A7C15)
    found = (found ^ _shifted(found, 30)) * _signed(0xBF58476D1CE4E5B9)
    found = (found ^ _shifted(found, 27)) * _signed(0x94D049BB133111EB)
    return found ^ _shifted(found, 31)


def _shifted(numbers: torch.Tensor, places: int) -> torch.Tensor:
    """Shift to the right with zeros from the left: torch only has the arithmetic shift, which keeps the sign."""
    return (numbers >> places) & ((1 << (64 - places)) - 1)


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number
