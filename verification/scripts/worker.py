"""A worker's process: one of `examples.frameworks`, in the environment that an agent creates.

It is slowed down by the driver (`Pace`), as all acts have to fit into a training that would last a second.
"""

from __future__ import annotations

import importlib
import mmap
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from elasticd.worker import events as e
from elasticd.worker.admission import leave_gang
from elasticd.worker.control import ClusterControl
from elasticd.worker.gradients.accumulation import Accumulation
from examples.frameworks import task

from ..bits.points import wrap
from ..bits.training import save
from ..bits.worker import Errand, begin

PACKAGE = "examples.frameworks"


class Pace:
    """Wait before each step (s), shared by all processes of a history."""

    def __init__(self, path: Path) -> None:
        with path.open("a+b") as file:
            file.truncate(8)
            self._numbers = memoryview(mmap.mmap(file.fileno(), 8)).cast("d")

    @property
    def seconds(self) -> float:
        return float(self._numbers[0])

    @seconds.setter
    def seconds(self, value: float) -> None:
        self._numbers[0] = value


def warm_up() -> None:
    """Import what the requested scripts import, without starting a second thread."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    for name in sys.argv[2:]:
        importlib.import_module(f"{PACKAGE}.{name}")
    model = task.build()
    optimizer = task.adamw(model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads must not be forked"


def run(errand: Errand) -> None:
    """Run a worker's script to its end."""
    journal = begin(errand)
    leave_gang(os.environ)  # done by importing an adapter, but the nursery imported it before this environment existed
    pace = Pace(Path(errand.directory, "pace"))
    used = os.open(errand.path("samples"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def instructed(instruction: object) -> None:
        if isinstance(instruction, e.RunStep):
            time.sleep(pace.seconds)

    counts = (
        False  # the present loop body counts as a virtual worker's, rather than being repeated for its side effects
    )

    def begins(*_: object) -> None:
        nonlocal counts
        counts = True

    def on_samples(indices: list[int]) -> None:
        nonlocal counts
        if counts:
            os.write(used, (" ".join(map(str, (*journal.begun, *indices))) + "\n").encode())
        counts = False

    wrap(Accumulation, "expect", begins)
    wrap(ClusterControl, "next", None, instructed)
    task.on_samples = on_samples
    os.chdir(errand.directory)
    module: Any = importlib.import_module(f"{PACKAGE}.{errand.model}")
    _, document = module.train()
    save(document, str(errand.path("result")))
    sys.stdout.flush()
