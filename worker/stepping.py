"""Execution of global steps, over the virtual workers that this worker hosts (design: worker-runtime 1-4).

Each worker runs the loop body for its contiguous range of the job's N virtual workers, one after the other, and keeps their
gradients as nodes of one balanced tree. All workers complete the tree together and apply the same update. The control word
(`inband`), in which the leader commits a new generation, is reduced beside the gradients.

Every worker except a joiner runs the body at least once in a step, because a script may do something once per step that has to
happen on every worker. A worker whose virtual workers have no sample in a short step runs the body on the batch of virtual
worker 0, and that gradient is not used.

If the optimizer evaluates the loss of a step several times (`gradients.evaluations`), all of the step's bodies run once for
each evaluation, on the same batches. The control word follows the last evaluation.
If bodies gather tensors of all virtual workers (`gathering`), they also run in earlier passes, whose results do not count.

A step whose collectives fail is not applied here (`give_up`). A joiner takes part in a step without hosting a virtual worker
(`join`): it receives the state meanwhile, and applies the same reduced gradient to it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ..protocol.errors import UserError
from .body_values import BodyValues
from .communication.communicator import Communicator, CommunicatorBroken
from .completion import Completion, Watch
from .data.choice import Feed
from .data.fetching import move_to
from .data.scaling import Scale
from .events import Evaluated, Event, JoinStep, RunStep
from .following import Following, Where
from .gathering import COUNTS, GIVES, Alone, Gathering
from .gradients.clip_calls import ClipCalls
from .gradients.evaluations import Evaluations, SeveralEvaluations
from .gradients.hyperparameters import Hyperparameters
from .gradients.lanes import Lanes
from .gradients.update import Update
from .hosting import interleaved
from .inband import Part, exchange
from .plain import inline, pack, restored, unpack
from .recipe import Recipe
from .sharding.divided import DividedState
from .state.held import HeldState
from .state.transfers import StateTransfers
from .variables.body_counters import BodyCounters
from .virtual import derive_seed, seed_everything

if TYPE_CHECKING:  # torch's FSDP is loaded by scripts that use it
    from .sharding.fully import FullySharded
    from .sharding.rounds import Rounds

# Values in place of a virtual worker's number, for bodies whose gradient the job does not use.
AGAIN = -1  # the body runs on a batch of virtual worker 0
REHEARSED = -3  # and below: the body of virtual worker 0, 1, ... in a pass before the step's own (`gathering`)
PROBE = -2  # the body runs for the virtual worker that is cross-checked in this step, and that another worker hosts


class Stepping:
    """This worker's part of each step. For the training thread."""

    def __init__(
        self,
        recipe: Recipe,
        tell: Callable[[Event], None],
        held: HeldState,
        transfers: StateTransfers,
        hyperparameters: Hyperparameters,
        following: Following,
        update: Update,
        feed: Feed,
        watch: Watch,
        lost: Callable[[str], NoReturn],
    ) -> None:
        """lost: ends this process, whose part of the state has been lost for a reason."""
        self._recipe = recipe
        self._tell = tell
        self._held = held
        self._transfers = transfers
        self._values = BodyValues(held.parts, hyperparameters, following, watch.mutation_guard)
        self._update = update
        self._sampler, self._loader = feed.sampling, feed.batching
        self._scale: Scale = feed.scale
        self._comparison = watch.comparison
        self._cross_check = watch.cross_check
        self._saves = watch.saves
        # Counters are those of one worker alone if each of its bodies runs once in a step, for one micro-batch.
        once = len(recipe.updates) == 1 and not recipe.gathers and feed.growing is None
        self._counters = watch.counters if once else None
        registered = held.parts.registered
        registered.state.device = registered.virtual.device = recipe.device
        self.evaluations = Evaluations.of(held.parts.optimizers, recipe.virtual_workers)
        registered.state.refuses = self.evaluations.refuses
        gathers = recipe.gathers and recipe.virtual_workers > 1
        self.gathering = Gathering(recipe.virtual_workers, recipe.device) if gathers else Alone()
        self._total_steps: int | None = 0
        self._epochs = 0

        # the generation in use
        self._communicator = Communicator.alone()
        self._rank = 0
        self._ranges: tuple[range, ...] = ()
        self._root = 0  # rank of the worker that hosts virtual worker 0

        # the step in progress
        self._step = -1
        self._hosted: list[int] = []  # micro-batches; without scaling, the numbers of their virtual workers
        self._current: int | None = None  # virtual worker whose batch the script has, until `optimizer.step()`
        self._stepped: set[int] = set()  # positions of the optimizers that the script has stepped for this batch
        self._batches: dict[int, Any] = {}  # by virtual worker: copies for bodies that run several times on one batch
        self._looks_on = True
        self.shows = False  # whether the loop body runs for a step that other workers have applied
        self._checked: int | None = None  # virtual worker whose micro-batch all workers compute in this step
        self._sent: Any = None  # the checked virtual worker's batch, if its host has sent it
        self.has_run_bodies = False  # for the step in progress
        self.in_last_body = False  # whether the script is in this worker's last body of the step in progress
        self._reading = False  # whether the script has a batch, and has not yet asked for the next
        self.left = ""  # error message if the script has left its loop in the middle of a step
        self.body_begins: Callable[[], None] = lambda: None  # called before the script gets a batch
        divided = held.parts.divided
        self._sharded: FullySharded | None = None if isinstance(divided, DividedState) else divided
        self._rounds: Rounds | None = None  # of a model under fully_shard
        self._lanes = self._new_lanes(lost)
        self.completion = Completion(
            recipe,
            tell,
            held,
            transfers,
            hyperparameters,
            following,
            self._values,
            update,
            feed,
            watch,
            self.evaluations,
            self._lanes,
            lambda: self.finished,
        )
        self.clip_calls = ClipCalls(
            self._lanes,
            update.scaler,
            held.parts.named_parameters,
            lambda: self._current if self._reading else None,
            lambda: self.optimizers,
            self.clip,
        )
        if self._sharded is not None:
            self.clip_calls.refuses = (
                "clip_grad_norm_() was called in a loop body, and with fully_shard no worker has a micro-batch's "
                "gradient, of which the call returns the norm: write run.clip(1.0), or prepare(…, max_grad_norm=1.0)"
            )

    def _new_lanes(self, lost: Callable[[str], NoReturn]) -> Any:
        recipe, parts = self._recipe, self._held.parts
        if self._sharded is None:
            return Lanes(
                recipe.updates,
                parts.optimizers,
                parts.trained(),
                recipe.virtual_workers,
                recipe.canonical,
                recipe.overlap,
            )
        from .sharding.lanes import RowLanes

        self._rounds = self._sharded.rounds(
            recipe.virtual_workers,
            lambda virtual_worker: self.weight(virtual_worker) if recipe.normalize is None else 1.0,
            lambda virtual_worker: self._sampler.has_samples(self._step, virtual_worker),
            lost,
        )
        return RowLanes(self._sharded, self._rounds)

    def prepare(self, total_steps: int | None, epochs: int) -> None:
        """Prepare for the loop. It ends after `total_steps` steps (None: unknown) or after `epochs` epochs."""
        self._total_steps, self._epochs = total_steps, epochs
        self.look_again()
        self._lanes.prepare()

    def enter(self, communicator: Communicator, rank: int, world_size: int, leader: int = 0) -> None:
        """Run the next steps in another generation. leader: the rank of its leader."""
        self._communicator, self._rank = communicator, rank
        self.completion.enter(communicator, rank, world_size, leader)
        self._lanes.enter(world_size)
        self._held.parts.registered.virtual.alone = world_size == 1
        self._ranges = ()

    @property
    def in_batch(self) -> bool:
        """Whether the script has a batch for which it has not yet called `optimizer.step()`."""
        return self._current is not None

    @property
    def finished(self) -> bool:
        """Whether the job has no step left."""
        if self._total_steps is not None and self._held.next_step >= self._total_steps:
            return True
        if self._held.end is not None and self._held.next_step >= self._held.end:
            return True
        return (self._sampler.next_epoch or 0) >= self._epochs

    @property
    def optimizers(self) -> tuple[int, ...]:
        """Positions of the optimizers that the script steps for each batch of the step in progress."""
        return self._recipe.updates.optimizers(self._step)

    @property
    def steps_shown(self) -> int:
        """Number of applied steps that a body of `show` sees.

        In the body these are the steps of the state, and one more after the body's `optimizer.step()`. While the batch is being
        read, they are the steps before the shown one."""
        if not self._reading:
            return self._step
        return self._held.next_step + (self._current is None)

    @property
    def step(self) -> int:
        """Number of the step to which the script's batch belongs; between two steps, of the next one."""
        return self._step if self._reading else self._held.next_step

    @property
    def virtual_worker(self) -> int | None:
        """Virtual worker whose batch the script has, until it calls `optimizer.step()`; None: no batch."""
        return self._current

    def share(self, virtual_worker: int, values: dict[str, Any]) -> None:
        """Share values of a virtual worker's body with all workers (`sharing`). Raises UserError."""
        if virtual_worker < 0 or self._evaluates_again:
            return
        self.completion.sharing.tell(virtual_worker, self.weight(virtual_worker), values)

    def weight(self, virtual_worker: int) -> float:
        """Return the weight of a virtual worker's mean in the step in progress; 1 in a full step."""
        return self._sampler.weight(self._step, self._seeded_as(virtual_worker))

    def clip(self, virtual_worker: int, max_norm: float, call: str = "run.clip()", fails: bool = False) -> None:
        """Note the norm to which a virtual worker's body wants the global gradient clipped. Raises UserError.

        call: the script's, for the error. fails: as in `Clipping.ask`."""
        self.clip_calls.clips = True
        if virtual_worker < 0:
            return
        if self.evaluations.refuses:
            raise UserError(
                f"{call} was called, and {self.evaluations.refuses}: a clipped gradient is not that of its loss"
            )
        self._update.clipping.ask(virtual_worker, max_norm, fails)

    def gather(self, tensor: torch.Tensor, differentiable: bool) -> torch.Tensor:
        """Return this tensor of all virtual workers: from shape [B, ...] to [N * B, ...] (`gathering`). Raises UserError."""
        if not self._recipe.gathers:
            raise UserError(
                "run.gather() was called without prepare(…, gathers=True), with which loop bodies run up to three times in a step"
            )
        return self.gathering.gather(self.number, tensor, differentiable)

    @property
    def number(self) -> int:
        """Number of the virtual worker for which the present body computes, 0 to N - 1."""
        assert self._current is not None
        return self._seeded_as(self._current)

    @property
    def update(self) -> str:
        """Name of the update that the step in progress makes."""
        return self._recipe.updates.names[self._recipe.updates.number(self._step)]

    @property
    def _evaluates_again(self) -> bool:
        """Whether the step's bodies have already run, for an earlier evaluation of the loss."""
        return self.evaluations.number > 0

    def evaluate(self, closure: Callable[[], Any]) -> Any:
        """Compute the script's loss at the point that the optimizer needs. Returns the result of its `step(closure)`."""
        virtual_worker, evaluations = self._current, self.evaluations
        assert isinstance(evaluations, SeveralEvaluations)
        if virtual_worker is None:  # `optimizer_stepped` will raise the error
            return None
        if evaluations.number > 0:
            step, number = self._step, evaluations.number
            seed_everything(derive_seed(self._recipe.seed, "model", step, self._seeded_as(virtual_worker), number))
        return evaluations.evaluate(virtual_worker, self.weight(virtual_worker), closure)

    @property
    def where(self) -> Where:
        """Position of the script in a step; BETWEEN: in no step."""
        if self.completion.updating:
            return Where.UPDATING
        if self.shows:
            return Where.AGAIN
        if not self._reading:
            return Where.BETWEEN
        if self._current is not None:
            return Where.BEFORE_STEP
        return Where.LAST if self._held.next_step > self._step else Where.BEHIND_STEP

    def has_stepped(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether the script has stepped this optimizer for the present batch."""
        return any(self._held.parts.optimizers[position] is optimizer for position in self._stepped)

    def look_again(self) -> None:
        """Find buffers, extra state and registered tensors anew at an epoch's beginning: the script may have changed them."""
        self._values.look_again()

    # -- a whole step

    def run(self, step: RunStep, looks_on: bool) -> Iterator[Any]:
        """Yield the batches of this worker's part of a step. Raises CommunicatorBroken, with nothing applied.

        looks_on: if this worker's virtual workers have no sample, its body runs on a batch of virtual worker 0 (`AGAIN`).
        """
        self._looks_on = looks_on
        parameters = self._lanes.owned(step.step, self._held.parts.trained())
        self._scale.want(step.factor)
        if self._held.parts.divided is not None:
            self._held.parts.divided.wish = step.whole
        self._begin(step, parameters)
        probes = self._cross_check.probes and self._checked not in self._hosted
        hosted = self._in_order()
        bodies = [PROBE, *hosted] if probes else hosted or [AGAIN] * looks_on
        if self._sharded is not None and self._rounds is not None:
            self._transfers.sent()  # in other threads; messages between two workers are begun by one thread at a time
            self._sharded.begin_step(self._communicator, self._held.next_step - 1)
            bodies = [*hosted, *[AGAIN] * (self._rounds.count() - len(hosted))]
        self._batches.clear()
        if self._checked is not None and not self._loader.reads_any:
            self._send_checked(self._checked)
        counters = self._counting()
        while self.gathering.number != COUNTS:
            yield from self._rehearse()
        yield from self._run_bodies(bodies, counters)
        while self.evaluations.goes_on:
            yield from self._run_bodies(bodies)
        self.completion.pace.bodies_end()
        self._batches.clear()
        if not bodies:
            self.complete_own_part()
        if self._sharded is not None and self._held.next_step > step.step:
            self.completion.end_sharded(self._sharded)
        if counters is not None:
            applied = self._held.next_step > self._step
            counters.step_ends(self._bodies_before(self._recipe.virtual_workers) if applied else 0)

    def _counting(self) -> BodyCounters | None:
        """Begin the step of the counters of bodies; None: there are none, or one worker alone runs its bodies in their order."""
        counts = (
            self._looks_on and (self._communicator.size > 1 or self._recipe.backwards) and not self.evaluations.refuses
        )
        return self._counters if self._counters is not None and counts and self._counters.step_begins() else None

    def _bodies_before(self, virtual_worker: int) -> int:
        """Return the number of bodies that one worker alone would run in this step before that of a virtual worker."""
        return sum(self._sampler.has_samples(self._step, each) for each in range(virtual_worker))

    def show(self, step: int) -> Iterator[Any]:
        """Yield one batch for `step`, which other workers have applied, so that the loop assigns the script's names here too.

        The body's results do not count."""
        held = self._held
        self._step, self._hosted, self.shows = step, [], True
        self._scale.step_shown(step)
        self._values.begin(step, sends=False, shown=True)
        self._update.clipping.begin()
        self.evaluations.begin()
        self.gathering.begin(step)
        self._lanes.show(step, self._lanes.owned(step, held.parts.trained()))
        registered = held.parts.registered.whole()  # a body may change registered values after `optimizer.step()`
        if self._counters is not None:
            self._counters.step_begins()
        try:
            yield from self._run_bodies([REHEARSED])
        finally:
            held.parts.registered.set_whole(registered)
            self.give_up(restore_buffers=True)
            self.shows = False

    def _send_checked(self, virtual_worker: int) -> None:
        """Exchange the cross-checked virtual worker's batch, since only its host can read it: the host sends, all others receive.

        Raises CommunicatorBroken; UserError if the batch does not consist of plain values and tensors."""
        hosts = virtual_worker in self._hosted
        if hosts:
            self._sent = self._loader.batch(self._step, virtual_worker)
        own = pack(self._sent, "a batch", inline) if hosts else None
        payloads = exchange(self._communicator, {"batch": own})
        if not hosts:
            (packed,) = (payload["batch"] for payload in payloads if payload["batch"] is not None)
            self._sent = move_to(unpack(packed, lambda content, _: restored(content)), self._recipe.device)

    def _rehearse(self) -> Iterator[Any]:
        """Run a pass of `gathering` before the step's own, whose gradients do not count. Raises CommunicatorBroken."""
        yield from self._run_bodies([REHEARSED - virtual_worker for virtual_worker in self._in_order()])
        self.completion.rehearsed(self.gathering.exchange)

    def _run_bodies(self, bodies: Sequence[int], counters: BodyCounters | None = None) -> Iterator[Any]:
        for done, virtual_worker in enumerate(bodies):
            if self._communicator.aborted:
                raise CommunicatorBroken("abandoned")
            batch = self._begin_micro_batch(virtual_worker)
            self.in_last_body = done + 1 == len(bodies) and virtual_worker > REHEARSED
            try:
                self._reading = self.has_run_bodies = True
                if self._rounds is not None:
                    self._rounds.body_begins()
                self.body_begins()
                if counters is not None:
                    counters.body_begins(self._bodies_before(self._seeded_as(virtual_worker)))
                yield batch
                if counters is not None:
                    counters.body_ends()
            except GeneratorExit:
                self._left_after(done + (self._current is None), len(bodies))
                raise
            finally:
                self._reading = False
            if self._current is not None:
                self._recipe.updates.check_all_stepped(self._step, self._stepped)
                raise UserError(
                    "the loop asked for the next batch before optimizer.step(): call it once for every batch. To accumulate "
                    "gradients over k batches, do not count them yourself: ask for k times as many virtual workers, whose "
                    "gradients are accumulated anyway. To leave a batch out, call optimizer.step() without backward(). A "
                    "prefetcher of the script's own asks too early: num_workers= and pin_memory= of prepare() read ahead"
                )
            if virtual_worker <= REHEARSED:
                self._values.forget_body()
            else:
                self._values.end_body(self._step)

    def _left_after(self, done: int, bodies: int) -> None:
        """Note in `left` that the script has left its loop in the middle of a step: after `done` of `bodies` bodies.

        Nothing is noted if the step has not begun here, or if all of its bodies have run."""
        begun, how = 0 < done < bodies, f"after {done} of the {bodies} loop bodies that this worker runs for it"
        if self.evaluations.goes_on or (self._evaluates_again and done < bodies):
            begun, how = True, "between two evaluations of its loss, for each of which the loop body runs"
        if self.gathering.refuses:
            number = self.gathering.number
            if (done and number != COUNTS) or (done < bodies and number != GIVES):
                begun, how = True, "in which each loop body runs three times, since it calls run.gather()"
        if begun and not self.shows:
            step = self._step + 1
            self.left = (
                f"the loop over batches was left in the middle of step {step}, {how}: with another number of workers the job "
                f"would end elsewhere. Leave it at the top of its body, `if run.steps_done == {step}: break`, in a function of "
                "run.every(steps=...) by run.stop(), or by max_steps in the job file"
            )

    def join(
        self,
        step: JoinStep,
        parameters: list[torch.nn.Parameter],
        units: range | None,
        take_state: Callable[[], None],
    ) -> None:
        """Take part in a step without hosting a virtual worker. Raises CommunicatorBroken.

        parameters, units: those that the other workers train. take_state: receives the state; called before the update.
        """
        self._begin(step, parameters, units)
        while self.gathering.number != COUNTS:
            self.gathering.exchange(self._communicator)
            self._tell(Evaluated())
        self.completion.join(take_state)
        if self._counters is not None and self._held.variables is not None:
            self._held.variables.step_passes(self._bodies_before(self._recipe.virtual_workers))

    def give_up(self, restore_buffers: bool) -> None:
        """Discard everything that the step in progress has computed and, with `restore_buffers`, changed."""
        self._current = None
        if self._counters is not None:
            self._counters.step_ends(0)
        if restore_buffers:
            self._values.restore()
        self.evaluations.begin()
        if self._held.parts.divided is not None:
            self._held.parts.divided.given_up()
        self._lanes.give_up()

    @contextmanager
    def as_applied(self) -> Iterator[None]:
        """Give the state, within the context, the values with which the step in progress began.

        Loop bodies may have changed buffers and registered values since, and an evaluation of the loss the parameters."""
        with ExitStack() as stack:
            if self._step == self._held.next_step:
                stack.enter_context(self._values.as_begun())
                stack.enter_context(self.evaluations.as_begun())
            yield

    # -- its parts, in their order

    def _begin(
        self, wanted: RunStep | JoinStep, parameters: list[torch.nn.Parameter], units: range | None = None
    ) -> None:
        step, ranges, joins = wanted.step, wanted.ranges, isinstance(wanted, JoinStep)
        send = not isinstance(wanted, JoinStep) and wanted.send
        self.completion.pace.begin(() if isinstance(wanted, JoinStep) else wanted.hosting)
        self._scale.step_begins(step, units)
        self._comparison.begin(step)
        if self._saves is not None:
            self._saves.begin(step)
        self._held.results.step_begins()
        self._values.begin(step, send)
        self._step = step
        self.has_run_bodies = False
        if self._sharded is not None:
            ranges = interleaved(self._recipe.virtual_workers, len(ranges))
        virtual_workers, ranges = ranges[self._rank], self._scale.ranges(ranges)
        mine = ranges[self._rank]
        if ranges != self._ranges:
            self._ranges = ranges
            self._root = next(rank for rank, hosted in enumerate(ranges) if 0 in hosted)
            self._lanes.rearrange(self._scale.micro_batches)
            self._loader.assign(step, virtual_workers, self._total_steps)
        self._lanes.begin(step, parameters, self._communicator, ranges)
        self._loader.begin(step)
        if self._recipe.comparing.tensors:
            self._checked = self._cross_check.begin(
                step, self._sampler.has_samples, self._looks_on, self._scale.micro_batches
            )
        self._sent = None
        if send:
            self._transfers.send()
        self._hosted = [v for v in mine if self._sampler.has_samples(step, v)]
        if self._checked is None and not send and len(self._hosted) == len(mine) > 0:
            self.completion.pace.counts()
        if mine and not self._all_have_bodies():
            self._values.some_look_away()
        self.evaluations.begin()
        self.gathering.begin(step)
        hosted = self._hosted
        rest = range(hosted[-1] + 1 if hosted else mine.start, mine.stop) if self._rounds is None else range(0)
        part = Part(step, () if joins else tuple(hosted), joins)
        next_workers = () if isinstance(wanted, JoinStep) else wanted.next_workers
        self.completion.begin(part, rest, self._root, wanted.proposal, next_workers)

    def _all_have_bodies(self) -> bool:
        """Return whether the loop body runs on every worker in this step."""
        if self._looks_on:
            return all(self._ranges)
        return all(any(self._sampler.has_samples(self._step, v) for v in each) for each in self._ranges)

    def _begin_micro_batch(self, virtual_worker: int) -> Any:
        recipe, step = self._recipe, self._step
        batch, number = self._batch(virtual_worker), self._seeded_as(virtual_worker)
        if virtual_worker in (PROBE, self._checked):
            self._cross_check.sampled(batch)
        self._values.begin_body(step, number)
        self._current = virtual_worker
        self._stepped.clear()
        self.clip_calls.begin_body()
        self.gathering.begin_body()
        place = self._scale.place(number)
        seed = derive_seed(recipe.seed, "model", place.unit, place.virtual_worker)
        if virtual_worker < 0:
            if virtual_worker == PROBE or virtual_worker <= REHEARSED:
                self._lanes.forget_others()
                self._lanes.present.accumulation.probe()
            seed_everything(seed)
            return batch
        # A sum needs no further weight.
        weight = self._sampler.weight(step, number) if recipe.normalize is None else 1.0
        # The last by its number: in a short step virtual workers without a sample may follow the last body.
        last = virtual_worker == self._ranges[self._rank][-1] and not recipe.backwards
        self._lanes.forget_others()
        if self._scale.grows:
            self._skip_gap(virtual_worker)
        reducer = self._lanes.present.reducer if last else None
        self._lanes.present.accumulation.expect(virtual_worker, weight, reducer, virtual_worker == self._checked)
        seed_everything(seed)
        return batch

    def _skip_gap(self, micro_batch: int) -> None:
        """Skip the micro-batches between the last body's and this one: they have no sample, in an epoch's last step."""
        hosted, position = self._hosted, self._hosted.index(micro_batch)
        if not self._recipe.backwards:
            before = hosted[position - 1] if position else self._ranges[self._rank].start - 1
            skipped = range(before + 1, micro_batch)
        else:
            skipped = range(hosted[position + 1] - 1, micro_batch, -1) if position + 1 < len(hosted) else range(0)
        for each in skipped:
            self._lanes.present.accumulation.skip(each)

    def _seeded_as(self, virtual_worker: int) -> int:
        """Return the virtual worker for which a body runs, and with whose seed it draws random numbers."""
        if virtual_worker >= 0:
            return virtual_worker
        if virtual_worker == PROBE:
            assert self._checked is not None
            return self._checked
        return REHEARSED - virtual_worker if virtual_worker <= REHEARSED else 0

    def _batch(self, virtual_worker: int) -> Any:
        if self.shows:
            return self._loader.example(self._step)
        if virtual_worker <= REHEARSED:
            return self._batch(self._seeded_as(virtual_worker))
        if virtual_worker in self._batches:  # a copy from before the first body, which may have changed its batch
            return copy.deepcopy(self._batches[virtual_worker])
        step, sent = self._step, self._sent
        if sent is not None and virtual_worker in (PROBE, self._checked):
            batch, self._sent = sent, None
        elif virtual_worker == PROBE:
            assert self._checked is not None
            batch = self._loader.elsewhere(step, self._checked)
        elif virtual_worker == AGAIN:
            batch = self._loader.again(step)
        else:
            batch = self._loader.batch(step, virtual_worker)
        if self.evaluations.refuses or self.gathering.refuses:
            self._batches[virtual_worker] = copy.deepcopy(batch)
        return batch

    def optimizer_stepped(self, optimizer: int) -> bool:
        """Handle the script's call of this optimizer's `step()`: the last optimizer's completes the virtual worker's gradient.

        Returns whether this worker's whole part is complete: the caller then calls `complete_own_part`.

        Raises UserError for a call outside a batch, a second one in it, or one in another update of the batch.
        """
        virtual_worker = self._current
        if virtual_worker is None or optimizer in self._stepped:
            raise UserError(
                "optimizer.step() was called twice for one batch, or outside the loop over batches. Two updates from one batch "
                "are two steps: prepare(…, updates={'first': optimizer, 'second': optimizer}), and `batches.update` says which"
            )
        wanted = self.optimizers
        if optimizer not in wanted:
            self._recipe.updates.check_stepped(self._step, optimizer)
        self.clip_calls.step(optimizer)
        if virtual_worker >= 0:
            self._lanes.present.accumulation.part_stepped()
        self._stepped.add(optimizer)
        if len(self._stepped) < len(wanted):
            return False
        self._current = None
        if self._rounds is not None:
            self._rounds.body_ends()
        self.gathering.end_body(self._seeded_as(virtual_worker))
        if virtual_worker <= REHEARSED:
            self._held.parts.registered.virtual.keep(None)
            return False
        self._values.keep(None if virtual_worker < 0 else virtual_worker, self.evaluations.refuses)
        if virtual_worker == PROBE:
            self._cross_check.computed(self._lanes.present.accumulation.probed())
            self._lanes.forget_others()
            return not self._hosted
        if virtual_worker < 0:
            return self._rounds is None or self.in_last_body
        self._lanes.present.accumulation.completed()
        if virtual_worker == self._checked:
            self._cross_check.computed(self._lanes.present.accumulation.digest())
        self._lanes.forget_others()
        return virtual_worker == self._in_order()[-1] if self._rounds is None else self.in_last_body

    def complete_own_part(self) -> None:
        """Complete the step after this worker's last body. Raises CommunicatorBroken, with nothing applied."""
        try:
            self.completion.complete()
        except CommunicatorBroken:
            if self._rounds is not None:
                self._rounds.step_failed()
            raise

    def _in_order(self) -> list[int]:
        """Return the hosted virtual workers that have samples, in the order of their bodies."""
        return self._hosted[::-1] if self._recipe.backwards else self._hosted
