"""The training thread's side of elasticity: the script's loop, and what happens between its steps.

What is to be done is decided by the worker's machine (`training`): `Trainer._obey` tells it the facts, and carries its
instructions out. Steps are run by `stepping`; the state is held by `state.held`, and moved by `state.transfers`.

*Between* steps the generation may change. Holders of the state go straight on and send it to the joiners while they compute; a
joiner takes part in that first step without hosting a virtual worker, receives the state, applies the same reduced gradient,
and is then equal bit for bit. The user's own registered values follow at the next boundary, after the user's code for the step
has run everywhere.

A step whose collectives fail is not applied here; the same step, or the next one if another survivor has applied it, is
run again in the next generation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..protocol.errors import UserError
from .communication.communicator import CommunicatorBroken
from .data.feed import Batching, Sampling
from .driver import Control
from .events import (
    Arrived,
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
    ReceiveState,
    RunStep,
    SaveCheckpoint,
    ScriptEnded,
    StepWanted,
    TakeState,
    ThreadFact,
)
from .gradients.buffers import ModelBuffers
from .gradients.update import Update
from .inband import Participant
from .script import Script, ScriptAt
from .state.checkpoint import CheckpointWriter
from .state.held import HeldState
from .state.training_state import TrainingState
from .state.transfers import StateTransfers
from .stepping import Recipe, Stepping


class ScriptExit(SystemExit):
    """This worker is no longer needed here: the script ends, and nothing is lost."""


class Trainer:
    """Runs the steps of one job on this worker. Driven by `run.Run`; single-threaded."""

    def __init__(
        self,
        recipe: Recipe,
        control: Control,
        state: TrainingState,
        update: Update,
        sampler: Sampling,
        loader: Batching,
        writer: CheckpointWriter | None,
        participants: Sequence[Participant] = (),
    ) -> None:
        """participants: what takes part in each step's in-band exchange, in the same order on every worker."""
        self._recipe = recipe
        self._control = control
        self._sampler = sampler
        self._script = Script()
        buffers = ModelBuffers(state.model)
        self._held = HeldState(state, self._script, buffers.live, writer)
        self._transfers = StateTransfers(control, self._held, self._script, recipe.device)
        self._stepping = Stepping(recipe, control.tell, self._held, self._transfers, buffers, update, sampler, loader)
        for participant in participants:
            self._stepping.in_band.add(participant)
        self._total_steps: int | None = 0
        self._epochs = 0
        self._entered: EnterGeneration | None = None  # the generation in use
        self._failure: str | None = None  # why its communicator is of no use any more

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
        return self._held.next_step

    @property
    def steps_per_epoch(self) -> int | None:
        """Global steps of one epoch, if anybody knows."""
        return self._sampler.steps_per_epoch

    @property
    def finished(self) -> bool:
        if self._total_steps is not None and self._held.next_step >= self._total_steps:
            return True
        return (self._sampler.next_epoch or 0) >= self._epochs

    @property
    def over(self) -> bool:
        """Has the script come to the end of its training?"""
        return self._script.at is ScriptAt.OVER

    @property
    def broken_off(self) -> bool:
        """Has the script left its training by an exception, or has it a batch for which it has not called `optimizer.step()`?"""
        return self._script.at is ScriptAt.LEFT or self._stepping.in_batch

    # -- the loop

    def arrive(self, epochs: int) -> int:
        """Everything is prepared: wait for a generation and for the state. Returns the epoch to begin with."""
        self._epochs = epochs
        known = [total for total in (self._sampler.total_steps(epochs), self._recipe.max_steps) if total is not None]
        self._total_steps = total_steps = min(known, default=None)
        self._stepping.prepare(total_steps)
        samples = self._sampler.samples_per_step
        registers = self._held.parts.registers_values
        arrived = Arrived(total_steps, self._sampler.steps_per_epoch, samples, registers, epochs)
        instruction = self._obey(arrived)
        assert isinstance(instruction, EnterLoop)
        self._script.epoch = instruction.epoch
        self._script.go(ScriptAt.BETWEEN)
        return instruction.epoch

    def epoch_begins(self, epoch: int) -> None:
        """The script's loop has come to `epoch`: values that others registered there hold now."""
        self._held.epoch_begins(epoch)

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
            instruction = self._obey(StepWanted(self._script.epoch))
            if not isinstance(instruction, RunStep):
                self._script.go(ScriptAt.BETWEEN)
                return
            try:
                yield from self._stepping.run(instruction)
            except CommunicatorBroken as error:
                self._failure = str(error)

    def optimizer_stepped(self, optimizer: int) -> None:
        """The script has called `step()` of this optimizer. Raises UserError where it may not."""
        if self._stepping.optimizer_stepped(optimizer):
            try:
                self._stepping.complete_own_part()
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
                self._transfers.forget()
                self._stepping.give_up(restore_buffers)
            case LoadCheckpoint(generation):
                return self._held.load(generation)
            case ReceiveState(keep_own):
                return self._receive(keep_own)
            case ExchangeValues():
                return self._transfers.exchange_values()
            case GiveState():
                self._transfers.send_at_the_end()
            case SaveCheckpoint():
                self._held.save(instruction)
            case CompleteTransfers():
                return self._transfers.complete()
            case _:
                raise AssertionError(f"{instruction} is no instruction for now")
        return None

    def _enter(self, entered: EnterGeneration) -> None:
        """Go on in another generation."""
        self._entered = entered
        communicator = self._control.communicator
        self._stepping.enter(communicator, self.rank, self.world_size)
        self._transfers.enter(entered, communicator)

    def _receive(self, keep_own: bool) -> StepWanted:
        """Receive the state, and take part in the first step, if there is one, without hosting anything in it."""
        arrival = self._transfers.receive(keep_own)
        match arrival.instruction:
            case JoinStep() as step:
                parameters = self._held.parts.trained_in(arrival.incoming.header)
                self._stepping.join(step, parameters, lambda: self._transfers.take(arrival))
            case other:
                assert isinstance(other, TakeState)
                self._transfers.take(arrival)
        return StepWanted(self._script.epoch)
