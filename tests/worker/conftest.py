"""Shared fixtures of worker tests: processes that fork ranks, each of which serves all tests once started, and a small heap."""

from __future__ import annotations

import io
import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch

from tests.worker.ranks import DivergenceRanks, Ranks
from tests.worker.turns import Play, frozen, played


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> None:
    frozen()


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


@pytest.fixture(scope="session")
def play() -> Iterator[Play]:
    """Runs `played` in a separate process that has not imported the tests."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        with pytest.MonkeyPatch.context() as patched:  # sys.path of the process at its start
            patched.setattr(sys, "path", [str(Path(__file__).parents[2]), *sys.path])
            process.submit(frozen).result()
        yield lambda *job: torch.load(io.BytesIO(process.submit(played, *job).result()), weights_only=False)
