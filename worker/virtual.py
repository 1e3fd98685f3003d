"""Virtual workers, on which a job's result depends instead of its real workers (EasyScale 3.2; design: worker-runtime 1, 2).

A job has N virtual workers, its author's choice; a global step trains one micro-batch for each. Their assignment to workers is a
pure function of the workers that host, so it needs no message. Their random numbers need no stored state: the worker that runs
virtual worker v in step s seeds the generators from (job seed, s, v), so there is no generator state to send to a joiner or to
lose in a crash.
"""

from __future__ import annotations

import hashlib
import random
from functools import lru_cache

import numpy
import torch

from .hosting import assign as assign


def derive_seed(seed: int, *parts: int | str) -> int:
    """Return a seed of 63 bits from the job's seed and `parts`, which name its purpose.

    It is the same on every machine and in every version."""
    text = "".join(map(_distinct, (seed, *parts)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


@lru_cache(maxsize=1024, typed=True)  # most parts are the same as for the last seed
def _distinct(part: int | str) -> str:
    """Return the value with its type and length, so that ("a", 1) and ("a1",) differ."""
    value = str(part)
    return f"{type(part).__name__}:{len(value)}:{value};"


def seed_everything(value: int) -> None:
    """Seed the global generators of Python, NumPy and torch, on the current CUDA device too if CUDA is in use."""
    random.seed(value)
    numpy.random.seed((value ^ value >> 32) & 0xFFFFFFFF)
    # Not torch.manual_seed: without CUDA it queues a call with a formatted stack trace, for every micro-batch.
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(value)
