"""What worker tests share: processes that fork ranks, each of which serves all tests once it has started, and a small heap."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from elasticd.worker import warm
from tests.worker.ranks import DivergenceRanks, Ranks


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> None:
    """A loop that begins looks for optimizers and copies among all objects that are not frozen: the million of PyTorch
    and pytest would cost half a second each time."""
    warm.prepare()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    ranks = Ranks()
    yield ranks
    ranks.close()


@pytest.fixture(scope="session")
def train() -> Iterator[DivergenceRanks]:
    ranks = DivergenceRanks()
    yield ranks
    ranks.close()
