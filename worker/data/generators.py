"""The global random generators, and a context that restores them."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy
import torch


def digest_of_generators() -> str:
    """Return a digest of the states of Python's, NumPy's and torch's global generators.

    Includes the present CUDA device's generator if CUDA is in use. The digest changes when a random number is drawn.
    """
    states = [repr(random.getstate()).encode()]
    kind, keys, *rest = numpy.random.get_state()
    states += [repr((kind, rest)).encode(), numpy.asarray(keys).tobytes(), torch.get_rng_state().numpy().tobytes()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states.append(torch.cuda.get_rng_state().numpy().tobytes())
    return hashlib.blake2b(b";".join(states), digest_size=8).hexdigest()


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore the global generators after the context: an order may be drawn in the middle of a step."""
    python, arrays = random.getstate(), numpy.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        numpy.random.set_state(arrays)
