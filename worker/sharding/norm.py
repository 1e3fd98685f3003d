"""The 2-norm of a gradient that is divided among workers, with bits that do not depend on their number.

A tile is `GRAIN` elements of a parameter, the last one of a parameter fewer. The squares of a tile are added in float64
by halving, and so are the tiles' sums of the whole gradient. Only elementwise additions occur, since the order in which
a library's sum adds depends on a tensor's size and on threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .intervals import GRAIN

EPSILON = 1e-6  # as `torch.nn.utils.clip_grad_norm_`


def sums_of_tiles(part: torch.Tensor, grain: int = GRAIN) -> torch.Tensor:
    """Return the sum of squares of each tile of `part`, elements of one parameter that begin at a cut."""
    flat = part.reshape(-1)
    tiles = -(-flat.numel() // grain)
    squares = torch.zeros(tiles * grain, dtype=torch.float64, device=flat.device)
    squares[: flat.numel()] = flat
    squares.mul_(squares)
    return _add_halves(squares.view(tiles, grain))


def norm_of(sums: torch.Tensor) -> torch.Tensor:
    """Return the norm, from the sums of all tiles in the order of the flat tensors."""
    return _add_halves(sums.view(1, -1))[0].sqrt()


def clip_(parts: Sequence[torch.Tensor], norm: torch.Tensor, limit: float) -> None:
    """Scale gradients of this norm to at most `limit`, in place, as `torch.nn.utils.clip_grad_norm_`."""
    factor = torch.clamp(limit / (norm + EPSILON), max=1.0)
    for part in parts:
        part.mul_(factor.to(part.device))


def _add_halves(rows: torch.Tensor) -> torch.Tensor:
    """Return the sum of each row: its second half is added to the first until one column is left."""
    width = 1 << max(0, rows.shape[1] - 1).bit_length()
    padded = torch.zeros(rows.shape[0], width, dtype=rows.dtype, device=rows.device)
    padded[:, : rows.shape[1]] = rows
    while width > 1:
        width //= 2
        padded = padded[:, :width] + padded[:, width:]
    return padded[:, 0]
