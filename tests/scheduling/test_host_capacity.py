"""Cores and memory beside any policy: jobs spread over the servers that have room for them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticd.protocol.model import ServerId
from elasticd.scheduler.amounts import Amounts, Capacity, Need
from elasticd.scheduler.kinds import Demand
from elasticd.scheduler.pipeline import Decision, decide
from elasticd.scheduler.view import ClusterView, Gpus, ServerInView, gpus_by_sort, limit_for

from .tables import job, policy, table

POLICIES = ("max-min", "fifo", "elastic", "afs-l")


def decided(
    name: str, servers: int, cores: Sequence[int], gpus: Sequence[int], present: dict[int, Gpus] | None = None
) -> Decision:
    """Decide about jobs with so many cores for each worker and so many GPUs, on servers with 8 cores and 4 GPUs."""
    there = tuple(
        ServerInView(ServerId(f"s{at:02d}"), (0, 1, 2, 3), capacity=Capacity(Amounts(8000, 1 << 40)))
        for at in range(servers)
    )
    sorts, demands = gpus_by_sort(there), [Demand(need=Need(Amounts(1000 * each))) for each in cores]
    distinct = list(dict.fromkeys(demands))
    jobs = table(
        *(job(f"j{at}", count, count, share=(present or {}).get(at, 0).bit_count()) for at, count in enumerate(gpus)),
        most=4 * servers,
    )
    limits, limit_of = [limit_for(one, sorts) for one in distinct], np.array([distinct.index(one) for one in demands])
    view = ClusterView(0.0, jobs, there, present or {}, limits=tuple(limits), limit_of=limit_of)
    found = decide(view, policy(name), random.Random(0), False)
    for at in range(servers):
        here = {row: (placed >> 4 * at & 15).bit_count() for row, placed in found.placements.items()}
        assert sum(cores[row] * count for row, count in here.items()) <= 8
    return found


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("servers", [2, 3, 12])
def test_jobs_that_fill_the_cores_of_a_server_start_on_every_server_at_once(name: str, servers: int) -> None:
    found = decided(name, servers, [8] * (servers + 1), [1] * (servers + 1))
    assert found.shares.tolist() == [1] * servers + [0]


@pytest.mark.parametrize("name", POLICIES)
def test_jobs_start_beside_those_that_are_there(name: str) -> None:
    found = decided(name, 3, [8, 4, 4, 8, 8], [1, 1, 1, 1, 1], present={0: 0b10000})
    assert found.placements[0] == 0b10000
    assert found.shares.tolist() == [1, 1, 1, 1, 0]


@given(st.sampled_from(POLICIES), st.integers(1, 8), st.integers(1, 30), st.integers(1, 9))
def test_of_jobs_that_are_alike_as_many_start_as_there_is_room_for(
    name: str, cores: int, jobs: int, servers: int
) -> None:
    found = decided(name, servers, [cores] * jobs, [1] * jobs)
    assert found.shares.sum() == min(jobs, servers * min(4, 8 // cores))


@given(st.integers(1, 2), st.integers(1, 12), st.integers(1, 6))
def test_of_jobs_of_several_gpus_on_one_server_as_many_start_as_there_is_room_for(
    gpus: int, jobs: int, servers: int
) -> None:
    found = decided("fifo", servers, [4] * jobs, [gpus] * jobs)
    assert (found.shares > 0).sum() == min(jobs, servers * (2 // gpus))
