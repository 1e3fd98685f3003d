"""Checks that each sample was used once per epoch, from what workers record in every forward pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path


def uses(paths: Iterable[Path]) -> dict[int, dict[int, Counter[int]]]:
    """Return the use count of each sample, by step and by the generation that ran the step."""
    found: dict[int, dict[int, Counter[int]]] = {}
    for path in paths:
        for line in path.read_text().splitlines() if path.exists() else ():
            generation, step, *indices = map(int, line.split())
            found.setdefault(step, {}).setdefault(generation, Counter()).update(indices)
    return found


def problems(found: dict[int, dict[int, Counter[int]]], steps: int, epoch: Sequence[int]) -> list[str]:
    """Return the problems with an epoch's samples. epoch: the samples of one epoch, in any order.

    A step that a loss has interrupted is run again in a later generation. So only the last generation that ran a step has applied
    it; earlier ones may have used some of its samples.
    """
    said: list[str] = []
    missing = [step for step in range(steps) if step not in found]
    if missing:
        return [f"nobody has noted a sample of steps {missing}"]
    expected, present = Counter(epoch), Counter[int]()
    left = len(epoch)
    for step in range(steps):
        generations = found[step]
        applied = generations[max(generations)]
        for generation, others in generations.items():
            if others - applied:
                said.append(f"step {step} used samples in generation {generation} that are not its own")
        present += applied
        left -= applied.total()
        if left <= 0:
            if present != expected:
                wrong = sorted(((present - expected) + (expected - present)).elements())
                said.append(f"the epoch that ends with step {step} has not used samples {wrong[:8]} once each")
            present, left = Counter(), len(epoch)
    if left != len(epoch):
        said.append("the last epoch is not complete")
    return said
