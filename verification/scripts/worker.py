"""A worker's process: one of `examples.frameworks`, in the environment that an agent makes.

It goes as slowly as the driver says (`Pace`): so many things are to happen to a training that takes a second by itself.
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
    """How long a step waits before it begins, in seconds: a number that all processes of a history share."""

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
    """Import what the scripts that are asked for import, without ever having a second thread."""
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
    """The whole life of a worker, up to the end of the script."""
    journal = begin(errand)
    leave_gang(os.environ)  # as importing an adapter does, which the nursery has done before there was an environment
    pace = Pace(Path(errand.directory, "pace"))
    used = os.open(errand.path("samples"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def instructed(instruction: object) -> None:
        if isinstance(instruction, e.RunStep):
            time.sleep(pace.seconds)

    counts = False  # the present body is a virtual worker's own: not one that is only run again for what else it does

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
