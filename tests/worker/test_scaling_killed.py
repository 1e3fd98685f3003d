"""A batch that grows while workers join, leave and are killed: real processes under the machines of controller and agent.

The factor comes from the controller, whose order carries it. The job's history, replayed by the script alone, gives the same
bits.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from elasticd.protocol.batches import write_history
from elasticd.protocol.model import JobPhase, Scaling
from tests.worker.ranks import also
from verification.bits import worker
from verification.bits.nursery import Nursery
from verification.bits.station import Station, slot_of
from verification.bits.verdict import differing_bits
from verification.bits.worker import path_of

VIRTUAL_WORKERS = 4
EPOCHS = 16  # of 12 steps with factor 1
RAMP_STEPS = 40
LIMIT_S = 400.0


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery(worker.__name__) as found:
        yield found


class Drive:
    """Turns a station until something has happened."""

    def __init__(self, station: Station) -> None:
        self.station = station
        self._until = time.monotonic() + LIMIT_S

    def until(self, what: str, happened: Callable[[], bool]) -> None:
        while not happened():
            assert time.monotonic() < self._until, f"{what}: not within {LIMIT_S:.0f} s: {self.station.story()[-20:]}"
            assert not self.station.job.final or what == "the end", self.station.story()[-20:]
            self.station.turn()

    def steps(self, more: int) -> None:
        last = self.station.board.furthest() + more
        self.until(f"step {last}", lambda: self.station.board.furthest() >= last and bool(self.station.holders()))

    def factor(self, factor: int) -> None:
        changes = lambda: self.station.job.record.batch_changes  # noqa: E731
        self.until(f"factor {factor}", lambda: bool(changes()) and changes()[-1].factor >= factor)

    def kill(self, *workers: str) -> None:
        for each in workers:
            self.station.kill(each)
        self.until("the deaths", lambda: all(each in self.station.exit_codes for each in workers))


def alone(model: str, history: Path, directory: Path) -> dict[str, object]:
    """The script by itself, with the job's history."""
    variables = {
        "ELASTIC_VIRTUAL_WORKERS": str(VIRTUAL_WORKERS),
        "ELASTIC_REPLAY_BATCHES": str(history),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "verification.bits.training", model, str(EPOCHS), str(directory / "alone.pt")]
    subprocess.run(command, env={**os.environ, **variables}, check=True)
    found: dict[str, object] = torch.load(directory / "alone.pt", weights_only=True)
    return found


@pytest.mark.cluster
@pytest.mark.parametrize("model", ["cnn", *also("transformer")])
def test_growing_through_resizes_and_kills_gives_the_bits_of_its_replay(
    nursery: Nursery, tmp_path: Path, model: str
) -> None:
    scaling = Scaling(hybrid=True, max_factor=4, ramp_steps=RAMP_STEPS)
    station = Station(nursery, tmp_path, model, VIRTUAL_WORKERS, EPOCHS, checkpoint_every_s=0.3, scaling=scaling)
    drive = Drive(station)
    try:
        station.aim([0, 1])
        drive.steps(6)
        station.grow(2)
        drive.factor(2)
        station.aim([0, 1, 2, 5])  # joins in the ramp
        drive.steps(5)
        drive.kill(station.job.newest.roster.leader)  # type: ignore[union-attr]
        drive.steps(4)
        station.grow(4)
        drive.factor(4)
        station.aim([3, 5, 6])
        drive.steps(4)
        drive.kill(*station.pids)  # all: the job goes on from a checkpoint, in the ramp
        drive.steps(2)
        station.aim([7])
        drive.until("the end", lambda: station.job.final and not station.pids)
        assert station.job.record.phase is JobPhase.FINISHED, station.story()[-20:]
        changes = station.job.record.batch_changes
    finally:
        station.close()
    assert [change.factor for change in changes][-1] == 4
    history = tmp_path / "history.json"
    history.write_bytes(write_history(changes))
    expected = alone(model, history, tmp_path)
    results = [each for each in station.exit_codes if path_of(tmp_path, slot_of(each), "result").exists()]
    assert results
    for each in results:
        found = torch.load(path_of(tmp_path, slot_of(each), "result"), weights_only=True)
        assert not differing_bits(found, expected), f"{each}: {changes}, {station.story()}"
    history.write_text("[]")
    assert differing_bits(alone(model, history, tmp_path), expected), "the batch made no difference"
