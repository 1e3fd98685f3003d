"""A worker's process: the training script of `training`, in the environment that an agent creates, with points in it."""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

import elasticd
from elasticd.worker.api import join  # at the top, so that the nursery has imported it before it forks

from . import training
from .points import Board, Fuse, Journal, install, unsettle


@dataclass(frozen=True)
class Errand:
    """Parameters of a forked worker."""

    worker: str
    slot: int  # on the board
    model: str
    epochs: int
    directory: str  # of the history
    variables: dict[str, str]

    def path(self, kind: str) -> Path:
        return path_of(Path(self.directory), self.slot, kind)


def path_of(directory: Path, slot: int, kind: str) -> Path:
    """Return the path of a worker's file. kind: "log", "journal" or "result"."""
    return directory / f"{slot}.{kind}"


def warm_up() -> None:
    """Import and load what a worker's first step would, without starting a second thread."""
    torch.set_num_threads(1)
    for recipe in training.MODELS.values():
        model, optimizer, scheduler = training.build(recipe)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step(lambda: 0.0)
        if scheduler is not None:
            scheduler.step()


def begin(errand: Errand, restless: bool = True) -> Journal:
    """Set this process up as a worker with its own log, environment and points. restless: it hosts at random."""
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(errand.path("log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.update(errand.variables)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    journal = Journal(errand.path("journal"))
    install(Fuse(Board(Path(errand.directory, "board")), errand.slot), journal)
    if restless:
        unsettle(random.Random(errand.slot))
    return journal


def run(errand: Errand) -> None:
    """Run a worker's script to its end; the interpreter exits as usual."""
    begin(errand)
    assert elasticd.join is join
    document = training.train(errand.model, join(seed=training.SEED), errand.epochs)
    training.save(document, str(errand.path("result")))
    sys.stdout.flush()
