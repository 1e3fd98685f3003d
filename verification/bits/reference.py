"""Reference results of the histories: the undisturbed run with one worker per virtual worker, and the script alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from .nursery import Nursery
from .runner import Plan, run_story
from .station import slot_of
from .story import Story
from .verdict import differing_bits
from .worker import path_of

QUIET = 0  # seed of an undisturbed run


class References:
    """Computes each reference on first use, and caches it."""

    def __init__(self, nursery: Nursery, work: Path) -> None:
        self._nursery = nursery
        self._work = work
        self._kept: dict[tuple[str, int, int], dict[str, Any]] = {}
        self.checked: list[str] = []  # references compared so far, in words

    def of(self, plan: Plan) -> dict[str, Any]:
        """Return the result that the training of `plan` must have. Raises AssertionError if undisturbed runs differ."""
        key = (plan.model, plan.virtual_workers, plan.epochs)
        if key not in self._kept:
            self._kept[key] = self._train(plan)
        return self._kept[key]

    def _train(self, plan: Plan) -> dict[str, Any]:
        alone = self._alone(plan)
        story = Story(QUIET, plan.virtual_workers, ())
        quiet = Plan(QUIET, plan.model, plan.virtual_workers, plan.epochs)
        verdict, course = run_story(self._nursery, self._work, quiet, story, None)
        assert verdict.good, f"the undisturbed run failed: {verdict.problems}"
        assert verdict.results == plan.virtual_workers
        for worker in course.exit_codes:
            each = torch.load(path_of(course.directory, slot_of(worker), "result"), weights_only=True)
            bits = differing_bits(each, alone)
            assert not bits, f"{worker} of {plan.virtual_workers} workers differs in {bits} bits from the script alone"
        self.checked.append(f"{plan.model}, N = {plan.virtual_workers}: W = N and the script alone agree")
        print(self.checked[-1], flush=True)
        return alone

    def _alone(self, plan: Plan) -> dict[str, Any]:
        """Run `python script.py` outside any cluster."""
        path = self._work / "alone.pt"
        variables = {"ELASTIC_VIRTUAL_WORKERS": str(plan.virtual_workers), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "verification.bits.training", plan.model, str(plan.epochs), str(path)]
        subprocess.run(command, env={**os.environ, **variables}, check=True)
        document: dict[str, Any] = torch.load(path, weights_only=True)
        return document
