"""Check that the streams of a worker are ordered correctly. `make bench-gpu`

Histories of one job, each with its own rosters, run under `torch.cuda._sanitizer`: it tracks which kernel of which stream reads
and writes which tensor, and raises if two accesses are not ordered. It sees kernels that torch launches, not those inside NCCL.
To expose orders that hold only by chance, each stream sleeps at random moments: a kernel of up to `LONGEST_SLEEP_S`
(`torch.cuda._sleep`) is inserted. All histories must end with the bits of the first one, which has neither sanitizer nor
sleeps.

CPUs have no streams and no sanitizer: the same histories run with slowed threads alone, as the row says.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .runtime.measurement import Goal, Measurement
from .runtime.processes import MeasurementFailed

HISTORIES, QUICK_HISTORIES = 200, 2
SLEEPS = "BENCH_GPU_SLEEPS"  # variable of a rank: the seed of its sleeps
LONGEST_SLEEP_S, LONGEST_PAUSE_S = 0.002, 0.01
CYCLES_PER_S = 1.5e9  # approximate clock rate of a GPU
RACE = "CUDASanitizerErrors"
ROSTERS_AT_MOST = 4
Play = Callable[[Sequence[Sequence[int]], Mapping[str, str]], str]


def measure(play: Play, device: str, workers: int, quick: bool) -> list[Measurement]:
    """Measure. play: trains with these rosters, one after the other, in ranks with these variables, and returns the final digest.
    Raises MeasurementFailed if a history fails otherwise than by a race."""
    count = QUICK_HISTORIES if quick else HISTORIES
    alone = play([[0]], {})
    races: dict[int, str] = {}
    differ = []
    for seed in range(count):
        try:
            if play(rosters(random.Random(seed), workers), {SLEEPS: str(seed)}) != alone:
                differ.append(seed)
        except MeasurementFailed as error:
            if RACE not in str(error):
                raise
            races[seed] = str(error)
    what = "under the sanitizer, each stream sleeping" if device == "cuda" else "threads sleeping; NO sanitizer: no GPU"
    return [
        Measurement(
            "races",
            f"histories of up to {ROSTERS_AT_MOST} rosters of {workers} ({what}) with a race, or other bits",
            f"{len(races)} with a race, {len(differ)} with other bits than one worker that nobody disturbs",
            float(len(races) + len(differ)),
            "",
            count,
            Goal(0.0),
            {"races": races, "differ": differ, "sanitizer": device == "cuda"},
        ).show()
    ]


def rosters(rng: random.Random, workers: int) -> list[list[int]]:
    """Draw rosters. Each has a worker of the one before, as a holder of the state."""
    found = [sorted(rng.sample(range(workers), rng.randint(1, workers)))]
    for _ in range(rng.randrange(ROSTERS_AT_MOST)):
        kept = rng.choice(found[-1])
        others = [rank for rank in range(workers) if rank != kept]
        found.append(sorted([kept, *rng.sample(others, rng.randint(0, len(others)))]))
    return [each for at, each in enumerate(found) if not at or each != found[at - 1]]


# --------------------------------------------------------------------------------------------------------- in a rank


def begin(seed: str, device: torch.device) -> None:
    """Enable the sanitizer and random sleeps in this process's streams. Call it before the device is used."""
    sleeps = Sleeps(random.Random(seed), _sleep_on if device.type == "cuda" else _sleep_here)
    if device.type == "cuda":
        import torch.cuda._gpu_trace as trace
        import torch.cuda._sanitizer as sanitizer

        sanitizer.enable_cuda_sanitizer()  # type: ignore[no-untyped-call]
        trace.register_callback_for_stream_creation(sleeps.add)
    sleeps.add(0)
    threading.Thread(target=sleeps.run, daemon=True).start()


def _sleep_on(stream: int, seconds: float) -> None:
    """Insert a sleep. stream: its handle; 0 is the default stream, in which scripts train."""
    into = torch.cuda.ExternalStream(stream) if stream else torch.cuda.default_stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(into):
        torch.cuda._sleep(int(seconds * CYCLES_PER_S))


def _sleep_here(stream: int, seconds: float) -> None:
    """Compute in this thread while holding the GIL, so that other threads are delayed."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


class Sleeps:
    """Inserts sleeping kernels into streams, at random moments."""

    def __init__(self, rng: random.Random, sleep: Callable[[int, float], Any]) -> None:
        self._rng = rng
        self._sleep = sleep
        self._lock = threading.Lock()
        self._streams: list[int] = []

    def add(self, stream: int) -> None:
        """Note a new stream."""
        with self._lock:
            if stream not in self._streams:
                self._streams.append(stream)

    def turn(self) -> None:
        """Let one random stream sleep."""
        with self._lock:
            stream = self._rng.choice(self._streams)
        self._sleep(stream, self._rng.uniform(0.0, LONGEST_SLEEP_S))

    def run(self) -> None:
        """Insert sleeps until the end of the process."""
        while True:
            time.sleep(self._rng.uniform(0.0, LONGEST_PAUSE_S))
            self.turn()
