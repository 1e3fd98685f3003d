"""The global generators, kept as they are while something else draws."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy
import torch


def digest_of_generators() -> str:
    """Of the states of Python's, NumPy's and torch's global generators, the present CUDA device's too if CUDA is in use: another
    one where something else has been drawn since they were seeded."""
    states = [repr(random.getstate()).encode()]
    kind, keys, *rest = numpy.random.get_state()
    states += [repr((kind, rest)).encode(), numpy.asarray(keys).tobytes(), torch.get_rng_state().numpy().tobytes()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states.append(torch.cuda.get_rng_state().numpy().tobytes())
    return hashlib.blake2b(b";".join(states), digest_size=8).hexdigest()


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
