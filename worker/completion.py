"""The end of each step on one worker: the reduction of its gradient, the word of all workers, the update.

It follows the worker's last loop body, and needs the other workers. If a collective fails, nothing has been applied. A step with
several evaluations of the loss (`gradients.evaluations`) comes here once for each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ..protocol.errors import UserError
from .body_values import BodyValues
from .communication.communicator import Communicator, CommunicatorBroken
from .comparison.crosscheck import CrossCheck
from .comparison.mutation_guard import MutationGuard
from .comparison.saves import Saves
from .comparison.states import Comparison
from .data.choice import Feed
from .data.scaling import Scale, at_rate
from .events import Evaluated, Event, PartComputed, StepApplied, Whole, WordRead
from .following import Following
from .gradients.evaluations import DISAGREE, SeveralEvaluations
from .gradients.hyperparameters import Hyperparameters
from .gradients.layout import Gradient
from .gradients.update import Update
from .inband import InBand, Part, Participant
from .pace import Pace
from .recipe import Recipe
from .sharding.divided import DividedState
from .sharing import Sharing
from .state.held import HeldState
from .state.transfers import StateTransfers
from .variables.body_counters import BodyCounters
from .virtual import derive_seed, seed_everything

if TYPE_CHECKING:  # torch's FSDP is loaded by scripts that use it
    from .sharding.fully import FullySharded


@dataclass(frozen=True)
class Watch:
    """Checks of this worker's steps: comparisons with other workers, and refusals of changes that no other worker would make.

    saves: None where a micro-batch has different bits on different workers (`determinism: none`)."""

    comparison: Comparison
    cross_check: CrossCheck
    mutation_guard: MutationGuard
    saves: Saves | None
    counters: BodyCounters | None = None  # None: the script's variables are not looked at


class Completion:
    """Completes one step after the other. For the training thread."""

    def __init__(
        self,
        recipe: Recipe,
        tell: Callable[[Event], None],
        held: HeldState,
        transfers: StateTransfers,
        hyperparameters: Hyperparameters,
        following: Following,
        values: BodyValues,
        update: Update,
        feed: Feed,
        watch: Watch,
        evaluations: Any,
        lanes: Any,
        finished: Callable[[], bool],
    ) -> None:
        """evaluations: `Evaluations` or `SeveralEvaluations`. lanes: `Lanes` or `RowLanes`. finished: returns whether the job has
        no step left."""
        self._recipe = recipe
        self._tell = tell
        self._held = held
        self._transfers = transfers
        self._hyperparameters = hyperparameters
        self._following = following
        self._values = values
        self._update = update
        self._sampler, self._loader = feed.sampling, feed.batching
        self._scale: Scale = feed.scale
        self._watch = watch
        self._evaluations = evaluations
        self._lanes = lanes
        self._finished = finished
        self.functions_due: Callable[[], bool] = lambda: False  # whether functions of `run.every` follow the last step
        divided = held.parts.divided
        self._divided = divided if isinstance(divided, DividedState) else None
        self._sharded: FullySharded | None = None if isinstance(divided, DividedState) else divided
        self.sharing = Sharing()
        self.pace = Pace(recipe.virtual_workers)
        self.in_band = InBand(watch.cross_check.blame)
        # The order decides which error a user gets. First come participants that name a call or value which only some workers
        # have. The comparison is next: if states differ, no later payload is read. Then the cross-check: no value may be taken
        # over from a worker with a wrong gradient.
        registered = held.parts.registered
        first: list[Participant] = [following, registered.state, watch.comparison, watch.cross_check]
        saves: list[Participant] = [each for each in (watch.saves, divided) if each is not None]
        last: list[Participant] = [
            self.sharing,
            update.clipping,
            hyperparameters,
            held.parts.extra_state,
            registered.virtual,
            self.pace,
        ]
        for participant in (*first, *saves, *last, *feed.participants):
            self.in_band.add(participant)

        # the generation in use
        self._communicator = Communicator.alone()
        self._leads = True

        # the step in progress
        self.part = Part(-1, ())
        self._rest = range(0)  # micro-batches of this worker behind the last of its bodies: they have no sample
        self._root = 0  # rank of the worker that hosts virtual worker 0
        self._proposal = 0
        self._next_workers: tuple[str, ...] = ()  # of the generation that this worker proposes
        self._decided = 0  # number of the generation that begins behind the step in progress; 0: none
        self._has_told = False  # whether the machine knows that this worker's part is computed
        self.updating = False  # whether the update is being made

    def enter(self, communicator: Communicator, rank: int, world_size: int, leader: int) -> None:
        """Complete the next steps in another generation. leader: the rank of its leader."""
        self._communicator = communicator
        self._leads = rank == leader
        self.pace.enter(rank, world_size, leader)
        self.in_band.enter(alone=world_size == 1)

    def begin(self, part: Part, rest: range, root: int, proposal: int, next_workers: tuple[str, ...] = ()) -> None:
        """Begin a step, before this worker's bodies.

        rest: micro-batches of this worker behind its last body. root: rank of the worker that hosts virtual worker 0. proposal:
        the generation that this worker proposes, with `next_workers`; 0: none."""
        self.part, self._rest, self._root = part, rest, root
        self._proposal, self._next_workers = proposal, next_workers
        self.sharing.begin()
        self._update.clipping.begin()
        self._communicator.part_begins()

    # -- this worker's part is computed

    def complete(self) -> None:
        """Complete the step after this worker's last body: reduce, and apply the update.

        Raises CommunicatorBroken, with nothing applied."""
        self._part_issued()
        if not self._evaluate():
            self._complete(self._part_computed)

    def join(self, take_state: Callable[[], None]) -> None:
        """Complete a step in which this worker receives the state, by `take_state`, before the update.

        Raises CommunicatorBroken, with nothing applied."""
        self._has_told = True  # a joining worker has no part
        while self._evaluate():
            pass
        self._complete(take_state)

    def rehearsed(self, exchange: Callable[[Communicator], None]) -> None:
        """End a pass over the bodies before the step's own (`gathering`), by an exchange. Raises CommunicatorBroken."""
        self._part_issued()
        self._part_computed()
        exchange(self._communicator)
        self.pace.others_came()
        self._tell(Evaluated())
        self._communicator.part_begins()

    def _part_issued(self) -> None:
        """Report that this worker's part is computed: at once, or on a device later."""
        self._has_told = False
        self._communicator.part_issued(self._part_computed)

    def _part_computed(self) -> None:
        if not self._has_told:
            self._has_told = True
            self.pace.computed()
            self._tell(PartComputed())

    def _complete(self, before_update: Callable[[], None]) -> None:
        """Reduce the gradient, unless an evaluation has done so; read the word and the payloads; apply the update.

        Raises CommunicatorBroken, with nothing applied."""
        part, gradient = self.part, None
        if isinstance(self._evaluations, SeveralEvaluations):
            self._issue()
        else:
            gradient = self._reduce(self._issue)
        proposal = self._decided = self.in_band.complete(self._communicator, part)
        self.pace.word_came()
        before_update()
        self._transfers.sent()
        self.in_band.read(part)
        self._held.results.told(part.step, self.sharing.values)
        if gradient is not None:
            for parameter, view in zip(self._lanes.present.layout.parameters, gradient.views, strict=True):
                parameter.grad = view
            if self._divided is not None:
                self._prepare_divided(self._divided, gradient)
            if self._sharded is not None:
                self._process_rows(self._sharded)
        self._tell(WordRead(proposal, self.pace.times, self.pace.hosting))
        self._apply(part)
        self.pace.applied()

    def _issue(self) -> None:
        self.in_band.issue(self._communicator, self.part, self._proposal)

    def _prepare_divided(self, divided: DividedState, gradient: Gradient) -> None:
        """Prepare the update of a divided optimizer state, so that applying it needs no other worker.

        Raises CommunicatorBroken, with nothing applied; StateLost.
        """
        lane, stepped = self._lanes.present, self._recipe.updates.optimizers(self.part.step)
        options = self._hyperparameters.values()
        try:
            self._hyperparameters.apply()
            optimizers = [self._held.parts.optimizers[each] for each in stepped]
            self._update.process(lane.parameters, optimizers, self._scale, self._items(), self._held.results)
            with at_rate(self._held.parts.optimizers, self._scale.rate):
                divided.prepare(self._communicator, lane.layout, gradient, self._held.next_step - 1)
        except CommunicatorBroken:
            self._hyperparameters.set_values(options)
            raise

    def _process_rows(self, sharded: FullySharded) -> None:
        """Average and clip this worker's rows of the gradient. Raises CommunicatorBroken, with nothing applied."""
        lane, stepped = self._lanes.present, self._recipe.updates.optimizers(self.part.step)
        options = self._hyperparameters.values()
        try:
            self._hyperparameters.apply()
            optimizers = [self._held.parts.optimizers[each] for each in stepped]
            norm = partial(sharded.norm, self._communicator)
            self._update.process(lane.parameters, optimizers, self._scale, self._items(), self._held.results, norm)
        except CommunicatorBroken:
            self._hyperparameters.set_values(options)
            raise

    def _reduce(self, beside: Callable[[], None]) -> Gradient:
        """Return the reduced gradient of the step's bodies, and share virtual worker 0's buffers. Raises CommunicatorBroken."""
        lane = self._lanes.present
        for micro_batch in self._rest:
            lane.accumulation.skip(micro_batch)
        assert lane.reducer is not None
        gradient: Gradient = lane.accumulation.reduce(lane.reducer, beside)
        self._values.buffers.share(self._communicator, self._root)
        return gradient

    # -- steps with several evaluations

    def _evaluate(self) -> bool:
        """End an evaluation of the loss. Returns whether another one follows. Raises CommunicatorBroken."""
        evaluations, communicator, lane = self._evaluations, self._communicator, self._lanes.present
        if not isinstance(evaluations, SeveralEvaluations):
            return False
        part = self.part
        losses = evaluations.told(part.hosted)
        gradient = self._reduce(lambda: evaluations.exchange(communicator, losses))
        evaluations.wait(communicator)
        decide = evaluations.decide_joining if part.joins else evaluations.decide
        agreed = decide(communicator, losses, gradient, lane.layout.parameters)
        self._part_computed()
        lane.accumulation.applied()
        if not agreed:
            self._refuse_disagreement()
        if not evaluations.goes_on:
            return False
        if not part.joins:  # a joiner's state may still be on its way, and must not change before the update
            self._transfers.sent()  # before `Evaluated`, since it waits for other workers
            self._held.settle()
            self._values.buffers.begin_again()
        self.pace.others_came()
        self._tell(Evaluated())
        lane.accumulation.begin()
        communicator.part_begins()
        return True

    def _refuse_disagreement(self) -> None:
        """Refuse a step whose evaluations have ended differently on different workers. Raises UserError; CommunicatorBroken."""
        self._issue()
        self.in_band.complete(self._communicator, self.part)
        self.in_band.read(self.part)  # the payloads may contain the cause: then this raises the more precise error
        raise UserError(DISAGREE.format(step=self.part.step))

    # -- the update

    def _apply(self, part: Part) -> None:
        held, lane, step = self._held, self._lanes.present, part.step
        held.settle()
        self._values.apply(part.joins)
        self._evaluations.catch_up()
        held.parts.registered.update_begins()
        self.updating = True
        try:
            seed_everything(derive_seed(self._recipe.seed, "update", step))
            if self._divided is not None:
                self._divided.put()
            self._update.apply(
                lane.parameters,
                self._recipe.updates.optimizers(step),
                self._scale,
                self._items(),
                held.results,
                processed=held.parts.divided is not None,
            )
            self._following.applied()
        finally:
            self.updating = False
        self._values.updated()
        for parameter in lane.parameters:
            parameter.grad = None
        lane.accumulation.applied()
        held.next_step = step + 1
        if self._divided is not None:
            self._divided.committed()
        if self._sharded is not None:
            self._sharded.committed(step)
        if self._watch.saves is not None:
            self._watch.saves.applied()
        epoch = self._next_epoch(step)
        self._loader.applied(step)
        if (next_epoch := self._next_epoch(step + 1)) != epoch:
            held.results.epoch_begins(next_epoch)
        finished = self._finished()
        if finished:
            self._watch.comparison.at_the_end(self._communicator, part)
        whole = Whole.TO_END
        if held.parts.divided is not None:
            whole = held.parts.divided.assemble(self._communicator, finished, self._leads)
            self._watch.mutation_guard.moved()
        self._tell(StepApplied(step, self._sampler.next_epoch, self._watch.cross_check.proof_goes_on, whole))

    def end_sharded(self, sharded: FullySharded) -> None:
        """End a step of a model under `fully_shard`, when the script asks for the next batch. Raises StateLost."""
        stay = self._next_workers if self._decided == self._proposal else None
        step = self.part.step
        ends = self._next_epoch(step + 1) != self._next_epoch(step)
        looks = ends or self.functions_due()
        sharded.step_ends(self._communicator, self._finished(), self._decided > 0, stay, looks)
        self._watch.mutation_guard.moved()

    def _next_epoch(self, step: int) -> int:
        """Return the epoch of `step`, which has to be the next step of the sampler."""
        known, steps = self._sampler.next_epoch, self._sampler.steps_per_epoch
        if known is not None:
            return known
        assert steps is not None, "of data with an index that is known"
        return step // steps

    def _items(self) -> float:
        """Return the divisor of the step's gradient; 0: none. Raises UserError if no loop body has shared it."""
        name = self._recipe.normalize
        if name is None:
            return 0.0
        if name not in self.sharing.values:
            raise UserError(f"prepare() was given normalize={name!r}: call run.share({name}=...) in every loop body")
        return self.sharing.values[name].total
