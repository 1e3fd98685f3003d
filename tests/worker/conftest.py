"""Processes that fork ranks: each is started when a test first needs it, and serves all later ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.worker.ranks import DivergenceRanks, Ranks


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
