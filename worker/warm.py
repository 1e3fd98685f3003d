"""Modules that a process loads before workers are forked from it (worker-runtime 9): imports of nearly every training
script.

The agent's warm process (`agent.forkserver.server`) gets this module's name and calls `prepare` and `renew`; no other
code knows it. The loaded code must neither start a thread nor touch a GPU: a forked child has only the thread that
forked, and a CUDA driver that was initialized before the fork is unusable in the child.
"""

from __future__ import annotations

import multiprocessing.process
import os

import numpy
import torch


def prepare() -> None:
    """Load code that torch loads at its first use: the first step of an optimizer imports most of torch's compiler."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    torch.optim.SGD([parameter], lr=0.1, momentum=0.9).step()


def on_device(device: torch.device) -> None:
    """Create the per-process objects of a device: the context, cuBLAS's and cuDNN's handles in this thread and in
    autograd's, and an optimizer's first kernels.

    Not for the warm process. Draws no random numbers.
    """
    image = torch.zeros(1, 8, 8, 8, device=device)
    kernel = torch.zeros(8, 8, 3, 3, device=device, requires_grad=True)
    matrix = torch.zeros(8, 8, device=device, requires_grad=True)
    (torch.nn.functional.conv2d(image, kernel, padding=1) @ matrix).sum().backward()  # type: ignore[no-untyped-call]
    torch.optim.SGD([kernel, matrix], lr=0.1, momentum=0.9).step()


def renew() -> None:
    """Draw again, in a forked worker, the seeds that a fresh process draws from the system (`random` does so by itself)."""
    numpy.random.seed()
    torch.default_generator.seed()
    multiprocessing.process.current_process().authkey = os.urandom(32)
