"""Placement of virtual workers, and the seeds of their randomness."""

from __future__ import annotations

import random

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elasticd.worker.virtual import assign, derive_seed, seed_everything


@given(n=st.integers(1, 200), hosts=st.lists(st.booleans(), min_size=1, max_size=20).filter(any))
def test_every_virtual_worker_runs_once_in_rank_order_and_evenly(n: int, hosts: list[bool]) -> None:
    ranges = assign(n, hosts)
    assert [v for hosted in ranges for v in hosted] == list(range(n))
    assert all(len(hosted) == 0 for hosted, host in zip(ranges, hosts, strict=True) if not host)
    sizes = [len(hosted) for hosted, host in zip(ranges, hosts, strict=True) if host]
    assert max(sizes) - min(sizes) <= 1


def test_a_joiner_hosts_nothing_and_the_rest_share_everything() -> None:
    assert assign(8, [True, False, True]) == (range(4), range(0), range(4, 8))


def test_nobody_hosting_is_an_error() -> None:
    with pytest.raises(ValueError, match="cannot be divided"):
        assign(4, [False, False])


def test_a_derived_seed_never_changes() -> None:
    assert derive_seed(0, "epoch", 3) == 5197861709325663677


def test_derived_seeds_tell_numbers_from_text_and_parts_from_their_concatenation() -> None:
    seeds = [
        derive_seed(0, "a", 1),
        derive_seed(0, "a1"),
        derive_seed(0, "a", "1"),
        derive_seed(1, "a", 1),
        derive_seed(0),
    ]
    assert len(set(seeds)) == len(seeds)


@given(seed=st.integers(-(2**70), 2**70), step=st.integers(0, 10**12))
def test_derived_seeds_have_63_bits(seed: int, step: int) -> None:
    assert 0 <= derive_seed(seed, "data", step) < 2**63


def test_the_same_seed_gives_the_same_numbers_in_all_three_generators() -> None:
    def draw() -> tuple[float, float, float]:
        seed_everything(2**63 - 1)
        return random.random(), float(numpy.random.random()), float(torch.rand(()))

    assert draw() == draw()
