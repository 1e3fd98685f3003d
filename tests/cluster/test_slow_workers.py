"""A worker that computes slowly keeps what it can do, amid kills and resizes, and no bit differs (EDL 5.4)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from elasticd.protocol.model import JobPhase
from tests.cluster import slow_worker
from verification.bits import training
from verification.bits.nursery import Nursery
from verification.bits.points import Entry, read_journal
from verification.bits.station import Station, slot_of
from verification.bits.verdict import differing_bits
from verification.bits.worker import path_of

pytestmark = pytest.mark.cluster

VIRTUAL_WORKERS, EPOCHS, GPUS = 16, 40, 4
PATIENCE_S = 120.0
STOPPED_S, RUNS_S = 0.015, 0.005


@contextmanager
def slowed(pid: int) -> Iterator[None]:
    """Meanwhile the process runs for a quarter of the time."""
    over = threading.Event()

    def slow() -> None:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(STOPPED_S)
            os.kill(pid, signal.SIGCONT)
            time.sleep(RUNS_S)

    thread = threading.Thread(target=slow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def until(station: Station, what: str, probe: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not probe():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:.0f} s: {what}; {station.story()[-10:]}"
        station.turn()


def hosts(station: Station, worker: str) -> int | None:
    """How many virtual workers a slow worker hosts, as the job's leader says. None: it is not slow."""
    leader = leader_of(station)
    status = station.job.statuses.get(leader)
    found = [each.hosts for each in status.stragglers if each.worker == worker] if status is not None else []
    return found[0] if found else None


def leader_of(station: Station) -> str:
    order = station.job.committed_order
    assert order is not None
    return order.roster.leader


def steps_after(station: Station, steps: int) -> Callable[[], bool]:
    furthest = station.board.furthest() + steps
    return lambda: station.board.furthest() >= furthest


def members(station: Station) -> list[str]:
    order = station.job.committed_order
    return list(order.roster.workers) if order is not None else []


def places(station: Station) -> dict[str, int]:
    """The GPU of each worker that trains."""
    order = station.job.committed_order
    return {member.worker: member.gpu.index for member in order.roster.members} if order is not None else {}


def alone(directory: Path) -> object:
    path = directory / "alone.pt"
    variables = {"ELASTIC_VIRTUAL_WORKERS": str(VIRTUAL_WORKERS), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "verification.bits.training", slow_worker.MODEL, str(EPOCHS), str(path)]
    subprocess.run(command, env={**os.environ, **variables}, check=True)
    return torch.load(path, weights_only=True)


def journal(directory: Path, worker: str) -> list[Entry]:
    return read_journal(path_of(directory, slot_of(worker), "journal"))


def test_a_worker_stopped_most_of_the_time_gives_virtual_workers_away_gets_them_back_and_moves_to_an_idle_gpu(
    tmp_path: Path,
) -> None:
    with Nursery(slow_worker.__name__) as nursery:
        station = Station(nursery, tmp_path, slow_worker.MODEL, VIRTUAL_WORKERS, EPOCHS, gpus=GPUS)
        try:
            station.aim(range(4))
            until(station, "four workers train", lambda: len(members(station)) == 4 and station.board.furthest() > 5)
            first = leader_of(station)
            victim = next(worker for worker in members(station) if worker != first)
            with slowed(station.pids[victim]):  # no GPU is idle, so that it stays
                until(station, "it is found, and hosts one", lambda: hosts(station, victim) == 1)
                station.kill(first)
                until(
                    station,
                    "four train without the leader",
                    lambda: first not in members(station) and len(members(station)) == 4,
                )
                until(station, "they know it", lambda: hosts(station, victim) == 1)
            until(station, "it has recovered", lambda: victim in members(station) and hosts(station, victim) is None)
            leaves = next(gpu for worker, gpu in places(station).items() if worker not in (victim, leader_of(station)))
            station.aim([gpu for gpu in range(GPUS) if gpu != leaves])
            until(station, "three train", lambda: len(members(station)) == 3)
            with slowed(station.pids[victim]):
                until(station, "it is found", lambda: hosts(station, victim) is not None)
                until(station, "another one trains there", lambda: leaves in places(station).values())
                until(station, "it has left", lambda: victim not in station.pids)
            until(station, "training goes on", steps_after(station, 10))
            assert len(members(station)) == 3
            until(station, "the job is over", lambda: station.job.record.phase is JobPhase.FINISHED)
            until(station, "all have ended", lambda: not station.pids)
            story = " ".join(station.story())
        finally:
            station.close()
    assert f"{victim} is slow: it takes" in story
    assert f"{victim} is as fast as the others again" in story
    assert f"its worker moves to server:{leaves}" in story
    hosted = {entry.step for worker in station.asked for entry in journal(tmp_path, worker) if entry.what == "hosted"}
    assert len(hosted) >= 4
    results = list(tmp_path.glob("*.result"))
    assert len(results) == 3
    expected = alone(tmp_path)
    for path in results:
        document = torch.load(path, weights_only=True)
        assert document["beside"]["steps"] == EPOCHS * training.STEPS_PER_EPOCH
        assert differing_bits(document, expected) == 0
