"""The global generators, kept as they are while something else draws."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy
import torch


@contextmanager
def generators_kept() -> Iterator[None]:
    """The global generators are afterwards what they were before: an order is drawn in the middle of a step, too."""
    python, arrays = random.getstate(), numpy.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        numpy.random.set_state(arrays)
