"""Shared fixtures of worker tests: processes that fork ranks, each of which serves all tests once started, and a small heap."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.forked import Scripts
from tests.worker.ranks import DivergenceRanks, Ranks
from tests.worker.turns import Play, frozen


@pytest.fixture(autouse=True)
def _frozen() -> None:
    frozen()


@pytest.fixture(scope="session")
def ranks(scripts: Scripts) -> Iterator[Ranks]:
    ranks = Ranks(scripts)
    yield ranks
    ranks.close()


@pytest.fixture(scope="session")
def train(scripts: Scripts) -> Iterator[DivergenceRanks]:
    ranks = DivergenceRanks(scripts)
    yield ranks
    ranks.close()


@pytest.fixture(scope="session")
def play(scripts: Scripts) -> Iterator[Play]:
    play = Play(scripts)
    yield play
    play.close()
