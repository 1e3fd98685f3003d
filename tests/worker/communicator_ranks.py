"""Ranks as real processes: `python communicator_ranks.py SCENARIO SIZE ADDRESS LASTING` forks SIZE of them, of which LASTING do
not end by themselves.

The process imports torch once and stays single-threaded, so forking is safe; each child prints one JSON document.
"""

from __future__ import annotations

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

VICTIM = 1
LIMIT_S = 100.0  # time limit, generous for a loaded machine


def build(rank: int, size: int, address: str) -> Communicator:
    store = RendezvousStore(zmq.Context(), address, f"p{rank}".encode(), "p", 30.0)
    return Communicator.build("gloo", store, rank, size, "127.0.0.1", 600.0)


def stop_in_the_middle(rank: int, size: int, address: str, number: int) -> dict[str, Any]:
    """The victim stops in a stream of all-reduces. The others abort after a while, as their control threads would."""
    communicator = build(rank, size, address)
    tensor = torch.ones(100_000)
    for _ in range(3):
        communicator.wait(communicator.all_reduce(tensor))
    if rank == VICTIM:
        os.kill(os.getpid(), number)
    timer = threading.Timer(0.5, communicator.abort)
    timer.daemon = True
    timer.start()
    began = time.monotonic()
    try:
        while time.monotonic() < began + LIMIT_S:
            communicator.wait(communicator.all_reduce(tensor))
        return {"error": "none"}
    except CommunicatorBroken as error:
        waited_s = time.monotonic() - began
        try:
            communicator.wait(communicator.all_reduce(torch.ones(1)))
            again = "works"
        except CommunicatorBroken:
            again = "broken"
        communicator.retire()
        return {"error": str(error), "again": again, "waited_s": waited_s}


def killed(rank: int, size: int, address: str) -> dict[str, Any]:
    return stop_in_the_middle(rank, size, address, signal.SIGKILL)


def stopped(rank: int, size: int, address: str) -> dict[str, Any]:
    """No connection breaks, so only `abort` ends the wait; the stuck operation must not keep the process alive."""
    return stop_in_the_middle(rank, size, address, signal.SIGSTOP)


def exit_without_retiring(rank: int, size: int, address: str) -> dict[str, Any]:
    """A script that ends with an error in the middle of its work."""
    global kept
    kept = build(rank, size, address)
    if rank != 0:
        kept.all_reduce(torch.ones(1_000_000))
        kept.receive(torch.ones(10), 0, 1)
        time.sleep(0.2)
    else:
        time.sleep(2 * LIMIT_S)
    return {}


SCENARIOS = {"killed": killed, "stopped": stopped, "exit_without_retiring": exit_without_retiring}


def say(document: dict[str, Any]) -> None:
    """One line in one write, so that the ranks' lines are not mixed."""
    os.write(1, f"{json.dumps(document)}\n".encode())


def main() -> None:
    scenario, size, address, lasting = SCENARIOS[sys.argv[1]], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    torch.set_num_threads(1)
    left: set[int] = set()
    for rank in range(size):
        if (child := os.fork()) == 0:
            result = scenario(rank, size, address)
            say({"rank": rank, **result})
            return  # through the interpreter's whole shutdown, which is part of the test
        left.add(child)
    wait_for_children(left, lasting)
    for child in left:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def wait_for_children(left: set[int], lasting: int) -> None:
    """Wait until all but `lasting` of them have ended. After a limit all processes are killed, this one too."""
    deadline = time.monotonic() + LIMIT_S
    while len(left) > lasting:
        if child := os.waitpid(-1, os.WNOHANG)[0]:
            left.remove(child)
        elif time.monotonic() > deadline:
            os.killpg(0, signal.SIGKILL)
        else:
            time.sleep(0.01)


if __name__ == "__main__":
    os.setpgrp()
    main()
