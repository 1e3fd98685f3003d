"""Settings of a job that do not change while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from .comparison.states import Terms
from .gradients.updates import Updates


@dataclass(frozen=True)
class Recipe:
    """Settings that do not change while a job runs."""

    virtual_workers: int
    seed: int
    device: torch.device
    canonical: bool  # reduce in the canonical order (determinism elastic and heterogeneous)
    overlap: bool  # reduce while the backward pass goes on
    max_steps: int | None
    updates: Updates  # made from each batch
    normalize: str | None = None  # name under which bodies share the number of items over which the loss is a sum
    comparing: Terms = field(default_factory=Terms)
    gathers: bool = False  # loop bodies may call `run.gather`
    agnostic: bool = False  # the bits must be equal on different hardware (`determinism: heterogeneous`)
    changes_gradients: bool = False  # the script may change the gradient of each micro-batch
    backwards: bool = False  # in a rehearsal: the bodies of a step run in the reverse order
