"""A worker's process for `Nursery`, whose loop bodies take a GPU's time without taking a processor's.

Each sleeps for many short moments, so that a process that is stopped most of the time computes so much more slowly.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from elasticd.worker.api import join
from verification.bits import training, worker
from verification.bits.worker import Errand

MODEL = "cnn"
MOMENTS, MOMENT_S = 10, 0.002


def warm_up() -> None:
    worker.warm_up()


def run(errand: Errand) -> None:
    worker.begin(errand, restless=False)
    recipe = training.MODELS[MODEL]

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        for _ in range(MOMENTS):
            time.sleep(MOMENT_S)
        return recipe.loss(model, batch)

    training.MODELS[MODEL] = replace(recipe, loss=loss)
    document = training.train(MODEL, join(seed=training.SEED), errand.epochs)
    training.save(document, str(errand.path("result")))
    sys.stdout.flush()
