"""Processes that fork training ranks, with everything imported once: one of each kind for a whole test run (`conftest`)."""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.forked import Scripts
from tests.worker.communicator_world import RendezvousServer

HERE = Path(__file__).parent
FLIPPED_AFTER = 8  # steps; so the first step that must not be applied by the victim is this one
ALONE = [[0, [0]]]
ALL = [[0, [0, 1, 2, 3]]]
CHANGING = [[0, [0]], [5, [0, 1, 2]], [9, [1, 2]], [13, [3, 1]], [17, [3, 1, 4, 5]]]


def also(*others: Any) -> list[Any]:
    """Parameters that only `make test-cluster` uses. A tuple is a row of several parameters."""
    rows = [other if isinstance(other, tuple) else (other,) for other in others]
    return [pytest.param(*row, marks=pytest.mark.cluster) for row in rows]


@dataclass(frozen=True)
class Outcome:
    """Final states of the workers of the last roster."""

    states: tuple[str, ...]  # as JSON, in order of worker
    norms: set[float]  # of their models


class Ranks:
    """Client of the process that forks training ranks (`training_ranks`)."""

    def __init__(self, scripts: Scripts) -> None:
        self._started = scripts.start(HERE / "training_ranks.py")
        self._outcomes: dict[str, Outcome] = {}

    def close(self) -> None:
        self._started.close()

    def outcome(self, case: str, timetable: list[Any]) -> Outcome:
        key = json.dumps([case, timetable])
        if key not in self._outcomes:
            self._outcomes[key] = self.train(case, timetable)
        return self._outcomes[key]

    def train(self, case: str, timetable: list[Any], **named: Any) -> Outcome:
        with RendezvousServer() as server, tempfile.TemporaryDirectory() as directory:
            errand = {"case": case, "address": server.address, "timetable": timetable, "directory": directory, **named}
            assert self._started.ask(json.dumps(errand)) == "0\n", "a rank has failed: see what it printed"
            found: list[dict[str, Any]] = [json.loads(path.read_text()) for path in sorted(Path(directory).iterdir())]
        finished = [document for document in found if "state" in document]
        assert [document["worker"] for document in finished] == sorted(timetable[-1][1])
        assert len({document["steps"] for document in finished}) == 1
        states = tuple(json.dumps(document["state"], sort_keys=True) for document in finished)
        return Outcome(states, {document["norm"] for document in finished})


def restarted(ranks: Ranks, case: str, directory: Path, step: int) -> Outcome:
    """Train with two workers, and again with one from the checkpoint that is nearest to this step; a second one joins later."""
    ranks.train(case, [[0, [0, 1]]], checkpoints=str(directory))
    written = checkpoints(directory)
    kept = min((each for each in written if each < 19), key=lambda each: abs(each - step))
    for number, path in written.items():
        if number != kept:
            path.unlink()
    outcome = ranks.train(case, [[0, [0]], [20, [0, 1]]], checkpoints=str(directory))
    assert min(checkpoints(directory)) == kept, "the job has begun anew"
    return outcome


def checkpoints(directory: Path) -> dict[int, Path]:
    """The checkpoints by step."""
    return {int(path.stem.rpartition("-")[2]): path for path in directory.glob("*step-*.pt")}


@dataclass(frozen=True)
class Divergence:
    codes: list[int]  # exit codes, by worker
    states: dict[int, str]  # of the workers that came to their end
    told: str  # on stderr, by all of them

    @property
    def step(self) -> int:
        """The step in which the difference was found."""
        found = {int(number) for number in re.findall(r"step (\d+): w\.", self.told)}  # lines of several may meet
        (number,) = found
        return number


class DivergenceRanks:
    """Client of the process that forks diverging ranks (`divergence_ranks`)."""

    def __init__(self, scripts: Scripts) -> None:
        self._started = scripts.start(HERE / "divergence_ranks.py")

    def close(self) -> None:
        assert self._started.close() == 0

    def __call__(
        self, directory: Path, fault: str, workers: int = 3, victim: int = 1, every: int = 1, **more: Any
    ) -> Divergence:
        directory.mkdir(exist_ok=True)
        told = directory.with_suffix(".told")
        with RendezvousServer() as server:
            errand = {"after": FLIPPED_AFTER, "on_divergence": "replace", "determinism": "elastic", **more}
            errand |= {"fault": fault, "victim": victim, "workers": workers, "every": every}
            errand |= {"address": server.address, "directory": str(directory), "told": str(told)}
            codes = json.loads(self._started.ask(json.dumps(errand)))
        states = {int(path.stem): path.read_text() for path in directory.iterdir()}
        return Divergence(codes, states, told.read_text())
