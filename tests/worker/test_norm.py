"""The norm of a divided gradient: the bits of the undivided one, whatever the number of workers."""

from __future__ import annotations

import pytest
import torch

from elasticd.worker.sharding.intervals import Grid, Interval, divide, divide_again
from elasticd.worker.sharding.norm import clip_, norm_of, sums_of_tiles

NUMELS = [70_001, 5, 0, 1024, 30_000]
GRID = Grid([NUMELS], block=1 << 14)


def parts(intervals: list[Interval]) -> list[Interval]:
    return [part for interval in intervals for _, part in GRID.parameters_in(interval)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_norm_and_clipped_gradient_do_not_depend_on_the_workers(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    gradient = (torch.randn(GRID.ends[0], generator=generator) * torch.logspace(-4, 4, GRID.ends[0])).to(dtype)
    owners = divide(GRID, ["0"])
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    for workers in (1, 2, 3, 4, 5, 6, 3, 1):
        owners = divide_again(GRID, owners, [str(worker) for worker in range(workers)])
        clipped = gradient.clone()
        own = parts([each.interval for each in owners])
        norm = norm_of(torch.cat([sums_of_tiles(clipped[each.begin : each.end]) for each in own]))
        clip_([clipped[each.begin : each.end] for each in own], norm, 1.5)
        found.append((norm, clipped))
    for norm, clipped in found[1:]:
        assert torch.equal(norm, found[0][0])
        assert torch.equal(clipped.view(torch.uint8), found[0][1].view(torch.uint8))
    torch.testing.assert_close(found[0][0], gradient.double().norm())
    assert found[0][1].double().norm() == pytest.approx(1.5, rel=1e-2)


def test_a_small_gradient_is_left_alone_and_overflow_is_seen() -> None:
    small = torch.tensor([3.0, 4.0])
    norm = norm_of(sums_of_tiles(small))
    assert norm.item() == 5.0
    clip_([small], norm, 10.0)
    assert small.tolist() == [3.0, 4.0]
    assert norm_of(sums_of_tiles(torch.tensor([1.0, torch.inf]))).isinf()
    assert norm_of(sums_of_tiles(torch.tensor([1.0, torch.nan]))).isnan()
