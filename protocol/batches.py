"""The history of a job's batch sizes in a file: JSON, a list of `model.BatchChange` in the order of steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from .limits import MAX_BATCH_CHANGES, MAX_BATCH_FACTOR, MAX_RAMP_STEPS, MAX_STEPS
from .model import BatchChange


def read_history(text: bytes) -> tuple[BatchChange, ...]:
    """Return the changes of a file's content. Raises ValueError with a sentence for people."""
    try:
        changes = msgspec.json.decode(text, type=tuple[BatchChange, ...])
    except msgspec.MsgspecError as error:
        raise ValueError(f"it is no history of batches: {error}") from None
    if wrong := next(wrong_in(changes), None):
        raise ValueError(wrong)
    return changes


def write_history(changes: Sequence[BatchChange]) -> bytes:
    """Return the content of a file."""
    return msgspec.json.format(msgspec.json.encode(changes), indent=1)


def wrong_in(changes: Sequence[BatchChange]) -> Iterator[str]:
    """Yield a sentence for each fault of a history."""
    if len(changes) > MAX_BATCH_CHANGES:
        yield f"{len(changes)} changes of the batch are too many; {MAX_BATCH_CHANGES} are allowed"
    before = -1
    for number, change in enumerate(changes):
        where = f"change {number} of the batch"
        if not before < change.step <= MAX_STEPS:
            yield f"{where}: step {change.step} is not allowed: greater than the step before, from 0 on"
        if not 1 <= change.factor <= MAX_BATCH_FACTOR:
            yield f"{where}: factor {change.factor} is not allowed: 1 to {MAX_BATCH_FACTOR}"
        if not (math.isfinite(change.rate) and change.rate > 0):
            yield f"{where}: rate {change.rate} is not allowed: it must be finite and greater than 0"
        if not 0 <= change.ramp <= MAX_RAMP_STEPS:
            yield f"{where}: ramp {change.ramp} is not allowed: 0 to {MAX_RAMP_STEPS} steps"
        before = change.step
