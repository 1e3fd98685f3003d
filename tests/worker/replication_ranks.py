"""Ranks as real processes: `python replication_ranks.py ADDRESS PLAN:VICTIM...` forks four for each PLAN:VICTIM, in turn.

The process imports torch once and stays single-threaded, so forking is safe; each child prints one JSON document. Rank 0 has the
state. The victim (-1: none) kills itself during the transfer; the others abort a while after its death, as their control threads
would.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
from typing import Any

import torch
import zmq

from elasticd.worker.communication.communicator import Communicator, CommunicatorBroken, RendezvousStore
from elasticd.worker.state.replication import Replication, Transfer
from elasticd.worker.state.training_state import describe

LIMIT_S = 120.0  # time limit, generous for a loaded machine
HEARD_AFTER_S = 0.2  # from a death until the survivors learn of it
CHAIN = (Transfer(0, 1), Transfer(1, 2, 1), Transfer(2, 3, 2))
TREE = (Transfer(0, 1), Transfer(0, 2, 1, (0,)), Transfer(1, 3, 1))
TOLD = (
    Transfer(0, 1),
    Transfer(0, 2),
    Transfer(2, 3, 1, (0,)),
)  # 2 serves 3 when 1 is complete, and only 1 can report that
PLANS = {"chain": CHAIN, "tree": TREE, "told": TOLD}
SIZE = 4
NUMBERS = 8 << 20  # of the large tensor: several pieces


def build(rank: int, address: str, case: str) -> Communicator:
    store = RendezvousStore(zmq.Context(), address, f"{case}/{rank}".encode(), case, 30.0)
    return Communicator.build("gloo", store, rank, SIZE, "127.0.0.1", 600.0)


def state() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(NUMBERS, generator=generator), torch.empty(0), torch.tensor(3), torch.ones(5, 7)[:, :3]]


def digest(tensors: list[torch.Tensor]) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()


def take_part(communicator: Communicator, plan: tuple[Transfer, ...], victim: int) -> dict[str, Any]:
    rank = communicator.rank
    replication = Replication(communicator, plan)
    if replication.source is None:
        tensors = state()
        began = time.monotonic()
        replication.give({"tensors": [describe(str(i), t) for i, t in enumerate(tensors)], "step": 7}, tensors)
        begun_s = time.monotonic() - began
        if rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        replication.sent()
        replication.send_trailer({"epoch": 3})
        return {"digest": digest(tensors), "begun_s": begun_s}
    incoming = replication.take(torch.device("cpu"))
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    tensors = incoming.wait()
    replication.sent()
    return {"digest": digest(tensors), "step": incoming.header["step"], **replication.receive_trailer()}


class Life:
    """A pipe that only the victim holds open: its end marks the victim's death."""

    def __init__(self) -> None:
        self._end, self._held = os.pipe()

    def let_go(self) -> None:
        """Called in all ranks except the victim."""
        os.close(self._held)

    def close(self) -> None:
        os.close(self._end)

    def tell_of_its_end(self, communicator: Communicator) -> None:
        threading.Thread(target=self._abort, args=(communicator,), daemon=True).start()

    def _abort(self, communicator: Communicator) -> None:
        os.read(self._end, 1)
        time.sleep(HEARD_AFTER_S)
        communicator.abort()


def run(rank: int, address: str, case: str, life: Life) -> dict[str, Any]:
    name, _, number = case.partition(":")
    plan, victim = PLANS[name], int(number)
    if rank != victim:
        life.let_go()
    communicator = build(rank, address, case)
    communicator.wait(communicator.all_reduce(torch.ones(1)))
    if victim not in (-1, rank):
        life.tell_of_its_end(communicator)
    try:
        result = take_part(communicator, plan, victim)
        communicator.wait(communicator.all_reduce(torch.ones(1)))
    except CommunicatorBroken as error:
        result = {"error": str(error)}
    threads = wait_for_transfer_threads()
    communicator.retire()
    return {**result, "threads": threads}


def wait_for_transfer_threads() -> list[str]:
    """Wait for the end of all transfer threads. Return the names of those that still run after LIMIT_S seconds."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        left = [thread.name for thread in threading.enumerate() if thread.name == "elasticd-transfer"]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.01)


def main() -> None:
    address, cases = sys.argv[1], sys.argv[2:]
    torch.set_num_threads(1)
    for case in cases:
        life = Life()
        for rank in range(SIZE):
            if os.fork() == 0:
                os.write(1, f"{json.dumps({'case': case, 'rank': rank, **run(rank, address, case, life)})}\n".encode())
                return
        life.let_go()
        wait_for_children()
        life.close()


def wait_for_children() -> None:
    """Wait until all have ended. After a limit all processes are killed, this one too."""
    deadline = time.monotonic() + LIMIT_S
    left = SIZE
    while left:
        if os.waitpid(-1, os.WNOHANG)[0]:
            left -= 1
        elif time.monotonic() > deadline:
            os.killpg(0, signal.SIGKILL)
        else:
            time.sleep(0.01)


if __name__ == "__main__":
    os.setpgrp()
    main()
