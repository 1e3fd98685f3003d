"""Kills of a worker inside an all-to-all or a state transfer, and the effect on the other workers. `make bench-gpu`

    python -m benchmarks.gpu_kills cuda|cpu all-to-all|transfer RANKS TURNS shared|own SEED DIRECTORY

This process forks the ranks of each turn, and itself never uses a GPU. One rank kills itself at a random moment in a stream of
operations; the nursery notices its end and notifies the others, as the control plane does. These abort, connect without it, and
reduce once. A turn counts if the victim was inside an operation. Each survivor must reduce the right sum, or exit with the code
of an abort that does not return (`exits.HUNG`), in which case a job would continue without that worker, too.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

import torch
from torch.distributed import FileStore, PrefixStore

from elasticd.protocol import exits
from elasticd.worker.communication.communicator import Communicator, CommunicatorBroken, mark_on_gpu
from elasticd.worker.communication.groups import (
    DEVICE,
    DEVICE_TRANSFER,
    HOST,
    HOST_TRANSFER,
    Groups,
    gloo,
    nccl,
    warm_up,
)
from elasticd.worker.state.replication import Replication, Transfer
from elasticd.worker.state.training_state import describe

from . import gpu_checks
from .runtime.measurement import Goal, Measurement, number
from .runtime.processes import Family, MeasurementFailed

OPERATIONS = ("all-to-all", "transfer")
TURNS, QUICK_TURNS = 100, 3
MOST_TURNS = 4  # attempts per turn that counts
TURN_WITHIN_S = 120.0
TOLD_AFTER_S = 0.05  # usual delay until the other workers are notified of a loss
LONGEST_LIFE_S = 0.2  # of a victim, in its stream of operations
ROWS, COLUMNS = 16, 1 << 18  # 16 MiB to each peer in an all-to-all
TENSORS, ELEMENTS = 16, 1 << 20  # 64 MiB of state


def measure(family: Family, device: str, ranks: int, shared: bool, quick: bool) -> list[Measurement]:
    """Measure both operations. Raises MeasurementFailed."""
    turns = QUICK_TURNS if quick else TURNS
    return [_row(name, ranks, _played(family, device, name, ranks, turns, shared)) for name in OPERATIONS]


def _row(name: str, ranks: int, turns: list[dict[str, Any]]) -> Measurement:
    inside = [turn for turn in turns if turn["inside"]]
    took_ms = [took * 1e3 for turn in inside for took in turn["took_s"]]
    stuck = sum(turn["stuck"] for turn in inside)
    times = f"worst {number(max(took_ms))} ms, median {number(median(took_ms))} ms" if took_ms else "no survivor"
    return Measurement(
        "kills",
        f"a peer of {ranks} killed inside a{'n' if name[0] == 'a' else ''} {name}: turns after which the others do not go on",
        f"{times} until they have reduced without it; {stuck} ended since an abort did not return; "
        f"of {len(turns)} kills {len(turns) - len(inside)} were outside",
        float(sum(not turn["ok"] for turn in inside)),
        "",
        len(inside),
        Goal(0.0),
        {"turns": turns},
    ).show()


def _played(family: Family, device: str, name: str, ranks: int, turns: int, shared: bool) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as temporary:
        directory = Path(temporary)
        command = [sys.executable, "-m", "benchmarks.gpu_kills", device, name, str(ranks), str(turns)]
        command += ["shared" if shared else "own", "1", temporary]
        process = family.start(command, gpu_checks.given(device, 0), directory / "log")
        try:
            code: int | None = process.wait(MOST_TURNS * turns * TURN_WITHIN_S)
        except subprocess.TimeoutExpired:
            code = None
        said = directory / "turns"
        if code != 0 or not said.exists():
            log = (directory / "log").read_text(errors="replace")
            raise MeasurementFailed(f"kills in {name} ended with {code}:\n{log[-4000:]}")
        return list(json.loads(said.read_text()))


# ------------------------------------------------------------------------------------------------------------ the nursery


def main() -> None:
    device, name, ranks, turns, shared, seed, directory = sys.argv[1:]
    played: list[dict[str, Any]] = []
    for turn in range(MOST_TURNS * int(turns)):
        here = Path(directory) / str(turn)
        here.mkdir()
        rng = random.Random(f"{seed} {name} {turn}")
        played.append(_turn(device, name, int(ranks), shared == "shared", here, rng))
        if sum(each["inside"] for each in played) == int(turns):
            break
    (Path(directory) / "turns").write_text(json.dumps(played))


def _turn(device: str, name: str, size: int, shared: bool, here: Path, rng: random.Random) -> dict[str, Any]:
    (here / "inside").write_bytes(b"\0")
    victim = rng.randrange(2 if name == "transfer" else size)  # sender or receiver
    life_s = rng.uniform(0.0, LONGEST_LIFE_S)
    children: dict[int, int] = {}
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            os.environ.update(gpu_checks.visible(device, rank, size, shared))
            _live(Rank(device, name, rank, size, victim, life_s, here))
        children[pid] = rank
    codes: dict[int, int] = {}
    give_up_at = time.monotonic() + TURN_WITHIN_S
    while len(codes) < size and time.monotonic() < give_up_at:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            time.sleep(0.001)
            continue
        codes[children[pid]] = os.waitstatus_to_exitcode(status)
        if children[pid] == victim:
            (here / "dead.new").write_text(repr(time.monotonic()))
            (here / "dead.new").rename(here / "dead")
    for pid, rank in children.items():
        if rank not in codes:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    survivors = [rank for rank in range(size) if rank != victim]
    took_s = [json.loads((here / f"took-{rank}").read_text()) for rank in survivors if (here / f"took-{rank}").exists()]
    return {
        "victim": victim,
        "inside": codes.get(victim) == -signal.SIGKILL and (here / "inside").read_bytes() == b"\1",
        "codes": [codes.get(rank) for rank in range(size)],
        "took_s": took_s,
        "stuck": sum(codes.get(rank) == exits.HUNG for rank in survivors),
        "ok": all(codes.get(rank) in (0, exits.HUNG) for rank in survivors),
    }


# ------------------------------------------------------------------------------------------------------------- the ranks


class Rank:
    """A rank of one turn."""

    def __init__(self, device: str, name: str, rank: int, size: int, victim: int, life_s: float, here: Path) -> None:
        self.device = torch.device("cuda", 0) if device == "cuda" else torch.device("cpu")
        self.name, self.rank, self.size, self.here = name, rank, size, here
        self.victim, self.life_s = victim, life_s

    def connect(self, name: str, rank: int, size: int) -> Communicator:
        """Connect as workers do, except that a file serves as rendezvous."""
        if size == 1:
            return Communicator.alone()
        store, timeout = FileStore(str(self.here / name), size), timedelta(seconds=TURN_WITHIN_S)
        groups = [gloo(PrefixStore(each, store), rank, size, "127.0.0.1", timeout) for each in (HOST, HOST_TRANSFER)]
        if self.device.type != "cuda":
            return Communicator(rank, size, Groups(*groups), TURN_WITHIN_S, (store,))
        for each in (DEVICE, DEVICE_TRANSFER):
            groups.append(nccl(PrefixStore(each, store), rank, size, timeout, self.device, ""))
            warm_up(groups[-1], rank, size, self.device)
        return Communicator(rank, size, Groups(*groups), TURN_WITHIN_S, (store,), mark_on_gpu)

    def operation(self, communicator: Communicator) -> Callable[[], None]:
        """Return the operation that is repeated until a rank is lost."""
        if self.name == "all-to-all":
            rows = torch.full((ROWS * self.size, COLUMNS), float(self.rank), device=self.device)
            got, counts = torch.empty_like(rows), [ROWS] * self.size

            def exchange() -> None:
                communicator.wait(communicator.all_to_all(got, rows, counts, counts))

            return exchange
        state = [torch.ones(ELEMENTS, device=self.device) for _ in range(TENSORS)]
        plan = (Transfer(0, 1),)

        def transfer() -> None:
            if self.rank == 0:
                header = {"tensors": [describe("state", tensor) for tensor in state]}
                Replication(communicator, plan).give(header, state).wait()
            elif self.rank == 1:
                Replication(communicator, plan).take(self.device).wait()
            else:  # this rank takes no part in the transfer
                while not communicator.aborted:
                    time.sleep(0.001)
                raise CommunicatorBroken("abandoned")

        return transfer

    def run(self) -> None:
        """Run the rank's turn. Raises AssertionError if the survivors reduce a wrong sum."""
        communicator = self.connect("before", self.rank, self.size)
        operation = self.operation(communicator)
        with (self.here / "inside").open("r+b") as file:
            inside = mmap.mmap(file.fileno(), 1)  # survives SIGKILL
        if not (self.name == "transfer" and self.rank > 1):
            operation()  # so that all connections are made
        if self.rank == self.victim:
            threading.Thread(target=self._die, daemon=True).start()
        else:
            threading.Thread(target=self._watch, args=(communicator,), daemon=True).start()
        while True:
            try:
                if self.rank == self.victim:
                    inside[0] = 1
                operation()
                if self.rank == self.victim:
                    inside[0] = 0
            except CommunicatorBroken:
                break
        while not (self.here / "dead").exists():  # its connection breaks first
            time.sleep(0.001)
        communicator.abort()
        communicator.retire()
        left = [rank for rank in range(self.size) if rank != self.victim]
        again = self.connect("after", left.index(self.rank), len(left))
        total = torch.ones(1, device=self.device)
        again.wait(again.all_reduce(total))
        assert int(total) == len(left), f"a sum of {len(left)} ones is {float(total)}"
        took_s = time.monotonic() - float((self.here / "dead").read_text())
        (self.here / f"took-{self.rank}").write_text(json.dumps(took_s))

    def _die(self) -> None:
        time.sleep(self.life_s)
        os.kill(os.getpid(), signal.SIGKILL)

    def _watch(self, communicator: Communicator) -> None:
        while not (self.here / "dead").exists():
            time.sleep(0.001)
        time.sleep(TOLD_AFTER_S)
        communicator.abort()


def _live(rank: Rank) -> NoReturn:
    """Run a rank in a child process, and exit."""
    code = 1
    try:
        torch.set_num_threads(1)
        rank.run()
        code = 0
    except BaseException as error:  # outermost frame of the process
        print(f"rank {rank.rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
