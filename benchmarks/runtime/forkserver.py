"""Starts ranks of `train_ddp` from a process with all imports done: the fastest resume possible without this project.

Reads a line of JSON per start, [world size, port, [arguments]], forks the ranks, and prints "done" when they have ended. The
process stays single-threaded, or its children would hang.
"""

from __future__ import annotations

import json
import os
import sys
import traceback

import torch
import torch.distributed

from .train_ddp import from_arguments


def warm_up() -> None:
    """Import what a first step would import."""
    torch.set_num_threads(1)
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    torch.optim.SGD([parameter], lr=0.0, momentum=0.9).step()


def main() -> None:
    warm_up()
    print("ready", flush=True)
    for line in sys.stdin:
        world, port, arguments = json.loads(line)
        for rank in range(world):
            if os.fork() == 0:
                _child(rank, world, port, arguments)
        for _ in range(world):
            os.wait()
        print("done", flush=True)


def _child(rank: int, world: int, port: int, arguments: list[str]) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    code = 0
    try:
        from_arguments(arguments)
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)


if __name__ == "__main__":
    main()
