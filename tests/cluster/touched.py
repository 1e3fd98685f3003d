"""What a job of `train_small.py --touched FILE` has read in its loop: a line ``epoch index step`` for each time."""

from __future__ import annotations

import collections
from pathlib import Path

from elasticd.protocol.messages import JobView
from elasticd.worker.comparison.crosscheck import CHECKS_OF_A_CHANGE, EVERY, SOON
from elasticd.worker.virtual import derive_seed

MICRO_BATCH = 4  # samples


def repeated(touched: Path, samples: int | None, view: JobView) -> set[int]:
    """The steps that were trained again. Fails unless each of `samples` samples (of all epochs together; None: of a job that is
    not over) was read, and in one step only.

    In a step that is cross-checked, workers read one micro-batch that another worker trains. So a step was not repeated if no
    more than a micro-batch of it was read again; and such steps may be no more than there are checks.
    """
    counts = collections.Counter(touched.read_text().splitlines())
    read = {line.rpartition(" ")[0] for line in counts}
    assert len(counts) == len(read), "a sample was read in two steps"
    assert samples in (None, len(read)), "a sample was left out"
    again: dict[int, list[int]] = collections.defaultdict(list)
    for line, count in counts.items():
        if count > 1:
            again[int(line.rpartition(" ")[2])].append(count)
    checked = {step for step, each in again.items() if len(each) <= MICRO_BATCH}
    for step in checked:
        assert len(set(again[step])) == 1, f"step {step}: a part of a micro-batch was read again"
    soon = {step for step in checked if derive_seed(0, "cross-check", step) % EVERY}
    # the script saves a list, and its dataset's epoch changes: both are seen to begin to change in the same step
    most = 1 + len(SOON) + CHECKS_OF_A_CHANGE
    assert len(soon) <= most * view.generation, f"more steps than are checked: {sorted(soon)}"
    return again.keys() - checked
