"""The training thread's side of elasticity: steps over virtual workers, and what happens between them.

One *step* (design: worker-runtime 1-4): each worker runs its contiguous range of the job's N virtual workers in turn, keeps their
gradients as nodes of one balanced tree, and all workers complete the tree together; everyone applies the same update. Beside the
gradients travels a control word, in which the leader commits a new generation.

What happens between steps is decided by the worker's machine (`training`): `Trainer._obey` tells it the facts, and carries its
instructions out. *Between* steps the generation may change. Holders of the state go straight on and send it to the joiners
while they compute; a joiner takes part in that first step without hosting a virtual worker, receives the state, applies the same
reduced gradient, and is then equal bit for bit. The user's own registered values follow at the next boundary, after the user's
code for the step has run everywhere.

A step whose collectives fail is not applied here; the same step, or the next one if another survivor has applied it, is
run again in the next generation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ..protocol.errors import UserError
from .communication.communicator import Communicator, CommunicatorBroken
from .control import Control
from .data.loading import Loader
from .data.sampling import SerialSampler
from .events import (
    Arrived,
    CheckpointLoaded,
    CheckpointMissing,
    CollectiveFailed,
    CompleteTransfers,
    Continue,
    EndEpoch,
    EnterGeneration,
    EnterLoop,
    ExchangeValues,
    ExitScript,
    GiveState,
    GiveUpStep,
    Instruction,
    JoinStep,
    LoadCheckpoint,
    LoopEnded,
    PartComputed,
    ReceiveState,
    RunStep,
    SaveCheckpoint,
    ScriptEnded,
    StateArriving,
    StateTaken,
    StepApplied,
    StepWanted,
    TakeState,
    ThreadFact,
    TransfersCompleted,
    ValuesExchanged,
    WordRead,
)
from .gradients.accumulation import Accumulation, same, trained
from .gradients.buffers import ModelBuffers
from .gradients.layout import Layout
from .gradients.reduction import CanonicalReducer, PlainReducer, Reducer
from .gradients.update import Update
from .script import Script, ScriptAt
from .state.checkpoint import CheckpointWriter, latest
from .state.replication import Replication
from .state.training_state import TrainingState
from .virtual import derive_seed, seed_everything

log = logging.getLogger(__name__)


class ScriptExit(SystemExit):
    """This worker is no longer needed here: the script ends, and nothing is lost."""


@dataclass(frozen=True)
class Recipe:
    """What does not change while a job runs."""

    virtual_workers: int
    seed: int
    device: torch.device
    canonical: bool  # reduce in the canonical order (determinism elastic and heterogeneous)
    overlap: bool  # reduce while the backward pass goes on
    max_steps: int | None


class Trainer:
    """Runs the steps of one job on this worker. Driven by `run.Run`; single-threaded."""

    def __init__(
        self,
        recipe: Recipe,
        control: Control,
        state: TrainingState,
        update: Update,
        sampler: SerialSampler,
        loader: Loader,
        writer: CheckpointWriter | None,
    ) -> None:
        self._recipe = recipe
        self._control = control
        self._state = state
        self._update = update
        self._sampler = sampler
        self._loader = loader
        self._writer = writer

        # where the loop is
        self.epoch = 0  # of the script's loop; before it has begun, of the state
        self.total_steps = 0
        self._next_step = 0
        self._script = Script()
        self._deferred: tuple[int, dict[str, Any]] | None = None  # registered values that belong to a later epoch
        self._failure: str | None = None  # why the communicator in use is of no use any more

        # the generation in use
        self._entered: EnterGeneration | None = None
        self._communicator = Communicator.alone()
        self._ranges: tuple[range, ...] = ()
        self._replication: Replication | None = None  # of the state to joiners, until all of them are whole

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
        entered = self._entered
        return entered is not None and entered.roster.workers[entered.rank] == entered.roster.leader

    @property
    def rank(self) -> int:
        return self._entered.rank if self._entered else 0

    @property
    def world_size(self) -> int:
        return len(self._entered.roster.members) if self._entered else 1

    @property
    def steps_done(self) -> int:
        """Applied global steps since the job's beginning."""
        return self._next_step

    @property
    def finished(self) -> bool:
        return self._next_step >= self.total_steps

    @property
    def over(self) -> bool:
        """Has the script come to the end of its training?"""
        return self._script.at is ScriptAt.OVER

    @property
    def broken_off(self) -> bool:
        """Has the script left its training by an exception, or has it a batch for which it has not called `optimizer.step()`?"""
        return self._script.at is ScriptAt.LEFT or self._current is not None

    # -- the loop

    def arrive(self, epochs: int) -> int:
        """Everything is prepared: wait for a generation and for the state. Returns the epoch to begin with."""
        self.total_steps = epochs * self._sampler.steps_per_epoch
        if self._recipe.max_steps is not None:
            self.total_steps = min(self.total_steps, self._recipe.max_steps)
        self._accumulation.prepare()
        samples = self._sampler.virtual_workers * self._sampler.batch_size
        arrived = Arrived(self.total_steps, self._sampler.steps_per_epoch, samples, self._state.registers_values)
        instruction = self._obey(arrived)
        assert isinstance(instruction, EnterLoop)
        self.epoch = instruction.epoch
        self._script.go(ScriptAt.BETWEEN)
        return self.epoch

    def epoch_begins(self, epoch: int) -> None:
        """The script's loop has come to `epoch`: values that others registered there hold now."""
        self.epoch = epoch
        if self._deferred is not None and self._deferred[0] <= epoch:
            self._state.set_registered(self._deferred[1])
            self._deferred = None

    def batches(self) -> Iterator[Any]:
        """The micro-batches of this worker for the rest of the present epoch. Raises UserError where there can be none."""
        if self._script.at not in (ScriptAt.BETWEEN, ScriptAt.READING):
            raise UserError("batches are there in the loop over run.epochs(), and nowhere else")
        if self._script.at is ScriptAt.READING:
            raise UserError(
                "the loop over batches was left before its end, by `break` or an exception, and begun again: a step is trained "
                "by all workers or by none. Let it run on, or leave the loop over epochs, too"
            )
        self._script.go(ScriptAt.READING)
        while True:
            instruction = self._obey(StepWanted(self.epoch))
            if not isinstance(instruction, RunStep):
                self._script.go(ScriptAt.BETWEEN)
                return
            try:
                yield from self._run_step(instruction)
            except CommunicatorBroken as error:
                self._failure = str(error)

    def finish(self, epochs: int) -> None:
        """The loop over `epochs` epochs is over, or there is none. Nothing happens if it was over before."""
        if self._script.at is not ScriptAt.OVER:
            self._script.go(ScriptAt.OVER)
            self._obey(LoopEnded(epochs))

    def left_by_error(self) -> None:
        """An exception has left the loop over epochs."""
        if self._script.at is not ScriptAt.OVER:
            self._script.go(ScriptAt.LEFT)

    def ended(self, reason: str) -> None:
        """The script ends without having finished. What it was still instructed to do is not done."""
        self._control.tell(ScriptEnded(reason))
        while not isinstance(self._control.next(), Continue | ExitScript):
            pass

    # -- what the machine wants

    def _obey(self, fact: ThreadFact) -> Instruction:
        """Tell what has happened, and do what is to be done, until it is the script's turn: then that is returned."""
        happened: ThreadFact | None = fact
        if self._failure is not None and not isinstance(fact, LoopEnded):
            happened = CollectiveFailed(self._failure)
        self._failure = None
        while True:
            if happened is not None:
                self._control.tell(happened)
            instruction = self._control.next()
            match instruction:
                case EnterLoop() | RunStep() | EndEpoch() | Continue():
                    return instruction
                case ExitScript(code):
                    raise ScriptExit(code)
            try:
                happened = self._carry_out(instruction)
            except CommunicatorBroken as error:
                happened = CollectiveFailed(str(error))

    def _carry_out(self, instruction: Instruction) -> ThreadFact | None:
        """Returns what has happened then, if anything. Raises CommunicatorBroken."""
        match instruction:
            case EnterGeneration():
                self._enter(instruction)
            case GiveUpStep(restore_buffers):
                self._give_up(restore_buffers)
            case LoadCheckpoint(generation):
                return self._load(generation)
            case ReceiveState(keep_own):
                return self._receive(keep_own)
            case ExchangeValues():
                return self._exchange_values()
            case GiveState():
                try:
                    self._send_state()
                except CommunicatorBroken:
                    log.info("a joiner has gone before the state could be sent to it; the job is over anyway")
            case SaveCheckpoint():
                self._save(instruction)
            case CompleteTransfers():
                return self._complete_transfers()
            case _:
                raise AssertionError(f"{instruction} is no instruction for now")
        return None

    def _enter(self, entered: EnterGeneration) -> None:
        """Go on in another generation."""
        self._entered = entered
        self._communicator = self._control.communicator
        self._reducer = None
        self._ranges = ()
        takes_part = any(entered.rank in (each.source_rank, each.target_rank) for each in entered.transfers)
        self._replication = Replication(self._communicator, entered.transfers) if takes_part else None

    def _give_up(self, restore_buffers: bool) -> None:
        """Nothing of the step in progress is left."""
        self._replication = None
        self._current = None
        if restore_buffers:
            self._buffers.restore()
        self._accumulation.forget()
        self._word = torch.zeros(1, dtype=torch.int64)

    def _load(self, generation: int) -> CheckpointLoaded | CheckpointMissing:
        assert self._writer is not None
        document, trouble = latest(self._writer.directory, generation)
        if document is None:
            return CheckpointMissing(trouble)
        self._copy(document.header, document.tensors)
        applied, epoch = self._take(document.header)
        return CheckpointLoaded(applied, epoch)

    def _copy(self, header: dict[str, Any], tensors: Sequence[torch.Tensor]) -> None:
        """Put the tensors of a state in their places."""
        self._settle()
        with torch.no_grad():
            for own, new in zip(self._state.adopt(header), tensors, strict=True):
                own.copy_(new)

    def _take(self, header: dict[str, Any]) -> tuple[int, int]:
        """The tensors of a state stand in their places: make the rest of it this worker's own. Returns its step and epoch."""
        self._state.finish(header)
        applied, epoch = int(header["counters"]["applied"]), int(header["counters"]["epoch"])
        self._next_step = applied + 1
        if self._script.at is ScriptAt.BEFORE:
            self.epoch = epoch
        return applied, epoch

    def _send_state(self) -> None:
        """Begin to send the state to this worker's joiners; it must not change until that is done (`Replication.sent`)."""
        assert self._replication is not None
        header = self._header({"applied": self._next_step - 1, "epoch": self.epoch})
        self._replication.give(header, self._state.tensors(), mutable=self._buffers.live)

    def _receive(self, keep_own: bool) -> StepWanted:
        """Receive the state, and take part in the first step, if there is one, without hosting anything in it.

        keep_own: the state that this worker holds stays whole until all of the new one is here: if the sender is lost on the way,
        a survivor that was one step behind still has its own. A newcomer has nothing to lose but the script's initial values.
        """
        assert self._replication is not None
        instruction: Instruction | None = None

        def places(header: dict[str, Any]) -> list[torch.Tensor] | None:
            nonlocal instruction
            self._control.tell(StateArriving(int(header["counters"]["applied"])))
            instruction = self._control.next()
            return None if keep_own else self._state.adopt(header)

        incoming = self._replication.take(self._recipe.device, places)

        def take_state() -> None:
            tensors = incoming.wait()
            if incoming.places is None:
                self._copy(incoming.header, tensors)
            self._control.tell(StateTaken(*self._take(incoming.header)))

        if isinstance(instruction, JoinStep):
            parameters = self._state.trained_in(incoming.header)
            self._begin_step(instruction.step, instruction.ranges, instruction.proposal, parameters)
            self._complete_step(take_state)
        else:
            assert isinstance(instruction, TakeState)
            take_state()
        return StepWanted(self.epoch)

    def _exchange_values(self) -> ValuesExchanged:
        """After a generation's first step: hand over what the users' code has changed in it."""
        replication, self._replication = self._replication, None
        assert replication is not None
        if replication.source is None:
            epoch, registered = self._deferred or (self.epoch, self._state.registered_values())
            replication.send_trailer({"epoch": epoch, "registered": registered})
            return ValuesExchanged(self.epoch)
        theirs = replication.receive_trailer()
        epoch = int(theirs["epoch"])
        if self._script.at is ScriptAt.BEFORE:
            self.epoch = epoch
        # A script that has still to run the end of an epoch that others are past takes the values after it.
        self._deferred = (epoch, theirs["registered"])
        self.epoch_begins(self.epoch)
        return ValuesExchanged(epoch)

    def _complete_transfers(self) -> TransfersCompleted:
        try:
            if self._replication is not None:
                self._replication.sent()
        except CommunicatorBroken:
            log.info("a joiner has gone before it had the state; the job is over anyway")
        return TransfersCompleted()

    # -- one step

    def _run_step(self, run: RunStep) -> Iterator[Any]:
        self._begin_step(run.step, run.ranges, run.proposal, trained(self._state.model), run.send)
        for virtual_worker in self._hosted:
            if self._communicator.aborted:
                raise CommunicatorBroken("abandoned")
            yield self._begin_micro_batch(virtual_worker)
            if self._current is not None:
                raise UserError(
                    "the loop asked for the next batch before optimizer.step(): call it once for every batch"
                )
        if not self._hosted:
            self._complete_own_part()

    def _begin_step(
        self,
        step: int,
        ranges: tuple[range, ...],
        proposal: int,
        parameters: list[torch.nn.Parameter],
        send: bool = False,
    ) -> None:
        self._buffers.begin()
        self._step = step
        if not same(parameters, self._parameters) or self.world_size > self._layout.padding:
            self._accumulation.close()
            self._lay_out(parameters)
        if ranges != self._ranges:
            self._ranges, self._reducer = ranges, None
        mine = ranges[self.rank]
        if self._reducer is None:
            self._reducer = self._new_reducer()
            self._loader.assign(step, mine, self.total_steps)
        if send:
            self._send_state()
        within = step % self._sampler.steps_per_epoch
        self._hosted = [v for v in mine if self._sampler.has_samples(within, v)]
        self._accumulation.begin()
        self._communicator.part_begins()
        self._word[0] = proposal
        self._word_work = self._communicator.all_reduce_max(self._word)

    def _new_reducer(self) -> Reducer:
        n = self._recipe.virtual_workers
        if self._recipe.canonical:
            return CanonicalReducer(self._communicator, self._ranges, n, self._layout)
        return PlainReducer(self._communicator, self._layout, n)

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
                self._complete_own_part()
            except CommunicatorBroken as error:
                self._failure = str(error)

    def _complete_own_part(self) -> None:
        """This worker's part of the step is issued. Raises CommunicatorBroken, with nothing applied."""
        told = False

        def computed() -> None:
            nonlocal told
            if not told:
                told = True
                self._control.tell(PartComputed())

        self._communicator.part_issued(computed)
        self._complete_step(computed)

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
        self._control.tell(WordRead(int(self._word[0])))
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
        self._next_step = self._step + 1
        self._control.tell(StepApplied(self._step))

    def _save(self, save: SaveCheckpoint) -> None:
        assert self._writer is not None
        header = self._header({"applied": save.step, "epoch": save.epoch, "generation": save.generation})
        self._writer.save(save, header, self._state.tensors(), mutable=self._buffers.live)

    def _header(self, counters: dict[str, int]) -> dict[str, Any]:
        """Of the state of now. Its registered values may belong to a later epoch than the script has come to."""
        header = self._state.header(counters)
        if self._deferred is not None:
            header["counters"]["epoch"], header["registered"] = self._deferred
        return header
