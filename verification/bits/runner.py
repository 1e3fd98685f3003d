"""Runs one history in its directory, with its story and its reference."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from . import story, training
from .history import Course, History
from .nursery import Nursery
from .story import Story
from .verdict import Verdict, judge


@dataclass(frozen=True)
class Plan:
    """Model, size and seed of a history."""

    seed: int
    model: str
    virtual_workers: int
    epochs: int

    @property
    def steps(self) -> int:
        return self.epochs * training.STEPS_PER_EPOCH


class Expected(Protocol):
    """Provides the reference result of a training."""

    def of(self, plan: Plan) -> dict[str, Any]: ...


def run_history(nursery: Nursery, work: Path, plan: Plan, expected: Expected) -> tuple[Verdict, Course]:
    """Run the story of the plan's seed, or that stop of the tour, and compare the result."""
    stories = {told.seed: told for told in story.tour()}
    told = stories.get(plan.seed) or story.tell(plan.seed, plan.virtual_workers, plan.steps)
    return run_story(nursery, work, plan, told, expected.of(plan))


def run_story(
    nursery: Nursery, work: Path, plan: Plan, told: Story, reference: dict[str, Any] | None
) -> tuple[Verdict, Course]:
    """Run this story. Its directory is kept until the next run of the same seed."""
    directory = work / str(plan.seed)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    course = History(nursery, directory, plan.model, plan.virtual_workers, plan.epochs, told).run()
    verdict = judge(course, plan.model, plan.virtual_workers, plan.steps, reference)
    return verdict, course
