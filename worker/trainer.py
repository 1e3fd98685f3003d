"""The training thread's side of elasticity: the script's loop, and the work between its steps.

The worker's state machine (`training`) decides what the thread does: `Trainer._obey` reports facts to it, and carries out its
instructions. `stepping` runs the steps, `state.held` holds the state, and `state.transfers` moves it.

*Between* steps the generation may change. Holders of the state train on, and send it to the joiners while they compute. A
joiner takes part in that first step without hosting a virtual worker, receives the state, applies the same reduced gradient,
and then equals the holders bit for bit. The user's own registered values follow at the next boundary, after the user's code for
the step has run on every worker.

A step whose collectives fail is not applied here. The next generation runs it again, or runs the step after it if another
survivor has applied the failed one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ..protocol import exits
from ..protocol.errors import UserError
from .code import Code, OtherCode
from .communication.communicator import CommunicatorBroken
from .comparison.crosscheck import CrossCheck
from .comparison.last_saves import LastSaves
from .comparison.mutation_guard import MutationGuard
from .comparison.remarks import Remarks
from .comparison.saves import REGISTERED, Note, Saves, looked_at
from .comparison.states import Comparison
from .compiled import Compiled
from .completion import Watch
from .data.choice import Feed
from .data.likeness import Likeness, Unlike
from .data.loading import Loader
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
    Progressed,
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
from .leading import LeadersCode
from .operators import Scan
from .recipe import Recipe
from .results import Result
from .script import Script, ScriptAt
from .sharding.divided import DividedState
from .sharding.division import StateLost
from .source.save_calls import is_for_leader
from .state.checkpoint import CheckpointWriter
from .state.epoch_values import Unfilled
from .state.held import HeldState
from .state.training_state import TrainingState
from .state.transfers import StateTransfers
from .state.values import ScriptValues
from .step_boundary import Function, ScriptExit, StepBoundary, Superseded
from .stepping import Stepping
from .value_kinds import leave_out
from .variables import advice
from .variables.body_counters import BodyCounters
from .variables.looking import Looking
from .variables.script_variables import ScriptVariables
from .virtual import derive_seed, seed_everything

if TYPE_CHECKING:  # torch's FSDP is loaded by scripts that use it
    from .sharding.fully import FullySharded


@dataclass(frozen=True)
class Shared:
    """Checkpoints of a worker in a cluster, and comparisons of its data, code and compiled artefacts with other workers'."""

    writer: CheckpointWriter | None = None
    likeness: Likeness | None = None
    code: Code | None = None
    compiled: Compiled | None = None


class Trainer:
    """The training of one job on this worker. Driven by `run.Run`; single-threaded."""

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
        """functions: those given to `run.every`; the sequence may grow until the loop begins. known: objects that the script has
        from the runtime, which carries them itself."""
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
        self._compares = shared.writer is not None  # the script's values, with other workers' and checkpoints'
        self._looking = Looking(
            state,
            beside={**feed.given, **update.functions},
            known=leave_out(known),
            batch_size=getattr(feed.sampling, "batch_size", None),
            samplers=frozenset(type(each).__name__ for each in feed.samplers),
            reads_ahead=isinstance(feed.batching, Loader) and feed.batching.reads_ahead,
        )
        self._counters = BodyCounters(self._looking) if self._compares else None
        self._variables: ScriptVariables | None = None  # None: not carried, or the loop has not begun
        counted = self._counters.names if self._counters is not None else frozenset
        self._remarks = Remarks(self._looking, lambda text: control.tell(Noticed(text)), counted)
        self._cross_check = CrossCheck(
            recipe.virtual_workers,
            recipe.seed,
            recipe.comparing.on_divergence,
            self._end_diverged,
            self._looking,
            self._remarks,
            self._counters.has_lost if self._counters is not None else lambda: False,
        )
        self._leaders_code = LeadersCode(self._seed_leaders_code, lambda text: control.tell(Noticed(text)))
        self.held.looks = lambda: self._looking.plain(sys._getframe())
        self.comparison = Comparison(self.held, recipe.comparing, self._cross_check)
        self.saves = self._saves_of(recipe)
        self._last_saves: LastSaves | None = None  # from the end of the loop on, unless this worker is alone
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
            Watch(self.comparison, self._cross_check, self._mutation_guard, self.saves, self._counters),
            self._end_without_parts,
        )
        self._scan = Scan(recipe.agnostic, recipe.device, control.tell)
        self.stepping.body_begins = self._body_begins
        self.step_boundary = StepBoundary(
            recipe.virtual_workers,
            recipe.seed,
            recipe.device,
            control.tell,
            self._obey,
            self.held,
            self.script,
            functions,
            self._remarks,
        )
        self.stepping.completion.functions_due = lambda: self.step_boundary.functions_due
        if self.sharded is not None:
            self.sharded.leads = lambda: self.is_leader
        self._first: Instruction | None = None  # to be carried out before all others
        self._entered: EnterGeneration | None = None  # the generation in use
        self._failure: str | None = None  # reason why its communicator cannot be used any more
        self._left_by_break = False
        self._by_host = False  # whether a host (`integrations`) runs the loop, and ends its bodies by `body_is_done`
        self._has_passed = False  # whether a host has begun a pass that counts as an epoch
        self._became_leader: list[Callable[[], None]] = []  # callbacks that have yet to be called

    def _body_begins(self) -> None:
        if not self._by_host:
            self._leaders_code.body_begins()
        self._scan.body_begins()

    # -- properties for the script

    def asked_for_place(self, is_first: bool) -> None:
        """Note that the script has read a value that differs between workers: its rank, or whether it leads.

        is_first: this worker has rank 0, or leads."""
        if self.stepping.in_batch and not self._by_host:
            self._cross_check.asked_for_place()
            self._leaders_code.reads(is_first)

    def _seed_leaders_code(self) -> None:
        seed_everything(derive_seed(self.recipe.seed, "leader", self.stepping.number, self.held.next_step))

    @property
    def sharded(self) -> FullySharded | None:
        """The model's parameters, if they are divided among the workers by `fully_shard`."""
        divided = self.held.parts.divided
        return None if isinstance(divided, DividedState) else divided

    def _end_without_parts(self, reason: str) -> NoReturn:
        self._end_diverged(exits.SPOILED, f"{reason}: this worker ends, to be replaced")

    @property
    def has_place(self) -> bool:
        """Whether this worker is in a generation, and so has a rank."""
        return self._entered is not None

    @property
    def is_leader(self) -> bool:
        """Whether this worker leads the generation in use."""
        entered = self._entered
        return entered is not None and entered.roster.workers[entered.rank] == entered.roster.leader

    @property
    def generation(self) -> int:
        """Number of the generation in use; 0: none yet."""
        return self._entered.roster.generation if self._entered is not None else 0

    @property
    def result(self) -> Result:
        """Results of the applied steps, equal on all workers at the script's present position."""
        where, results = self._where(), self.held.results
        if where in IN_BODY:
            return results.before
        if self.stepping.shows:
            return results.last
        if where is Where.AGAIN:
            return results.begun_with(self.script.epoch + self.step_boundary.has_read(self.script.epoch))
        return results.last

    @property
    def rank(self) -> int:
        return self._entered.rank if self._entered else 0

    @property
    def world_size(self) -> int:
        return len(self._entered.roster.members) if self._entered else 1

    @property
    def steps_done(self) -> int:
        """Number of global steps applied since the job's beginning, as the script at its present position has to see it.

        After `optimizer.step()` of any body, the step in progress counts, too. At an epoch's end, it is the number of steps
        applied by then, even if the state is already past that epoch."""
        if self._where() is Where.AGAIN and self.step_boundary.has_read(self.script.epoch):
            return self.result.steps
        if self.stepping.shows:
            return self.stepping.steps_shown
        ahead = self.stepping.where is Where.BEHIND_STEP
        return self.held.next_step + ahead

    @property
    def steps_per_epoch(self) -> int | None:
        """Number of global steps in an epoch; of units (`scaling`), if the batch may grow. None: unknown."""
        growing = self._growing
        return growing.units_per_epoch if growing is not None else self._sampler.steps_per_epoch

    @property
    def grows(self) -> bool:
        """Whether the batch may grow."""
        return self._growing is not None

    @property
    def batch_factor(self) -> int:
        """Factor of the batch in the body's step; between two steps, in the next one."""
        growing = self._growing
        return 1 if growing is None else growing.factor_at(self.stepping.step)

    def set_batch(self, factor: Any, rate: Any) -> None:
        """Change the batch from the next step on, as the script asks. Raises UserError."""
        growing = self._growing
        if growing is None:
            raise UserError(
                "run.set_batch() was called without run.scaling(), which says before prepare() how far it may go"
            )
        growing.check(factor, rate)
        factor, rate = self.step_boundary.agree([factor, rate], None, "run.set_batch()")
        if self.step_boundary.in_function or not self.held.runs_again:  # otherwise the state already has the change
            growing.ask(self.held.next_step, factor, rate)

    def end_after(self, steps: int) -> None:
        """Limit the job to this number of steps, before its loop begins."""
        known = self.recipe.max_steps
        self.recipe = replace(self.recipe, max_steps=steps if known is None else min(steps, known))

    @property
    def over(self) -> bool:
        """Whether the script has come to the end of its training."""
        return self.script.at is ScriptAt.OVER

    @property
    def broken_off(self) -> bool:
        """Whether an exception has ended the training, or the script has a batch without a call of `optimizer.step()`."""
        return self.script.at is ScriptAt.LEFT or (self.stepping.in_batch and not self._left_by_break)

    def _saves_of(self, recipe: Recipe) -> Saves | None:
        if not recipe.comparing.tensors:
            return None
        return Saves(self._cross_check, self._looking, self._where, lambda: self.stepping.in_last_body)

    def to_save(self, name: str, value: Any, target: Path) -> Path | None:
        """Compare a value that the script saves with the values that other workers save (`saves`). `name`: as the script gave it.

        Returns the path to which the leader writes now; None: nothing is written yet. After the loop, the leader waits here for
        the others' values, and ends its process if they differ."""
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
        if where is not Where.BETWEEN or self.step_boundary.in_function:
            return where
        if self.script.at in (ScriptAt.BEFORE, ScriptAt.OVER, ScriptAt.LEFT):
            return Where.OUTSIDE
        return Where.AGAIN if self.held.runs_again else Where.BETWEEN

    def _has_stepped(self, optimizer: torch.optim.Optimizer) -> bool:
        return self.stepping.has_stepped(optimizer)

    # -- the loop

    def find(self, frame: FrameType | None, is_local: Callable[[str], bool] = lambda name: False) -> None:
        """Find the objects that the script has made without `prepare`, when the loop is about to begin.

        frame: the script's. is_local: as in `MutationGuard.find`. Raises UserError if a value of the state cannot be carried."""
        following = self._following
        following.find(frame)
        if self.sharded is not None and (following.averages or following.beside):
            raise UserError(
                "the script has an averaged model, or trains parameters beside the model's: with fully_shard the "
                "model's parameters alone are divided. Leave one of them out"
            )
        self.held.parts.follow(following.schedulers, following.averages, following.beside)
        self._mutation_guard.find(frame, is_local)
        if not self.recipe.changes_gradients:
            self.stepping.clip_calls.begin(frame)
        if self._compares:
            self._looking.is_local = is_local
            self._looking.begin(frame)
            modules = self.held.parts.modules
            assert self._counters is not None
            self.held.variables = self._variables = ScriptVariables(
                self._looking, self._counters, lambda: [each for _, each in modules], self.recipe.device
            )
        if self.held.code is not None:
            self.held.code.look()
        if self._compiled is not None:
            self._compiled.compilations.watch()
        self.held.parts.header({})  # raises UserError now, if a value cannot travel

    def arrive(self, epochs: int, max_steps: int | None = None) -> int:
        """Wait for a generation and for the state, when the script is prepared. Returns the epoch to begin with."""
        totals = (self._sampler.total_steps(epochs), self.recipe.max_steps, max_steps)
        known = [total for total in totals if total is not None]
        total_steps = min(known, default=None)
        self.stepping.prepare(total_steps, epochs)
        # Registered values always follow the rest of a state (`True`): the script may set some in every step.
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
            self.sharded is not None,
        )
        instruction = self._obey(arrived)
        assert isinstance(instruction, EnterLoop)
        self.script.epoch = instruction.epoch
        self.script.go(ScriptAt.BETWEEN)
        return instruction.epoch

    def epoch_begins(self, epoch: int) -> None:
        """Begin `epoch` of the script's loop. Values that a received state has for this epoch take effect."""
        self.held.epoch_begins(epoch)
        self.held.parts.registered.of_epoch.begin(epoch)
        if self._variables is not None and not self._by_host:
            self._variables.epoch_begins(epoch)
        seed_everything(derive_seed(self.recipe.seed, "epoch begins", epoch))

    def of_epoch(self, function: Callable[[], Any]) -> Any:
        """Return the function's result at the epoch's beginning (`state.epoch_values`). Raises UserError elsewhere."""
        epoch = self.script.epoch
        if (
            self.script.at is not ScriptAt.BETWEEN
            or self.step_boundary.in_function
            or self.step_boundary.has_read(epoch)
        ):
            raise UserError(
                "run.epoch_begin() was called outside an epoch's beginning: call it in the loop over run.epochs(), before the "
                "loop over batches"
            )

        def seed(number: int) -> None:
            seed_everything(derive_seed(self.recipe.seed, "of epoch", epoch, number))

        return self.held.parts.registered.of_epoch.value(epoch, function, seed)

    def call_as_leader(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, as soon as this worker leads: on the training thread, between two steps."""
        self._became_leader.append(callback)
        if self.is_leader and self.script.at is not ScriptAt.BEFORE:
            self._tell_leader()

    def _tell_leader(self) -> None:
        while self._became_leader and self.is_leader:
            self._became_leader.pop(0)()

    def batches(self) -> Iterator[Any]:
        """Yield this worker's micro-batches for the rest of the present epoch.

        Raises UserError if the script is not in its loop over epochs, or has left this loop in the middle of a step."""
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
            if self._variables is not None:
                self._variables.bodies_shown()
        self._epoch_is_read()

    def _begin_reading(self) -> None:
        """Begin a pass over batches. Raises UserError if the script is not in its loop over epochs, or is in another pass."""
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
        if self._variables is not None and not self._by_host:
            self._variables.pass_begins(self.script.epoch)
        if (was := self.held.script_was) is not None:
            self.held.script_was = None
            same_epoch, steps = self.held.state_epoch == self.script.epoch, self._sampler.steps_per_epoch
            within = same_epoch and (not steps or self.held.next_step % steps > 0)
            restored = self._variables.restored if self._variables is not None else ()
            self._remarks.on_restart(was, same_epoch, within, restored)
        if self.held.owes_functions:
            self._first = self.step_boundary.call_functions()

    def next_step(self) -> RunStep | None:
        """Return the script's next step; None: its epoch has no step left."""
        instruction = self._next_instruction()
        if isinstance(instruction, RunStep):
            return instruction
        self._epoch_is_read()
        return None

    def _next_instruction(self) -> Instruction:
        self.held.interlude = None  # the script's code between two steps has ended
        return self._obey(StepWanted(self.script.epoch))

    def _epoch_is_read(self) -> None:
        self.script.go(ScriptAt.BETWEEN)
        seed_everything(derive_seed(self.recipe.seed, "epoch ends", self.script.epoch))
        self.step_boundary.epoch_read(self.script.epoch)

    def run_step(self, instruction: RunStep) -> Iterator[Any]:
        """Yield the batches of this worker's part of a step. If a collective fails, the step is not applied."""
        try:
            yield from self.stepping.run(instruction, looks_on=not self._by_host)
        except CommunicatorBroken as error:
            self._step_fails(error)
        except StateLost as error:
            self._end_diverged(exits.SPOILED, f"{error}: this worker ends, to be replaced")
        if self._cross_check.dismissed:
            self._failure = self._cross_check.dismissed
        if self.held.next_step > instruction.step:
            if self.step_boundary.functions_due:  # joiners call them, too, and need the changes that bodies have made
                self._hand_over()
            self._first = self.step_boundary.step_applied()

    def _hand_over(self) -> None:
        try:
            self._transfers.hand_over()
        except CommunicatorBroken as error:
            self._failure = str(error)

    def steps_begin(self, counts_epochs: bool) -> None:
        """Begin a host's pass over the steps of an epoch. counts_epochs: each further pass is the next epoch.

        Raises UserError as `batches`, and if the job needs a loop over batches in the script."""
        for why, needs in (
            (self.stepping.evaluations.refuses, "optimizer.step(closure) in a loop"),
            (self.stepping.gathering.refuses, "a loop"),
        ):
            if why:
                raise UserError(
                    f"run.steps() was called, and {why}, which needs {needs} over batches: `for x, y in batches:`"
                )
        if self.sharded is not None:
            raise UserError(
                "the model is under fully_shard, which needs a loop over batches, and run.steps() was called"
            )
        if self._growing is not None:
            raise UserError("the batch may grow (scaling), which needs a loop over batches, and run.steps() was called")
        if counts_epochs and self.script.at is ScriptAt.BETWEEN:
            self.epoch_begins(self.script.epoch + self._has_passed)
            self._has_passed = True
        self._by_host = True
        self._begin_reading()

    def seed_host(self, what: str, number: int) -> None:
        """Seed the generators for an activity of a host. `what`, `number`: which activity; they make its seed unique."""
        seed_everything(derive_seed(self.recipe.seed, "host", what, number))

    def body_is_done(self) -> None:
        """End the body of one virtual worker in a host's step: its gradient is complete."""
        for optimizer in self.stepping.optimizers:
            self._step(optimizer)

    def optimizer_stepped(self, optimizer: int) -> None:
        """Handle the script's call of this optimizer's `step()`; ignored for a host. Raises UserError for a call out of turn."""
        if not self._by_host:
            self._step(optimizer)

    def computes_for(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether the script is in a loop body in which it has not stepped this optimizer yet."""
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
        """Note that a step is not applied here. It will be repeated, or another worker's state taken over."""
        self._failure = str(error)
        if self.stepping.has_run_bodies and not self._by_host:
            self._remarks.step_given_up()

    def finish(self, epochs: int) -> None:
        """End the training after the loop over `epochs` epochs, or in a script without that loop. Further calls do nothing.

        Raises UserError if the loop over batches was left in the middle of a step.
        """
        if self.stepping.left:
            raise UserError(self.stepping.left)
        if self.script.at is not ScriptAt.OVER:
            self.script.go(ScriptAt.OVER)
            self.held.interlude = None
            self.gather_parameters()
            if self._variables is not None:
                self._variables.loop_ends()
            if (was := self.held.script_was) is not None:
                self.held.script_was = None
                self._remarks.on_restart(was, same_epoch=False, within=False)
            together, counts = self.stepping.finished, not self.held.runs_again
            self._obey(LoopEnded(epochs))
            self._loader.close()
            if self.saves is not None:
                self._save_last(self.saves, together, counts)

    def gather_parameters(self) -> None:
        """Let this worker have all parameters under `fully_shard`, if the script has ended the training by `break` or
        `run.stop()`.
        """
        if self.sharded is None or self._entered is None:
            return
        try:
            self.sharded.gather(self._control.communicator)
        except CommunicatorBroken as error:
            self._end_without_parts(f"the parameters could not be gathered behind the loop ({error})")

    def _save_last(self, saves: Saves, together: bool, counts: bool) -> None:
        """Begin the comparison of files saved after the loop (`last_saves`).

        together: the loops of all workers are over. counts: this worker has run the same code as the others."""
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
        """Note that the script has left the loop over epochs: by an exception, or else by `break` or `return`."""
        self._left_by_break = not by_error
        # Each worker has left another loop body. Reseed, so that the script draws the same numbers everywhere after the loop.
        seed_everything(derive_seed(self.recipe.seed, "left", self.held.next_step))
        if by_error and self.script.at is not ScriptAt.OVER:
            self.script.go(ScriptAt.LEFT)
            self._loader.close()

    def raised(self, error: BaseException) -> None:
        """End this process as one that differs, if a newcomer's script ends by an error that says that a value is missing.

        The workers that gave it the state have run the same code, so the script depends on a value that it has not made here.
        Otherwise return: the error is the script's own."""
        check = self._cross_check
        if self._compares and isinstance(error, advice.UNBOUND) and check.rank in check.unproved | check.newcomers:
            me = check.names[check.rank]
            text = (
                f"{me} had just joined, and ended in code that other workers have run: {self._looking.of_error(error)}"
            )
            self._end_diverged(exits.UNLIKE, text)

    def explain(self, error: BaseException) -> None:
        """Add the reason to the message of an unbound name that ends the script after the job went on from a checkpoint.

        The reason: the loop had assigned the name in a step before the checkpoint."""
        if self.held.resumed and isinstance(error, NameError) and (reason := self._looking.reason(error)) is not None:
            error.args = (f"{error}: the job went on from a checkpoint, and {reason}",)

    def ended(self, reason: str) -> None:
        """Report that the script ends without having finished its loop. Instructions that still come are not carried out."""
        self._control.tell(ScriptEnded(reason))
        while not isinstance(self._control.next(), Continue | ExitScript):
            pass

    def _end_diverged(self, code: int, reason: str) -> NoReturn:
        """End this process, since its state, code or results differ from those of the others."""
        self._control.tell(Diverged(code, reason))
        while True:
            self._control.next()

    # -- instructions of the state machine

    def _obey(self, fact: ThreadFact) -> Instruction:
        """Report a fact and carry out the machine's instructions. Returns the first one that lets the script go on."""
        happened: ThreadFact | None = fact
        if not isinstance(fact, Progressed):  # the failure counts when the script's code between two steps has ended
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
        """Carry out one instruction. Returns the resulting fact, if there is one.

        Raises CommunicatorBroken, OtherCode, Unlike, Unfilled, StateLost; Superseded in a function of `run.every`."""
        match instruction:
            case EnterGeneration():
                self._enter(instruction)
            case GiveUpStep(restore_buffers):
                self._transfers.forget()
                self.stepping.give_up(restore_buffers)
            case LoadCheckpoint() | ReceiveState() if self.step_boundary.in_function:
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
        """Train on in another generation."""
        self._entered = entered
        communicator = self._control.communicator
        self.stepping.enter(communicator, self.rank, self.world_size, entered.roster.rank(entered.roster.leader))
        self._transfers.enter(entered, communicator)
        members = entered.roster.members
        workers, divided = [each.worker for each in members], self.held.parts.divided
        if isinstance(divided, DividedState):
            divided.enter(workers, [each.gpu.server for each in members], entered.rank)
        elif divided is not None:
            divided.enter(workers, entered.rank, {each.target_rank for each in entered.transfers})
        if self._variables is not None:
            self._variables.enter(self.world_size)
        self.comparison.enter(entered)
        self._cross_check.enter(entered, communicator)
        if self.saves is not None:
            self.saves.enter(self.world_size)
        self.step_boundary.enter(entered, communicator)

    def _receive(self, keep_own: bool) -> StepWanted | None:
        """Receive the state, and take part in the generation's first step, if any is left, without hosting a virtual worker."""
        arrival = self._transfers.receive(keep_own)
        match arrival.instruction:
            case JoinStep() as step:
                updates = self.recipe.updates
                optimizers = updates.optimizers(step.step) if len(updates) > 1 else None
                header = arrival.incoming.header
                parameters, units = self.held.parts.trained_in(header, optimizers), self.held.parts.units_in(header)
                self.stepping.join(step, parameters, units, lambda: self._transfers.take(arrival))
                if self.step_boundary.functions_due:
                    self._control.tell(SharingBegun(resumes=False))
                    self._transfers.hand_over()
                    self._control.tell(SharingEnded())
                self._first = self.step_boundary.step_applied()
                if self._first is not None:
                    return None
            case other:
                assert isinstance(other, TakeState)
                if self.saves is not None:
                    self.saves.left()  # discarded: the other workers have compared these saves
                self._transfers.take(arrival)
        return StepWanted(self.script.epoch)
