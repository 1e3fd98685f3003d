"""The training thread's side of elasticity: steps over virtual workers, and what happens between them.

One *step* (design: worker-runtime 1-4): each worker runs its contiguous range of the job's N virtual workers in turn, keeps their
gradients as nodes of one balanced tree, and all workers complete the tree together; everyone applies the same update. Beside the
gradients travels a control word, in which the leader commits a new generation.

*Between* steps (`boundary`) the generation may change. Holders of the state go straight on and send it to the joiners
while they compute; a joiner takes part in that first step without hosting a virtual worker, receives the state, applies the same
reduced gradient, and is then equal bit for bit. The user's own registered values follow at the next boundary, after the user's
code for the step has run everywhere.

A step whose collectives fail is not applied here; the same step, or the next one if another survivor has applied it, is
run again in the next generation.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ..protocol.errors import UserError
from .accumulation import Accumulation, same, trained
from .buffers import ModelBuffers
from .checkpoint import CheckpointWriter, latest
from .communicator import Communicator, CommunicatorBroken
from .control import Control, Progress, Suspended, Switching
from .data import SerialSampler
from .gradients import Layout
from .loading import Loader
from .membership import Stall
from .progress import StepTimes
from .reduction import CanonicalReducer, PlainReducer, Reducer
from .replication import Replication, plan_transfers
from .state import TrainingState
from .update import Update
from .virtual import assign, derive_seed, seed_everything

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recipe:
    """What does not change while a job runs."""

    virtual_workers: int
    seed: int
    device: torch.device
    canonical: bool  # reduce in the canonical order (determinism elastic and heterogeneous)
    overlap: bool  # reduce while the backward pass goes on
    max_steps: int | None
    checkpoint_every_s: float


class Trainer:
    """Runs the steps of one job on this worker. Driven by `run.Run`; single-threaded."""

    def __init__(
        self,
        recipe: Recipe,
        control: Control,
        times: StepTimes,
        state: TrainingState,
        update: Update,
        sampler: SerialSampler,
        loader: Loader,
        writer: CheckpointWriter | None,
    ) -> None:
        self._recipe = recipe
        self._control = control
        self._times = times
        self._state = state
        self._update = update
        self._sampler = sampler
        self._loader = loader
        self._writer = writer
        self._checkpoint_at = time.monotonic() + recipe.checkpoint_every_s

        # where the loop is
        self.epoch = 0  # of the script's loop
        self.total_steps = 0
        self._next_step = 0
        self._has_state = False
        self._spoiled = False  # neither the script's initial values nor a state: one has begun to arrive, but not come
        self._position = 0  # epoch in which a joiner's or a resumed script begins
        self._in_loop = False  # of the script, which knows the epoch; until then it is the state's
        self._suspended = False
        self._deferred: tuple[int, dict[str, Any]] | None = None  # registered values that belong to a later epoch
        self._failure: str | None = None  # why the communicator in use is of no use any more

        # the generation in use
        self._switching: Switching | None = None
        self._communicator = Communicator.alone()
        self._ranges: tuple[range, ...] = ()
        self._replication: Replication | None = None  # of the state to joiners, until all of them are whole
        self._first_step_applied = False

        # the step in progress
        self._step = -1
        self._buffers = ModelBuffers(state.model)
        self._hosted: list[int] = []
        self._current: int | None = None  # virtual worker whose batch the script has
        self._stepped: set[int] = set()  # optimizers that the script has stepped for it
        self._word = torch.zeros(1, dtype=torch.int64)
        self._word_work: dist.Work
        self._lay_out(trained(state.model))

    def _lay_out(self, parameters: list[torch.nn.Parameter]) -> None:
        """These are the parameters that are trained from now on."""
        recipe = self._recipe
        self._parameters = parameters
        # There may be more workers than virtual workers: while a whole roster is being replaced, old and new are there.
        self._layout = Layout(parameters, padding=max(recipe.virtual_workers, self.world_size))
        self._accumulation = Accumulation(self._layout, recipe.virtual_workers, recipe.canonical, recipe.overlap)
        self._reducer: Reducer | None = None

    # -- what a script may ask

    @property
    def is_leader(self) -> bool:
        """Whether this worker speaks for the job now."""
        switching = self._switching
        return switching is not None and switching.roster.members[switching.rank].worker == switching.roster.leader

    @property
    def rank(self) -> int:
        return self._switching.rank if self._switching else 0

    @property
    def world_size(self) -> int:
        return len(self._switching.roster.members) if self._switching else 1

    @property
    def steps_done(self) -> int:
        """Applied global steps since the job's beginning."""
        return self._next_step

    @property
    def finished(self) -> bool:
        return self._next_step >= self.total_steps

    # -- the loop

    def arrive(self, epochs: int) -> int:
        """Everything is prepared: wait for a generation and for the state. Returns the epoch to begin with."""
        self.total_steps = epochs * self._sampler.steps_per_epoch
        if self._recipe.max_steps is not None:
            self.total_steps = min(self.total_steps, self._recipe.max_steps)
        self._accumulation.prepare()
        self.boundary(self._control.arrive())
        self._in_loop = True
        return self._position

    def epoch_begins(self, epoch: int) -> None:
        """The script's loop has come to `epoch`: values that others registered there hold now."""
        self.epoch = epoch
        if self._deferred is not None and self._deferred[0] <= epoch:
            self._state.set_registered(self._deferred[1])
            self._deferred = None

    def batches(self) -> Iterator[Any]:
        """The micro-batches of this worker for the rest of the present epoch."""
        while True:
            self.boundary()
            if self.finished or self._epoch_of(self._next_step) != self.epoch:
                return
            try:
                yield from self._run_step()
            except CommunicatorBroken as error:
                self._failure = str(error)

    def finish(self, epochs: int) -> None:
        """The loop is over. The leader leaves a checkpoint of the end, so that whatever follows can be done again."""
        if self._suspended:
            return  # it is not, and the state is saved
        if self._replication is not None:
            try:
                self._replication.sent()
            except CommunicatorBroken:
                log.info("a joiner has gone before it had the state; the job is over anyway")
        if self._writer is not None and self.is_leader and self.finished:
            self.epoch = epochs
            self._checkpoint(self._writer)
            self._writer.wait()
        self._control.finished()

    # -- between steps

    def boundary(self, first: Switching | None = None) -> None:
        """Follow whatever has been decided, until the next step can run (or none is left). `first`: to begin with."""
        try:
            self._follow(first)
        except Suspended as suspended:
            self._suspended = True
            saves = self.is_leader if suspended.saver is None else suspended.saver == self._control.worker
            if saves:
                self._save_at_once()
            raise

    def _follow(self, first: Switching | None) -> None:
        outcome: Switching | Stall | None = first
        while True:
            try:
                if outcome is None and self._failure is None:
                    self._finish_transfers()
                    outcome = self._control.boundary()
                    if outcome is None:
                        self._checkpoint_if_due()
                        return
                if isinstance(outcome, Stall):
                    self._failure, outcome = "abandoned", None
                if outcome is None:
                    outcome = self._recover(self._failure or "abandoned")
                switching, outcome = outcome, None
                self._enter(switching)
            except CommunicatorBroken as error:
                self._failure = str(error)

    def _recover(self, reason: str) -> Switching:
        """Give the step in progress up and wait for a generation without the lost member."""
        self._failure = None
        self._replication = None
        self._current = None
        if self._step == self._next_step:
            self._buffers.restore()
        self._accumulation.forget()
        self._word = torch.zeros(1, dtype=torch.int64)
        return self._control.failed(reason)

    def _enter(self, switching: Switching) -> None:
        """Go on in another generation; a joiner takes part in one step in which it only receives."""
        before = self.world_size if self._switching else 0
        self._switching = switching
        self._communicator = switching.communicator
        self._first_step_applied = False
        self._replication = self._plan(switching)
        self._host(switching.holders)
        if switching.holders[switching.rank]:
            if not self._has_state:
                self._begin_or_resume()
            self._times.switched(switching.roster.generation, before, self.world_size, switching.recovery)
            if self.finished:
                self._send_state()
        else:
            self._times.restarted()
            self._join()

    def _plan(self, switching: Switching) -> Replication | None:
        """Who sends the state to whom; None if all have it."""
        members = switching.roster.members
        holders = [rank for rank, holds in enumerate(switching.holders) if holds]
        joiners = [rank for rank, holds in enumerate(switching.holders) if not holds]
        if not joiners:
            return None
        gpus, places = [member.gpu for member in members], [member.place for member in members]
        return Replication(switching.communicator, plan_transfers(gpus, holders, joiners, places, relays=True))

    def _host(self, hosts: Sequence[bool]) -> None:
        """Divide the virtual workers among the members that host."""
        self._ranges = assign(self._recipe.virtual_workers, hosts)
        self._reducer = None

    def _new_reducer(self) -> Reducer:
        n = self._recipe.virtual_workers
        if self._recipe.canonical:
            return CanonicalReducer(self._communicator, self._ranges, n, self._layout)
        return PlainReducer(self._communicator, self._layout, n)

    def _begin_or_resume(self) -> None:
        """The first holder of a job's state: the last checkpoint, or the script's own initial values."""
        document = latest(self._writer.directory) if self._writer is not None else None
        if document is not None:
            self._copy(document.header, document.tensors)
            self._take(document.header)
        elif self._spoiled:
            # Everybody with a state has died before this worker had all of it. Another process begins anew.
            log.error("this worker has lost its initial values to a state that has not come: it ends, to be replaced")
            os.kill(os.getpid(), signal.SIGKILL)
        self._has_state = True
        self._control.step_applied(self._next_step - 1, self._progress())

    def _copy(self, header: dict[str, Any], tensors: Sequence[torch.Tensor]) -> None:
        """Put the tensors of a state in their places."""
        self._settle()
        with torch.no_grad():
            for own, new in zip(self._state.adopt(header), tensors, strict=True):
                own.copy_(new)

    def _take(self, header: dict[str, Any]) -> None:
        """The tensors of a state stand in their places: make the rest of it this worker's own."""
        self._state.finish(header)
        self._next_step = int(header["counters"]["applied"]) + 1
        self._position = int(header["counters"]["epoch"])
        if not self._in_loop:
            self.epoch = self._position
        self._has_state, self._spoiled = True, False

    def _send_state(self) -> None:
        """Begin to send the state to this worker's joiners; it must not change until that is done (`Replication.sent`)."""
        if self._replication is not None and self._replication.targets and not self._first_step_applied:
            header = self._state.header({"applied": self._next_step - 1, "epoch": self.epoch})
            self._replication.give(header, self._state.tensors(), mutable=self._buffers.live)

    def _join(self) -> None:
        """Receive the state, and take part in the first step without hosting anything in it.

        A state that this worker holds itself stays whole until all of the new one is here: if the sender is lost on the way, a
        survivor that was one step behind still has its own. A newcomer has nothing to lose but the script's initial values.
        """
        assert self._replication is not None
        incoming = self._replication.take(self._recipe.device, self._places)

        def take_state() -> None:
            tensors = incoming.wait()
            if incoming.places is None:
                self._copy(incoming.header, tensors)
            self._take(incoming.header)

        first_step = int(incoming.header["counters"]["applied"]) + 1
        if first_step >= self.total_steps:
            take_state()
            self._control.step_applied(self._next_step - 1, self._progress())
        else:
            self._begin_step(first_step, self._state.trained_in(incoming.header))
            self._complete_step(take_state)

    def _places(self, header: dict[str, Any]) -> list[torch.Tensor] | None:
        """Where the tensors of a state that comes belong; None: there is one that must not be lost."""
        if self._has_state:
            return None
        self._spoiled = True
        return self._state.adopt(header)

    def _finish_transfers(self) -> None:
        """After a generation's first step: hand over what the users' code has changed in it; then all members host."""
        replication = self._replication
        if replication is None or not self._first_step_applied:
            return
        self._replication = None
        if replication.source is None:
            replication.send_trailer({"epoch": self.epoch, "registered": self._state.registered_values()})
        else:
            theirs = replication.receive_trailer()
            self._position = int(theirs["epoch"])
            if not self._in_loop:
                self.epoch = self._position
            # A script that has still to run the end of an epoch that others are past takes the values after it.
            self._deferred = (self._position, theirs["registered"])
            self.epoch_begins(self.epoch)
        self._host([True] * self.world_size)

    # -- one step

    def _run_step(self) -> Iterator[Any]:
        self._begin_step(self._next_step, trained(self._state.model))
        for virtual_worker in self._hosted:
            if self._communicator.aborted:
                raise CommunicatorBroken("abandoned")
            yield self._begin_micro_batch(virtual_worker)
            if self._current is not None:
                raise UserError(
                    "the loop asked for the next batch before optimizer.step(): call it once for every batch"
                )
        if not self._hosted:
            self._complete_step()

    def _begin_step(self, step: int, parameters: list[torch.nn.Parameter]) -> None:
        self._buffers.begin()
        self._step = step
        if not same(parameters, self._parameters) or self.world_size > self._layout.padding:
            self._accumulation.close()
            self._lay_out(parameters)
        mine = self._ranges[self.rank]
        if self._reducer is None:
            self._reducer = self._new_reducer()
            self._loader.assign(step, mine, self.total_steps)
        if self._holds_state():
            self._send_state()
        within = step % self._sampler.steps_per_epoch
        self._hosted = [v for v in mine if self._sampler.has_samples(within, v)]
        self._accumulation.begin()
        self._word[0] = self._control.step_started(last=step + 1 >= self.total_steps)
        self._word_work = self._communicator.all_reduce_max(self._word)

    def _holds_state(self) -> bool:
        return self._switching is not None and self._switching.holders[self.rank]

    def _epoch_of(self, step: int) -> int:
        return step // self._sampler.steps_per_epoch

    def _begin_micro_batch(self, virtual_worker: int) -> Any:
        recipe, step = self._recipe, self._step
        batch = self._loader.batch(step, virtual_worker)
        self._buffers.begin_micro_batch()
        self._current = virtual_worker
        self._stepped.clear()
        weight = self._sampler.weight(step % self._sampler.steps_per_epoch, virtual_worker)
        last = virtual_worker == self._ranges[self.rank][-1]  # in a short step others may follow, which have no sample
        self._accumulation.expect(virtual_worker, weight, self._reducer if last else None)
        seed_everything(derive_seed(recipe.seed, "model", step, virtual_worker))
        return batch

    def optimizer_stepped(self, optimizer: int) -> None:
        """The script has called `step()` of this optimizer: with the last one the virtual worker's gradient is complete."""
        virtual_worker = self._current
        if virtual_worker is None or optimizer in self._stepped:
            raise UserError("optimizer.step() was called twice for one batch, or outside the loop over batches")
        self._stepped.add(optimizer)
        if len(self._stepped) < len(self._state.optimizers):
            return
        self._current = None
        self._accumulation.completed()
        if virtual_worker == 0:
            self._buffers.keep()
        if virtual_worker == self._hosted[-1]:
            try:
                self._complete_step()
            except CommunicatorBroken as error:
                self._failure = str(error)

    def _complete_step(self, before_update: Callable[[], None] = lambda: None) -> None:
        """Reduce, read the control word, apply the update. Raises CommunicatorBroken, with nothing applied."""
        for virtual_worker in self._ranges[self.rank][len(self._hosted) :]:
            self._accumulation.skip(virtual_worker)  # whose slice of a short last step is empty
        assert self._reducer is not None
        gradient = self._accumulation.reduce(self._reducer)
        root = next(rank for rank, hosted in enumerate(self._ranges) if 0 in hosted)
        self._buffers.share(self._communicator, root)
        self._communicator.wait(self._word_work)
        before_update()
        if self._replication is not None:
            self._replication.sent()
        self._control.word_read(int(self._word[0]))
        for parameter, view in zip(self._layout.parameters, gradient.views, strict=True):
            parameter.grad = view
        self._apply()

    def _settle(self) -> None:
        """A checkpoint of the present state may still be copied: it is about to change."""
        if self._writer is not None:
            self._writer.settle()

    def _apply(self) -> None:
        self._settle()
        self._buffers.apply()  # before the update, after which a script may change them
        self._update.apply(self._parameters)
        for parameter in self._parameters:
            parameter.grad = None
        self._accumulation.applied()
        self._first_step_applied = True
        self._times.applied(self._step, time.monotonic())
        self._next_step = self._step + 1
        self._control.step_applied(self._step, self._progress())

    # -- what is told and kept

    def _progress(self) -> Progress:
        step_s = self._times.median_step_s()
        batch = self._sampler.virtual_workers * self._sampler.batch_size
        samples_per_s = batch / step_s if step_s else 0.0
        return Progress(self.epoch, self.total_steps, samples_per_s, step_s, self._times.steady())

    def _checkpoint_if_due(self) -> None:
        if self._writer is None or not self.is_leader or time.monotonic() < self._checkpoint_at:
            return
        self._checkpoint_at = time.monotonic() + self._recipe.checkpoint_every_s
        if self._next_step:
            self._checkpoint(self._writer)

    def _save_at_once(self) -> None:
        """The job is preempted: what has been applied is there when it goes on."""
        if self._writer is not None and self._has_state and self._next_step:
            self._checkpoint(self._writer)
            if error := self._writer.wait():
                log.error("the job goes on from an earlier checkpoint: %s", error)

    def _checkpoint(self, writer: CheckpointWriter) -> None:
        header = self._state.header({"applied": self._next_step - 1, "epoch": self.epoch})
        writer.save(self._next_step - 1, header, self._state.tensors(), mutable=self._buffers.live)
