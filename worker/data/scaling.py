"""Batches that grow while a job trains: Elan's hybrid scaling (Elan III), AdaBatch's schedules (Elan VI-B).

A *unit* is a step as the job has it without scaling: one micro-batch for each of the N virtual workers. A step with factor
k trains the next k units: virtual worker v computes its micro-batches of all k, and one update follows. Samples and random
numbers of a micro-batch follow from (seed, unit, virtual worker). So the factors decide only where the updates fall, and
the state of the data is one integer, the number of units done (Elan V-C).

The learning rate is multiplied by a *rate*, which moves linearly from one value to the next (`rate_at`, Elan III
equation 3). It multiplies whatever the script and its schedulers set, during the update alone.

A change takes effect between two steps, on all workers alike: as the leader's number in the word of the step before
(`inband`), by a call of the script that all workers make, or from the history of another job (`replay`). The changes are
part of the state: joining workers, checkpoints and restarts carry them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from ...protocol.batches import read_history
from ...protocol.errors import UserError
from ...protocol.limits import MAX_BATCH_CHANGES, MAX_BATCH_FACTOR, MAX_RAMP_STEPS
from ...protocol.model import BatchChange, Scaling
from ..inband import NOTHING, Part, never
from .feed import Batching
from .sampling import Schedule


def rate_at(changes: Sequence[BatchChange], step: int) -> float:
    """Return the factor of the learning rate in `step` (Elan III, equation 3).

    A change that begins while the one before is under way begins at the rate reached.
    """
    before, last = 1.0, BatchChange(step=0, factor=1)
    for change in changes:
        if change.step > step:
            break
        before, last = _moved(before, last, change.step), change
    return _moved(before, last, step)


def _moved(before: float, change: BatchChange, step: int) -> float:
    done = step - change.step
    return before + done / change.ramp * (change.rate - before) if done < change.ramp else change.rate


@dataclass(frozen=True)
class MicroBatchId:
    """The unit and the virtual worker of a micro-batch."""

    unit: int
    virtual_worker: int


class Scale(Protocol):
    """Number of micro-batches in a step, and factor of its learning rate. For the training thread."""

    grows: bool  # whether the factor may change
    micro_batches: int  # of the step in progress

    def step_begins(self, step: int, units: range | None) -> None:
        """Begin a step. units: those of the step, on a worker whose state has not arrived yet; None: this worker knows them."""

    def step_shown(self, step: int) -> None:
        """Begin a loop body without effect, for `step`, the last applied one."""

    def want(self, factor: int) -> None:
        """Note the factor for which the cluster asks; 0: none."""

    @property
    def units(self) -> range:
        """Units of the step in progress."""

    def ranges(self, hosted: Sequence[range]) -> tuple[range, ...]:
        """Return the micro-batches of each rank in the step in progress, from its virtual workers."""

    def place(self, micro_batch: int) -> MicroBatchId:
        """Return the unit and the virtual worker of a micro-batch of the step in progress."""

    @property
    def rate(self) -> float:
        """Factor of the learning rates in the step in progress."""


class Fixed:
    """Strong scaling: a step is a unit, whatever the number of workers."""

    grows = False
    rate = 1.0

    def __init__(self, virtual_workers: int) -> None:
        self.micro_batches = virtual_workers
        self._step = 0

    def step_begins(self, step: int, units: range | None) -> None:
        self._step = step

    def step_shown(self, step: int) -> None:
        self._step = step

    def want(self, factor: int) -> None:
        pass

    @property
    def units(self) -> range:
        return range(self._step, self._step + 1)

    def ranges(self, hosted: Sequence[range]) -> tuple[range, ...]:
        return tuple(hosted)

    def place(self, micro_batch: int) -> MicroBatchId:
        return MicroBatchId(self._step, micro_batch)


class Growing:
    """The data of a job whose batch may grow: its samples (`feed.Sampling`, `feed.Batching`) and its position in the data.

    The position is part of the training state. The leader's requested factor travels in the word (`inband.Participant`).

    Micro-batch m of a step with u units is that of virtual worker m // u in the step's unit number m % u. So the micro-batches of
    a virtual worker are consecutive, and if u is a power of two, the canonical tree has the virtual workers as nodes.
    """

    grows = True
    name = "batch"
    slots = 1

    def __init__(
        self, schedule: Schedule, loader: Batching, terms: Scaling, tell: Callable[[tuple[BatchChange, ...], int], None]
    ) -> None:
        """tell: called at the beginning and after each change, with all changes so far and the greatest factor for which the
        cluster may ask; 0: it may ask for none."""
        self._schedule = schedule
        self._loader = loader
        self._terms = terms
        self._changed = tell
        self.virtual_workers = schedule.virtual_workers
        self.reads_any = loader.reads_any
        self._epochs = 0
        self.done = 0  # units before the next step
        self.changes: tuple[BatchChange, ...] = ()
        self._asked = 0  # factor that the cluster asks for
        self._heard = 0  # greatest factor in the word of the step in progress; 0: none
        self._step = 0
        self._units = range(0)
        self._sizes: list[Sequence[int]] = []  # samples of each virtual worker, by unit of the step in progress
        self.micro_batches = self.virtual_workers
        self._replay(0)
        self._tell()

    # -- one step after the other

    def step_begins(self, step: int, units: range | None) -> None:
        self._step, self._heard = step, 0
        self._units = self.next_units if units is None else units
        self._sizes = [self._schedule.sizes(unit) for unit in self._units]
        self.micro_batches = len(self._units) * self.virtual_workers

    def step_shown(self, step: int) -> None:
        self._step, self._units = step, range(max(self.done, 1) - 1, max(self.done, 1))

    @property
    def factor(self) -> int:
        """Factor of the next step."""
        return self.changes[-1].factor if self.changes else 1

    def factor_at(self, step: int) -> int:
        """Return the factor of a step that has begun, or of the next one."""
        return next((change.factor for change in reversed(self.changes) if change.step <= step), 1)

    @property
    def next_units(self) -> range:
        """Units of the next step: fewer than the factor at an epoch's end."""
        return self._units_of(self.done, self.factor)

    def _units_of(self, done: int, factor: int) -> range:
        per_epoch = self._schedule.steps_per_epoch
        return range(done, min(done + factor, (done // per_epoch + 1) * per_epoch))

    def units_in(self, position: Mapping[str, Any]) -> range:
        """Return the units of the next step of a state that has not arrived yet, from its `position` in the header."""
        changes = _taken(position)
        return self._units_of(int(position["units"]), changes[-1].factor if changes else 1)

    @property
    def units(self) -> range:
        return self._units

    def ranges(self, hosted: Sequence[range]) -> tuple[range, ...]:
        each = len(self._units)
        return tuple(range(one.start * each, one.stop * each) for one in hosted)

    def place(self, micro_batch: int) -> MicroBatchId:
        virtual_worker, number = divmod(micro_batch, len(self._units))
        return MicroBatchId(self._units[number], virtual_worker)

    @property
    def rate(self) -> float:
        return rate_at(self.changes, self._step)

    # -- changes

    def want(self, factor: int) -> None:
        self._asked = factor

    def ask(self, step: int, factor: int, rate: float | None) -> None:
        """Change the factor from `step`, the next one, on, as the script asks. Ignored in a replay.

        rate: factor of the learning rate; None: `factor`. Raises UserError after too many changes."""
        if self._terms.replay is None:
            self._add(step, factor, float(factor) if rate is None else rate)

    def check(self, factor: Any, rate: Any) -> None:
        """Raise UserError for a factor or a rate that is not allowed in `run.set_batch`."""
        most = self._terms.max_factor
        if isinstance(factor, bool) or not isinstance(factor, int) or not 1 <= factor <= most:
            raise UserError(
                f"run.set_batch({factor!r}): the factor is a whole number from 1 to max_factor, here {most}"
            )
        if rate is not None and not is_rate(rate):
            raise UserError(f"run.set_batch(…, rate={rate!r}): the rate is a finite number greater than 0")

    def _add(self, step: int, factor: int, rate: float, ramp: int | None = None) -> None:
        last = self.changes[-1] if self.changes else BatchChange(step=0, factor=1)
        if (factor, rate) == (last.factor, last.rate):
            return
        before = [change for change in self.changes if change.step < step]
        if len(before) >= MAX_BATCH_CHANGES:
            raise UserError(f"the batch has changed {MAX_BATCH_CHANGES} times, which is the greatest number of changes")
        steps = self._terms.ramp_steps if ramp is None else ramp
        self.changes = (*before, BatchChange(step=step, factor=factor, rate=rate, ramp=steps))
        self._tell()

    def _tell(self) -> None:
        asks = self._terms.hybrid and self._terms.replay is None
        self._changed(self.changes, self._terms.max_factor if asks else 0)

    def _replay(self, step: int) -> None:
        for change in self._terms.replay or ():
            if change.step == step:
                self._add(step, change.factor, change.rate, change.ramp)

    # -- in band

    def numbers(self, part: Part) -> Sequence[int]:
        asked = min(self._asked, self._terms.max_factor)
        wanted = self._terms.hybrid and self._terms.replay is None and not part.joins and asked > self.factor
        return (asked if wanted else NOTHING,)

    wants = never

    def wants_after(self, part: Part, greatest: Sequence[int]) -> bool:
        self._heard = max(greatest[0], 0)
        return False

    def payload(self, part: Part) -> Any:
        return None

    def read(self, part: Part, payloads: Sequence[Any]) -> None:
        pass

    # -- the samples of a step (`feed.Sampling`)

    @property
    def samples_per_step(self) -> int:
        """Samples in a full step with factor 1."""
        return self._schedule.samples_per_step

    def epoch(self, step: int) -> int:
        """Return the epoch of the step in progress."""
        return self._units.start // self._schedule.steps_per_epoch

    @property
    def units_per_epoch(self) -> int:
        return self._schedule.steps_per_epoch

    @property
    def steps_per_epoch(self) -> None:
        """None: the number of steps depends on the factor, which may change."""
        return None

    @property
    def next_epoch(self) -> int:
        return self.done // self._schedule.steps_per_epoch

    def total_steps(self, epochs: int) -> None:
        """Return None, as the factor may change. Keeps the number of epochs."""
        self._epochs = epochs

    def has_samples(self, step: int, micro_batch: int) -> bool:
        return self._size(micro_batch) > 0

    def weight(self, step: int, micro_batch: int) -> float:
        return self._size(micro_batch) * self.micro_batches / sum(map(sum, self._sizes))

    def _size(self, micro_batch: int) -> int:
        virtual_worker, number = divmod(micro_batch, len(self._units))
        return self._sizes[number][virtual_worker]

    # -- the micro-batches of a step (`feed.Batching`)

    def assign(self, step: int, hosted: range, end: int | None) -> None:
        """hosted: virtual workers. end: not used, since the job ends after its epochs, in units."""
        self._loader.assign(self._units.start, hosted, self._epochs * self._schedule.steps_per_epoch)

    def begin(self, step: int) -> None:
        self._loader.begin(self._units.start)

    def batch(self, step: int, micro_batch: int) -> Any:
        place = self.place(micro_batch)
        return self._loader.batch(place.unit, place.virtual_worker)

    def again(self, step: int) -> Any:
        return self._loader.again(self._units.start)

    def elsewhere(self, step: int, micro_batch: int) -> Any:
        place = self.place(micro_batch)
        return self._loader.elsewhere(place.unit, place.virtual_worker)

    def example(self, step: int) -> Any:
        return self._loader.example(max(self.done - 1, 0))

    def applied(self, step: int) -> None:
        """End the step in progress, which has been applied: the next one may have another factor."""
        self.done = self._units.stop
        self._loader.applied(step)
        if self._heard > self.factor:
            self._add(step + 1, self._heard, float(self._heard))
        self._replay(step + 1)

    def close(self) -> None:
        self._loader.close()

    # -- the position as part of the state (`position.DataPosition`)

    def state(self) -> dict[str, Any]:
        return {"epoch": self.next_epoch, "units": self.done, "changes": self.plain_changes()}

    def load(self, state: Mapping[str, Any]) -> None:
        self.done = int(state["units"])
        self.take_changes(state["changes"])

    def plain_changes(self) -> list[list[float]]:
        """Return all changes in plain values."""
        return [[change.step, change.factor, change.rate, change.ramp] for change in self.changes]

    def take_changes(self, plain: Sequence[Sequence[float]]) -> None:
        """Take over the changes of another worker."""
        self.changes = _taken({"changes": plain})
        self._tell()


def _taken(position: Mapping[str, Any]) -> tuple[BatchChange, ...]:
    return tuple(
        BatchChange(step=int(step), factor=int(factor), rate=float(rate), ramp=int(ramp))
        for step, factor, rate, ramp in position["changes"]
    )


def check_terms(terms: Scaling) -> None:
    """Raise UserError for values outside of their limits."""
    for name, value, least, most in (
        ("max_factor", terms.max_factor, 1, MAX_BATCH_FACTOR),
        ("ramp_steps", terms.ramp_steps, 0, MAX_RAMP_STEPS),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise UserError(f"scaling: {name} is {value!r}; it must be a whole number from {least} to {most}")


def agreed_terms(job: Scaling | None, script: Scaling | None) -> Scaling | None:
    """Return the terms of the job file and the script. Raises UserError if they contradict each other."""
    if job is None or script is None or job.replay is not None:
        return job or script
    if job != script:
        raise UserError(
            f"the job file says scaling with {_described(job)}, run.scaling() {_described(script)}: say it in one place, or the "
            "same in both"
        )
    return job


def _described(terms: Scaling) -> str:
    mode = "hybrid" if terms.hybrid else "manual"
    return f"mode {mode}, max_factor {terms.max_factor}, ramp_steps {terms.ramp_steps}"


def read_replay(environ: Mapping[str, str]) -> Scaling | None:
    """Return terms with the history in the file of ELASTIC_REPLAY_BATCHES, for a script outside a cluster.

    None: the variable is not set. Raises UserError for a file without a valid history."""
    if (path := environ.get("ELASTIC_REPLAY_BATCHES")) is None:
        return None
    try:
        return Scaling(replay=read_history(Path(path).read_bytes()))
    except (OSError, ValueError) as error:
        raise UserError(f"ELASTIC_REPLAY_BATCHES={path}: {error}") from None


def check_room(terms: Scaling, schedule: Schedule) -> None:
    """Raise UserError if an epoch is shorter than one step with the greatest factor."""
    units = schedule.steps_per_epoch
    if (most := terms.greatest) > units:
        raise UserError(
            f"scaling: a step with factor {most} needs {most} times {schedule.samples_per_step} samples, and an epoch has "
            f"{schedule.order.size}: the greatest factor is {units}"
        )


def check_script(
    optimizers: Sequence[torch.optim.Optimizer], updates: int, evaluates_again: bool, gathers: bool, own_values: bool
) -> None:
    """Raise UserError for a script whose batch cannot grow. own_values: the script has called `run.per_virtual_worker`."""
    for given, what in (
        (updates > 1, "prepare() was given several updates"),
        (evaluates_again, "the optimizer evaluates the loss of a step several times"),
        (gathers, "prepare() was given gathers=True"),
        (own_values, "run.per_virtual_worker() was called"),
    ):
        if given:
            raise UserError(f"the batch may grow (scaling), and {what}: these do not work together")
    for optimizer in optimizers:
        name = type(optimizer).__name__
        for group in optimizer.param_groups:
            if "lr" not in group:
                raise UserError(f"the batch may grow (scaling), and {name} has no `lr` that could grow with it")
            if not math.isfinite(lr := float(group["lr"])):
                raise UserError(
                    f"the batch may grow (scaling), and the learning rate of {name} is {lr}: it must be finite"
                )


def is_rate(rate: Any) -> bool:
    """Return whether `rate` is a valid factor of the learning rate: a finite number above 0."""
    return not isinstance(rate, bool) and isinstance(rate, int | float) and math.isfinite(rate) and rate > 0


_AS_THEY_ARE = nullcontext()


def at_rate(optimizers: Sequence[torch.optim.Optimizer], rate: float) -> AbstractContextManager[None]:
    """Multiply the optimizers' learning rates by `rate` within the context."""
    return _AS_THEY_ARE if rate == 1.0 else _at_rate(optimizers, rate)


@contextmanager
def _at_rate(optimizers: Sequence[torch.optim.Optimizer], rate: float) -> Iterator[None]:
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    own = [group["lr"] for group in groups]
    for group in groups:
        group["lr"] = group["lr"] * rate
    try:
        yield
    finally:
        for group, lr in zip(groups, own, strict=True):
            group["lr"] = lr
