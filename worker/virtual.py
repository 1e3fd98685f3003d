"""Virtual workers: what training means, apart from where it runs (EasyScale 3.2; design: worker-runtime 1, 2).

A job has N virtual workers, its author's choice; a global step trains one micro-batch for each. Where each of them runs is a pure
function of who hosts, so nobody has to be told. Their randomness is derived, not carried: whoever runs virtual worker v in step
s seeds the generators from (job seed, s, v), and so there is no generator state to send to a joiner or to lose with a crash.
"""

from __future__ import annotations

import hashlib
import random
from functools import lru_cache

import numpy
import torch

from .hosting import assign as assign


def derive_seed(seed: int, *parts: int | str) -> int:
    """A seed of 63 bits from the job's seed and what it is for. The same on every machine, and for ever."""
    text = "".join(map(_distinct, (seed, *parts)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


@lru_cache(maxsize=1024, typed=True)  # most parts are those of the seed before
def _distinct(part: int | str) -> str:
    """The value with its type and length, so that ("a", 1) and ("a1",) differ."""
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
