"""The `run` of a rehearsed script. It trains as in a cluster, writes notes, and writes no result."""

from __future__ import annotations

import inspect
import os
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from torch._C._distributed_c10d import FileStore

from ...protocol.errors import UserError
from ...protocol.model import Determinism, GpuKind, JobId, OnDivergence, WorkerId
from ...protocol.rehearsal import DEFAULT_VIRTUAL_WORKERS, Errand
from ..communication.communicator import Communicator
from ..environment import ClusterEnvironment, read_virtual_workers
from ..events import Event, StepWanted
from ..gradients.updates import Updates
from ..initial import InitialWeights
from ..recipe import Recipe
from ..run import Run
from .control import Rehearsal
from .notes import Notes
from .timetable import Timetable

OPERATION_S = 600.0
BEHIND_THIRD_EPOCH = 3  # steps of the third epoch
FEWEST_STEPS = 12


class Rehearsed(Run):
    """This process's part in a rehearsal."""

    def __init__(self, errand: Errand, given: int | None, seed: int) -> None:
        """given: number of virtual workers in the script."""
        count = errand.virtual_workers or read_virtual_workers(os.environ, given or DEFAULT_VIRTUAL_WORKERS)
        place = _place(errand, count)
        self._errand = errand
        self._notes = Notes(errand.notes)
        timetable = Timetable(
            errand.worker,
            errand.entries,
            meeting=Path(errand.directory),
            losses=frozenset(errand.losses),
            before=errand.before,
        )
        control = Rehearsal(timetable, place, self._connect, errand.suspended_at)
        self._rehearsal = control
        self._first_step_at: float | None = None
        self._noted_end = False
        super().__init__(control, place, count, seed, InitialWeights(seed))

    def _connect(self, generation: int, rank: int, size: int) -> Communicator:
        if size == 1:
            return Communicator.alone()
        store = _Meeting(str(Path(self._errand.directory, f"{generation}.store")), size)
        store.set_timeout(timedelta(seconds=self._errand.meet_within_s))
        return Communicator.build("gloo", cast(Any, store), rank, size, "127.0.0.1", OPERATION_S)

    def _recipe(self, overlap: bool, normalize: str | None, updates: Updates) -> Recipe:
        recipe = super()._recipe(overlap, normalize, updates)
        return replace(recipe, backwards=True, overlap=False) if self._errand.backwards else recipe

    def prepare(self, *arguments: Any, **options: Any) -> Any:
        found = super().prepare(*arguments, **options)
        given = inspect.signature(Run.prepare).bind(self, *arguments, **options).arguments
        dataset = given["dataset"]
        trainer = self._require_trainer()
        trainer.saves = None  # what is given to `run.save` is compared elsewhere
        steps = self._errand.steps
        if steps is None and trainer.steps_per_epoch is not None:
            steps = max(FEWEST_STEPS, 2 * trainer.steps_per_epoch + BEHIND_THIRD_EPOCH)
        trainer.end_after(steps or FEWEST_STEPS)
        self._notes.follow(trainer, dataset, given.get("batch_size", getattr(dataset, "batch_size", None)))
        self._rehearsal.watch(self)
        return found

    def mesh(self) -> Any:
        """Refuse a script that divides its parameters: a rehearsed loss takes parts of them along. Raises UserError."""
        raise UserError(
            "`elasticctl check` cannot rehearse fully_shard, with which a lost worker costs the steps since a "
            "checkpoint"
        )

    def saw(self, fact: Event) -> None:
        """Take note of a fact of the training thread, and end the trial when its time is up."""
        if isinstance(fact, StepWanted):
            now, budget_s = time.monotonic(), self._errand.budget_s
            self._first_step_at = self._first_step_at or now
            if budget_s is not None and now > self._first_step_at + budget_s:
                held = self._require_trainer().held
                held.end = held.next_step
        self._notes.saw(fact)

    def save(self, what: Any, path: str | Path) -> None:
        """Note the value instead of writing it."""
        trainer = self._in_job("save()", "call it in the loop, or after it")
        if not (self._looping if self._in_epochs else not trainer.stepping.finished):
            self.finish()
        with trainer.stepping.as_applied():
            self._notes.saves(what, Path(path), trainer.held.next_step)

    def finish(self) -> None:
        """End the training, note the state, and wait for the other workers."""
        super().finish()
        if self._trainer is not None and not self._noted_end:
            self._noted_end = True
            self._notes.over()
            self._rehearsal.timetable.meet()


class _Meeting(FileStore):
    """Rendezvous of a generation's workers in a file."""

    cancelled = False

    def expect(self, keys: list[str]) -> None:
        """Do nothing: no key is requested in advance."""

    def close(self) -> None:
        """Do nothing: the store holds no connection."""


def _place(errand: Errand, virtual_workers: int) -> ClusterEnvironment:
    """Return the environment that an agent would set."""
    place = ClusterEnvironment(
        job=JobId("w"),
        worker=WorkerId(f"w.{errand.worker}"),
        agent_address="",
        address="127.0.0.1",
        gpu_kind=GpuKind.CPU,
        virtual_workers=virtual_workers,
        determinism=Determinism.ELASTIC,
        checkpoint_directory=errand.checkpoints,
        checkpoint_every_s=1e9,
        checkpoint_keep=1,
        max_steps=None,
        on_divergence=OnDivergence.FAIL,
    )
    return replace(place, compare_every=1)
