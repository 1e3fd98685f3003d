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

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch

from ..protocol import exits
from ..protocol.errors import UserError
from . import advice
from .between import Between, Function, ScriptExit, Superseded
from .code import Code, OtherCode
from .communication.communicator import CommunicatorBroken
from .comparison import Comparison
from .compiled import Compiled
from .crosscheck import CrossCheck
from .data.choice import Feed
from .data.likeness import Likeness, Unlike
from .driver import Control
from .events import (
    Arrived,
    CollectiveFailed,
    CompleteTransfers,
    Continue,
    Diverged,
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
    Noticed,
    ReceiveState,
    Resume,
    RunStep,
    SaveCheckpoint,
    ScriptEnded,
    SharingBegun,
    SharingEnded,
    StepWanted,
    TakeState,
    ThreadFact,
)
from .following import IN_BODY, Following, Where
from .gradients.hyperparameters import Hyperparameters
from .gradients.update import Update
from .last_saves import LastSaves
from .leading import LeadersCode
from .looking import Looking
from .mutation_guard import MutationGuard
from .operators import Scan
from .reachable import leave_out
from .remarks import Remarks
from .results import Result
from .save_calls import is_for_leader
from .saves import REGISTERED, Note, Saves, looked_at
from .script import Script, ScriptAt
from .sharding.division import StateLost
from .state.checkpoint import CheckpointWriter
from .state.epoch_values import Unfilled
from .state.held import HeldState
from .state.training_state import TrainingState
from .state.transfers import StateTransfers
from .state.values import ScriptValues
from .stepping import Recipe, Stepping, Watch
from .virtual import derive_seed, seed_everything


@dataclass(frozen=True)
class Shared:
    """What a worker of a cluster shares with others: its checkpoints, and the comparisons of its data, code and artefacts."""

    writer: CheckpointWriter | None = None
    likeness: Likeness | None = None
    code: Code | None = None
    compiled: Compiled | None = None


class Trainer:
    """Runs the steps of one job on this worker. Driven by `run.Run`; single-threaded."""

    def __init__(
        self,
        recipe: Recipe,
        control: Control,
        state: TrainingState,
        update: Update,
        feed: Feed,
        shared: Shared,
        functions: Sequence[Function] = (),
        known: Sequence[Any] = (),
    ) -> None:
        """functions: what `run.every` was given; it may still grow until the loop begins. known: objects that the script has from
        the runtime."""
        self.recipe = recipe
        self._control = control
        self._sampler = feed.sampling
        self._growing = feed.growing
        self._loader = feed.batching
        self.script = Script()
        hyperparameters = Hyperparameters(state.optimizers)
        self._following = Following(
            state.model, state.optimizers, state.schedulers, self._where, lambda: self._by_host, self._has_stepped
        )
        values = ScriptValues(state, hyperparameters, self._following)
        self.held = HeldState(state, self.script, values, shared.writer, control.tell, shared.code)
        self.held.likeness = shared.likeness
        self._transfers = StateTransfers(control, self.held, self.script, recipe.device, shared.compiled)
        self._compiled = shared.compiled
        self._compares = shared.writer is not None  # with other workers, and with checkpoints: not outside a cluster
        self._looking = Looking(
            state,
            beside={"dataset": feed.given},
            known=leave_out(known),
            batch_size=getattr(feed.sampling, "batch_size", None),
            samplers=frozenset(type(each).__name__ for each in feed.samplers),
        )
        self._remarks = Remarks(self._looking, lambda text: control.tell(Noticed(text)))
        self._cross_check = CrossCheck(
            recipe.virtual_workers,
            recipe.seed,
            recipe.comparing.on_divergence,
            self._end_diverged,
            self._looking,
            self._remarks,
        )
        self._leaders_code = LeadersCode(self._seed_leaders_code, lambda text: control.tell(Noticed(text)))
        self.held.looks = lambda: self._looking.plain(sys._getframe())
        self.comparison = Comparison(self.held, recipe.comparing, self._cross_check)
        self.saves = self._saves_of(recipe)
        self._last_saves: LastSaves | None = None  # from the end of the loop on, where there are others
        self._mutation_guard = MutationGuard(state, recipe.virtual_workers, lambda: self._by_host)
        self.stepping = Stepping(
            recipe,
            control.tell,
            self.held,
            self._transfers,
            hyperparameters,
            self._following,
            update,
            feed,
            Watch(self.comparison, self._cross_check, self._mutation_guard, self.saves),
        )
        self._scan = Scan(recipe.agnostic, recipe.device, control.tell)
        self.stepping.body_begins = self._body_begins
        self.between = Between(
            recipe.virtual_workers,
            recipe.seed,
            recipe.device,
            control.tell,
            self._obey,
            self.held,
            self.script,
            functions,
        )
        self._first: Instruction | None = None  # to be carried out before all others
        self._entered: EnterGeneration | None = None  # the generation in use
        self._failure: str | None = None  # why its communicator is of no use any more
        self._left_by_break = False
        self._by_host = False  # what steps the optimizers is the end of a body
        self._has_passed = False  # has a host come to the end of an epoch?
        self._became_leader: list[Callable[[], None]] = []  # to be called; empty when they have been

    def _body_begins(self) -> None:
        if not self._by_host:
            self._leaders_code.body_begins()
        self._scan.body_begins()

    # -- what a script may ask

    def asked_for_place(self, is_first: bool) -> None:
        """The script has read what is another on another worker: which of them leads, its rank. is_first: this worker leads, or
        is the first."""
        if self.stepping.in_batch and not self._by_host:
            self._cross_check.asked_for_place()
            self._leaders_code.reads(is_first)

    def _seed_leaders_code(self) -> None:
        seed_everything(derive_seed(self.recipe.seed, "leader", self.stepping.number, self.held.next_step))

    @property
    def has_place(self) -> bool:
        """Is this worker in a generation, so that it has a rank there?"""
        return self._entered is not None

    @property
    def is_leader(self) -> bool:
        """Whether this worker speaks for the job now."""
        entered = self._entered
        return entered is not None and entered.roster.workers[entered.rank] == entered.roster.leader

    @property
    def generation(self) -> int:
        """The one that this worker is in; 0: none yet."""
        return self._entered.roster.generation if self._entered is not None else 0

    @property
    def result(self) -> Result:
        """Of the steps that were applied, as all workers see it where the script is."""
        where, results = self._where(), self.held.results
        if where in IN_BODY:
            return results.before
        if self.stepping.shows:
            return results.last
        if where is Where.AGAIN:
            return results.begun_with(self.script.epoch + self.between.has_read(self.script.epoch))
        return results.last

    @property
    def rank(self) -> int:
        return self._entered.rank if self._entered else 0

    @property
    def world_size(self) -> int:
        return len(self._entered.roster.members) if self._entered else 1

    @property
    def steps_done(self) -> int:
        """Applied global steps since the job's beginning; behind `optimizer.step()` of any body its step counts, too. At an
        epoch's end those that were applied there, also where the state is past it."""
        if self._where() is Where.AGAIN and self.between.has_read(self.script.epoch):
            return self.result.steps
        if self.stepping.shows:
            return self.stepping.steps_shown
        ahead = self.stepping.where is Where.BEHIND_STEP
        return self.held.next_step + ahead

    @property
    def steps_per_epoch(self) -> int | None:
        """Global steps of one epoch, if anybody knows; units (`scaling`), if the batch may grow."""
        growing = self._growing
        return growing.units_per_epoch if growing is not None else self._sampler.steps_per_epoch

    @property
    def grows(self) -> bool:
        """May the batch grow?"""
        return self._growing is not None

    @property
    def batch_factor(self) -> int:
        """In a loop body that of its step; elsewhere that of the next one."""
        growing = self._growing
        return 1 if growing is None else growing.factor_at(self.stepping.step)

    def set_batch(self, factor: Any, rate: Any) -> None:
        """The script changes the batch from the next step on. Raises UserError."""
        growing = self._growing
        if growing is None:
            raise UserError(
                "run.set_batch() was called without run.scaling(), which says before prepare() how far it may go"
            )
        growing.check(factor, rate)
        factor, rate = self.between.agree([factor, rate], None, "run.set_batch()")
        if self.between.in_function or not self.held.runs_again:  # else the state, which is of later code, has it
            growing.ask(self.held.next_step, factor, rate)

    def end_after(self, steps: int) -> None:
        """The job, whose loop has still to begin, ends after so many steps, if not before."""
        known = self.recipe.max_steps
        self.recipe = replace(self.recipe, max_steps=steps if known is None else min(steps, known))

    @property
    def over(self) -> bool:
        """Has the script come to the end of its training?"""
        return self.script.at is ScriptAt.OVER

    @property
    def broken_off(self) -> bool:
        """Has the script left its training by an exception, or has it a batch for which it has not called `optimizer.step()`?"""
        return self.script.at is ScriptAt.LEFT or (self.stepping.in_batch and not self._left_by_break)

    def _saves_of(self, recipe: Recipe) -> Saves | None:
        if not recipe.comparing.tensors:
            return None
        return Saves(self._cross_check, self._looking, self._where, lambda: self.stepping.in_last_body)

    def to_save(self, name: str, value: Any, target: Path) -> Path | None:
        """The script saves this under the name that it has given: it is compared with what others save. Returns where the leader
        writes it now; None: nowhere. Behind the loop it waits for the others, and ends the process where they differ."""
        saves, last = self.saves, self._last_saves
        if saves is None or (last is None and self.over):
            return target
        if last is None:
            return saves.note(name, value, target, self.held.next_step)
        if not is_for_leader(sys._getframe()):
            last.give([Note(name, looked_at(value), target)], saves.look())
        return target

    def _where(self) -> Where:
        where = self.stepping.where
        if where is not Where.BETWEEN or self.between.in_function:
            return where
        if self.script.at in (ScriptAt.BEFORE, ScriptAt.OVER, ScriptAt.LEFT):
            return Where.OUTSIDE
        return Where.AGAIN if self.held.runs_again else Where.BETWEEN

    def _has_stepped(self, optimizer: torch.optim.Optimizer) -> bool:
        return self.stepping.has_stepped(optimizer)

    # -- the loop

    def find(self, frame: FrameType | None, is_local: Callable[[str], bool] = lambda name: False) -> None:
        """The loop is about to begin: find what the script has made beside what it has prepared. frame: the script's. is_local:
        as `MutationGuard.find`."""
        following = self._following
        following.find(frame)
        self.held.parts.follow(following.schedulers, following.averages, following.beside)
        self._mutation_guard.find(frame, is_local)
        if self._compares:
            self._looking.is_local = is_local
            self._looking.begin(frame)
        if self.held.code is not None:
            self.held.code.look()
        if self._compiled is not None:
            self._compiled.compilations.watch()
        self.held.parts.header({})  # raises UserError now, if a value cannot travel

    def arrive(self, epochs: int, max_steps: int | None = None) -> int:
        """Everything is prepared: wait for a generation and for the state. Returns the epoch to begin with."""
        totals = (self._sampler.total_steps(epochs), self.recipe.max_steps, max_steps)
        known = [total for total in totals if total is not None]
        total_steps = min(known, default=None)
        self.stepping.prepare(total_steps, epochs)
        # The script may set something of its own in every step, which follows the rest of a state.
        samples = self._sampler.samples_per_step
        arrived = Arrived(
            total_steps,
            self._sampler.steps_per_epoch,
            samples,
            True,
            epochs,
            self.held.about_bytes,
            self.recipe.comparing.tensors,
            self.held.parts.divided is not None,
        )
        instruction = self._obey(arrived)
        assert isinstance(instruction, EnterLoop)
        self.script.epoch = instruction.epoch
        self.script.go(ScriptAt.BETWEEN)
        return instruction.epoch

    def epoch_begins(self, epoch: int) -> None:
        """The script's loop has come to `epoch`: values that others have set there hold now."""
        self.held.epoch_begins(epoch)
        self.held.parts.registered.of_epoch.begin(epoch)
        seed_everything(derive_seed(self.recipe.seed, "epoch begins", epoch))

    def of_epoch(self, function: Callable[[], Any]) -> Any:
        """What the function gives at the epoch's beginning (`state.epoch_values`). Raises UserError elsewhere."""
        epoch = self.script.epoch
        if self.script.at is not ScriptAt.BETWEEN or self.between.in_function or self.between.has_read(epoch):
            raise UserError(
                "run.epoch_begin() was called outside an epoch's beginning: call it in the loop over run.epochs(), before the "
                "loop over batches"
            )

        def seed(number: int) -> None:
            seed_everything(derive_seed(self.recipe.seed, "of epoch", epoch, number))

        return self.held.parts.registered.of_epoch.value(epoch, function, seed)

    def call_as_leader(self, callback: Callable[[], None]) -> None:
        """As soon as this worker leads, once. On the training thread, between two steps."""
        self._became_leader.append(callback)
        if self.is_leader and self.script.at is not ScriptAt.BEFORE:
            self._tell_leader()

    def _tell_leader(self) -> None:
        while self.is_leader and self._became_leader:
            self._became_leader.pop(0)()

    def batches(self) -> Iterator[Any]:
        """The micro-batches of this worker for the rest of the present epoch. Raises UserError where there can be none."""
        self._by_host = False
        self._begin_reading()
        has_run_bodies = False
        while isinstance(instruction := self._next_instruction(), RunStep):
            yield from self.run_step(instruction)
            has_run_bodies |= self.stepping.has_run_bodies
        if not has_run_bodies:  # joined in the epoch's last step, or began with a checkpoint of it
            done = self.held.next_step
            for step in range(max(done - len(self.recipe.updates.names), 0), done):
                yield from self.stepping.show(step)
        self._epoch_is_read()

    def _begin_reading(self) -> None:
        """A pass begins. Raises UserError where there can be none."""
        if self.script.at not in (ScriptAt.BETWEEN, ScriptAt.READING):
            raise UserError("batches are there in the loop over run.epochs(), and nowhere else")
        if self.script.at is ScriptAt.READING:
            raise UserError(
                self.stepping.left
                or "the loop over batches was left before its end, by `break` or an exception, and begun again: a step is "
                "trained by all workers or by none. Let it run on, or leave the loop over epochs, too"
            )
        self.script.go(ScriptAt.READING)
        self.held.batches_begin()
        self.stepping.look_again()
        if self._compares:
            self._looking.first_batches(sys._getframe())
        if (was := self.held.script_was) is not None:
            self.held.script_was = None
            self._remarks.on_restart(was, same_epoch=self.held.state_epoch == self.script.epoch)
        if self.held.owes_functions:
            self._first = self.between.call_functions()

    def next_step(self) -> RunStep | None:
        """The script wants its next step. None: there is none left in its epoch."""
        instruction = self._next_instruction()
        if isinstance(instruction, RunStep):
            return instruction
        self._epoch_is_read()
        return None

    def _next_instruction(self) -> Instruction:
        self.held.interlude = None  # that code is over
        return self._obey(StepWanted(self.script.epoch))

    def _epoch_is_read(self) -> None:
        self.script.go(ScriptAt.BETWEEN)
        seed_everything(derive_seed(self.recipe.seed, "epoch ends", self.script.epoch))
        self.between.epoch_read(self.script.epoch)

    def run_step(self, instruction: RunStep) -> Iterator[Any]:
        """The batches of this worker's part of a step, which is not applied if a collective fails meanwhile."""
        try:
            yield from self.stepping.run(instruction, looks_on=not self._by_host)
        except CommunicatorBroken as error:
            self._step_fails(error)
        except StateLost as error:
            self._end_diverged(exits.SPOILED, f"{error}: this worker ends, to be replaced")
        if self._cross_check.dismissed:
            self._failure = self._cross_check.dismissed
        if self.held.next_step > instruction.step:
            if self.between.functions_due:  # which joiners call, too, and which see what bodies have changed
                self._hand_over()
            self._first = self.between.step_applied()

    def _hand_over(self) -> None:
        try:
            self._transfers.hand_over()
        except CommunicatorBroken as error:
            self._failure = str(error)

    def steps_begin(self, counts_epochs: bool) -> None:
        """A host's pass over the steps of an epoch begins. counts_epochs: that after another one is of the next epoch.
        Raises UserError where there can be none."""
        for why, needs in (
            (self.stepping.evaluations.refuses, "optimizer.step(closure) in a loop"),
            (self.stepping.gathering.refuses, "a loop"),
        ):
            if why:
                raise UserError(
                    f"run.steps() was called, and {why}, which needs {needs} over batches: `for x, y in batches:`"
                )
        if self._growing is not None:
            raise UserError("the batch may grow (scaling), which needs a loop over batches, and run.steps() was called")
        if counts_epochs and self.script.at is ScriptAt.BETWEEN:
            self.epoch_begins(self.script.epoch + self._has_passed)
            self._has_passed = True
        self._by_host = True
        self._begin_reading()

    def seed_host(self, what: str, number: int) -> None:
        """Seed what a host does next."""
        seed_everything(derive_seed(self.recipe.seed, "host", what, number))

    def body_is_done(self) -> None:
        """A host's step is over for one virtual worker: its gradient is complete."""
        for optimizer in self.stepping.optimizers:
            self._step(optimizer)

    def optimizer_stepped(self, optimizer: int) -> None:
        """The script has called `step()` of this optimizer. Raises UserError where it may not."""
        if not self._by_host:
            self._step(optimizer)

    def computes_for(self, optimizer: torch.optim.Optimizer) -> bool:
        """Is the script in a loop body in which it has not stepped this optimizer yet?"""
        in_body = self.stepping.virtual_worker is not None and not self._by_host
        return in_body and not self._has_stepped(optimizer)

    def _step(self, optimizer: int) -> None:
        self._scan.body_ends()
        self._leaders_code.steps()
        if self.stepping.optimizer_stepped(optimizer):
            try:
                self.stepping.complete_own_part()
            except CommunicatorBroken as error:
                self._step_fails(error)
            except StateLost as error:
                self._end_diverged(exits.SPOILED, f"{error}: this worker ends, to be replaced")

    def _step_fails(self, error: CommunicatorBroken) -> None:
        """A step is not applied here. It is repeated, or another worker's state is taken over."""
        self._failure = str(error)
        if self.stepping.has_run_bodies and not self._by_host:
            self._remarks.step_given_up()

    def finish(self, epochs: int) -> None:
        """The loop over `epochs` epochs is over, or there is none. Nothing happens if it was over before.

        Raises UserError if it was left in the middle of a step.
        """
        if self.stepping.left:
            raise UserError(self.stepping.left)
        if self.script.at is not ScriptAt.OVER:
            self.script.go(ScriptAt.OVER)
            self.held.interlude = None
            if (was := self.held.script_was) is not None:
                self.held.script_was = None
                self._remarks.on_restart(was, same_epoch=False)
            together, counts = self.stepping.finished, not self.held.runs_again
            self._obey(LoopEnded(epochs))
            self._loader.close()
            if self.saves is not None:
                self._save_last(self.saves, together, counts)

    def _save_last(self, saves: Saves, together: bool, counts: bool) -> None:
        """The loop is over. together: that of all workers is. counts: this worker has run the same code as the others."""
        notes, entered = saves.left(), self._entered
        if entered is not None and self.world_size > 1:
            roster = entered.roster
            leader = roster.rank(roster.leader)
            silent = self._cross_check.unproved - {leader}
            self._last_saves = LastSaves(saves, self._control.communicator, leader, silent, together)
            registered = (
                [Note(REGISTERED, looked_at(self.held.parts.registered.values()))]
                if together and not self._by_host
                else []
            )
            self._last_saves.give([*notes, *registered], saves.look(), counts)
        for note in notes:
            note.publish()

    def left_early(self, by_error: bool) -> None:
        """The loop over epochs has been left by an exception, or else by `break` or `return`."""
        self._left_by_break = not by_error
        # Each worker has left another loop body: what the script draws behind the loop is the same again.
        seed_everything(derive_seed(self.recipe.seed, "left", self.held.next_step))
        if by_error and self.script.at is not ScriptAt.OVER:
            self.script.go(ScriptAt.LEFT)
            self._loader.close()

    def raised(self, error: BaseException) -> None:
        """The script ends by this error. A newcomer's ends this process as one that differs, where the error says that the script
        uses a value which it has not made: workers that have the state have run the same code."""
        check = self._cross_check
        if self._compares and isinstance(error, advice.UNBOUND) and check.rank in check.unproved | check.newcomers:
            me = check.names[check.rank]
            text = (
                f"{me} had just joined, and ended in code that other workers have run: {self._looking.of_error(error)}"
            )
            self._end_diverged(exits.UNLIKE, text)

    def explain(self, error: BaseException) -> None:
        """The script is about to end by this error. Where the job went on from a checkpoint, the message of an unbound name gets
        the reason: the loop had assigned the name in a step before the checkpoint."""
        if self.held.resumed and isinstance(error, NameError) and (reason := self._looking.reason(error)) is not None:
            error.args = (f"{error}: the job went on from a checkpoint, and {reason}",)

    def ended(self, reason: str) -> None:
        """The script ends without having finished. What it was still instructed to do is not done."""
        self._control.tell(ScriptEnded(reason))
        while not isinstance(self._control.next(), Continue | ExitScript):
            pass

    def _end_diverged(self, code: int, reason: str) -> NoReturn:
        """This worker's state, or its code, differs from that of the others."""
        self._control.tell(Diverged(code, reason))
        while True:
            self._control.next()

    # -- what the machine wants

    def _obey(self, fact: ThreadFact) -> Instruction:
        """Tell what has happened, and do what is to be done, until it is the script's turn: then that is returned."""
        happened: ThreadFact | None = fact
        if self._failure is not None and not isinstance(fact, LoopEnded):
            happened = CollectiveFailed(self._failure)
        self._failure = None
        while True:
            if self._first is not None:
                instruction, self._first = self._first, None
            else:
                if happened is not None:
                    self._control.tell(happened)
                instruction = self._control.next()
            match instruction:
                case EnterLoop() | RunStep() | EndEpoch() | Continue() | Resume():
                    self.held.script_resumes()
                    self._tell_leader()
                    return instruction
                case ExitScript(code):
                    if self.saves is not None and self.is_leader:
                        for note in self.saves.left():
                            note.publish()
                    raise ScriptExit(code)
            try:
                happened = self._carry_out(instruction)
            except CommunicatorBroken as error:
                happened = CollectiveFailed(str(error))
            except OtherCode as error:
                self._end_diverged(exits.OTHER_CODE, str(error))
            except Unlike as error:
                self._end_diverged(exits.UNLIKE, str(error))
            except (Unfilled, StateLost) as error:
                print(f"{error}: this worker ends, to be replaced", flush=True)
                raise ScriptExit(exits.SPOILED) from None

    def _carry_out(self, instruction: Instruction) -> ThreadFact | None:
        """Returns what has happened then, if anything. Raises CommunicatorBroken, OtherCode."""
        match instruction:
            case EnterGeneration():
                self._enter(instruction)
            case GiveUpStep(restore_buffers):
                self._transfers.forget()
                self.stepping.give_up(restore_buffers)
            case LoadCheckpoint() | ReceiveState() if self.between.in_function:
                raise Superseded(instruction)
            case LoadCheckpoint(generation):
                return self.held.load(generation)
            case ReceiveState(keep_own):
                return self._receive(keep_own)
            case ExchangeValues():
                return self._transfers.exchange_values()
            case GiveState():
                self._transfers.send_at_the_end()
            case SaveCheckpoint():
                self.held.save(instruction)
            case CompleteTransfers():
                return self._transfers.complete()
            case _:
                raise AssertionError(f"{instruction} is no instruction for now")
        return None

    def _enter(self, entered: EnterGeneration) -> None:
        """Go on in another generation."""
        self._entered = entered
        communicator = self._control.communicator
        self.stepping.enter(communicator, self.rank, self.world_size, entered.roster.rank(entered.roster.leader))
        self._transfers.enter(entered, communicator)
        if (divided := self.held.parts.divided) is not None:
            members = entered.roster.members
            divided.enter([each.worker for each in members], [each.gpu.server for each in members], entered.rank)
        self.comparison.enter(entered)
        self._cross_check.enter(entered, communicator)
        if self.saves is not None:
            self.saves.enter(self.world_size)
        self.between.enter(entered, communicator)

    def _receive(self, keep_own: bool) -> StepWanted | None:
        """Receive the state, and take part in the first step, if there is one, without hosting anything in it."""
        arrival = self._transfers.receive(keep_own)
        match arrival.instruction:
            case JoinStep() as step:
                updates = self.recipe.updates
                optimizers = updates.optimizers(step.step) if len(updates) > 1 else None
                header = arrival.incoming.header
                parameters, units = self.held.parts.trained_in(header, optimizers), self.held.parts.units_in(header)
                self.stepping.join(step, parameters, units, lambda: self._transfers.take(arrival))
                if self.between.functions_due:
                    self._control.tell(SharingBegun(resumes=False))
                    self._transfers.hand_over()
                    self._control.tell(SharingEnded())
                self._first = self.between.step_applied()
                if self._first is not None:
                    return None
            case other:
                assert isinstance(other, TakeState)
                if self.saves is not None:
                    self.saves.left()  # the others have compared that
                self._transfers.take(arrival)
        return StepWanted(self.script.epoch)
