"""`Run`: a training script's connection to its job (design: worker-runtime 8). `api.join` makes it."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch.torch_version import TorchVersion

from ..protocol.errors import UserError
from ..protocol.limits import DEFAULT_MAX_FACTOR, DEFAULT_RAMP_STEPS
from ..protocol.model import BatchChange, Determinism, GpuKind, Scaling, Sharding
from ..runtime.clock import SteadyClock
from . import cuda_graphs, warm
from .admission import check_group
from .checking import (
    check_divided,
    check_evaluations,
    check_has_values,
    check_model,
    check_optimizers,
    check_schedulers,
    check_update,
    is_under_fully_shard,
)
from .code import Code
from .collectives import Collectives
from .comparison.states import Terms
from .compiled import Compiled
from .data.choice import Feed, Job, feed_of
from .data.dataloader import Wanted
from .data.likeness import Likeness
from .data.loading import Loader, LoaderOptions
from .data.scaling import agreed_terms, check_script, check_terms, read_replay
from .determinism import ask_for, check_repeatable, described, pin
from .driver import Control
from .environment import ClusterEnvironment
from .events import BatchesChanged
from .gradients.evaluations import SeveralEvaluations
from .gradients.update import ElasticScaler, Update, make_elastic
from .gradients.updates import Updates
from .hostloop import Position, Steps
from .initial import InitialWeights
from .left_threads import at_script_end
from .recipe import Recipe
from .sharding.divided import DividedState
from .state.checkpoint import CheckpointWriter, Others
from .state.fence import Fence
from .state.registered import Registered
from .state.script_state import State
from .state.training_state import TrainingState
from .state.virtual_state import VirtualWorkerState
from .trainer import Shared, Trainer

if TYPE_CHECKING:  # torch's FSDP is loaded by scripts that use it
    from torch.distributed.device_mesh import DeviceMesh

    from .sharding.fully import FullySharded
    from .sharding.mesh import Mesh

log = logging.getLogger(__name__)
M = TypeVar("M", bound=torch.nn.Module)
T = TypeVar("T")
Scheduler = torch.optim.lr_scheduler.LRScheduler
LEAST_FOR_FSDP = "2.13"  # version of torch; `sharding.fsdp` sets private attributes of its FSDP2


class Batches:
    """The micro-batches of this worker. One pass is the rest of the current epoch."""

    def __init__(self, trainer: Trainer, dataset: Any, batch_size: int | None) -> None:
        """dataset, batch_size: attributes, as those of a `DataLoader` with one virtual worker's batches."""
        self._trainer = trainer
        self.dataset = dataset
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[Any]:
        return self._trainer.batches()

    def __len__(self) -> int:
        """Return the number of global steps in an epoch.

        A pass yields one batch per global step and hosted virtual worker, and fewer if it begins in the middle of an
        epoch. Raises TypeError for data that is read in sequence (`Shards`): the length is unknown.
        """
        steps = self._trainer.steps_per_epoch
        if steps is None:
            raise TypeError("an epoch of data that is read in sequence has no length")
        return steps

    @property
    def update(self) -> str:
        """Name of the update, from `prepare(…, updates=…)`, that the current step makes. Read it in the loop body."""
        return self._trainer.stepping.update


class Run(Collectives):
    """This process's part in a job, returned by `join`."""

    def __init__(
        self,
        control: Control,
        environment: ClusterEnvironment | None,
        virtual_workers: int,
        seed: int,
        initial: InitialWeights | None = None,
    ) -> None:
        cuda = torch.cuda.is_available() if environment is None else environment.gpu_kind is GpuKind.CUDA
        index = environment.gpu_index if environment is not None else 0
        super().__init__(control, virtual_workers, torch.device("cuda", index) if cuda else torch.device("cpu"))
        self._env = environment
        self._seed = seed
        self._registered = Registered(virtual_workers)
        self._scaler: torch.amp.GradScaler | None = None
        self._scaling: Scaling | None = None  # as the script has said
        self._mesh: Mesh | None = None  # that of `mesh`
        self._initial = initial
        self._code: Code | None = None
        self._results = Path(environment.results) if environment is not None else Path()
        self._fence: Fence | None = None  # set in a cluster, from `prepare` on
        self._in_epochs = False  # a loop over `epochs` has begun
        self._looping = False  # and has not ended
        self._over = False  # the script or its training has ended
        if cuda and index:
            torch.cuda.set_device(index)
        warm.prepare()  # warm up now, since every worker waits for a joining worker's first step
        if cuda:
            warm.on_device(self._device)
            cuda_graphs.refuse()
        if environment is not None:
            self._code = Code(self._device, not environment.any_code, snapshot=bool(environment.results))

    # -- the loop

    def register(self, name: str, get: Any, set: Callable[[Any], Any] | None = None) -> None:
        """Let values of the script travel with the job. Call it before `prepare`.

        - `name`: name of the value, unique within the job.
        - `get`: a function that returns numbers, text, lists, mappings and tensors; or an object with `state_dict()`
          and `load_state_dict()`.
        - `set`: a function that takes these values over, on a joining worker and after a restart. Leave it out if `get`
          is an object.

        Example: `run.register("best", lambda: dict(best), best.update)`. Raises UserError for values that cannot
        travel, and after `prepare`. Source: Elan V-A, RegisterState.
        """
        if self._trainer is not None:
            raise UserError(f"register({name!r}) was called after prepare(): call it before")
        self._registered.add(name, get, set)

    def state(self, **values: Any) -> State:
        """Return an object with these attributes, which travel with the job.

        Example: `state = run.state(step=0, best=math.inf)`. Values may be numbers, text, bytes, None, tensors, NumPy
        arrays and scalars, random generators, and lists, tuples, deques, sets, mappings and dataclasses of these. The
        loop may change the attributes:

        - before `optimizer.step()`: each loop body begins with the job's values, and the values of virtual worker 0 at
          `optimizer.step()` become the job's;
        - after `optimizer.step()` and between steps: a value must be the same on all workers (`state.script_state`).

        May be called several times before the loop. Raises UserError for a value that cannot travel, for a name that
        exists already, and in the loop or after it. Source: Elan V-A, RegisterState.
        """
        if self._epochs:
            raise UserError("run.state() was called in the loop or after it: call it before, with all names at once")
        self._registered.declare(values)
        return self._registered.state.object

    def per_virtual_worker(self, **values: Any) -> VirtualWorkerState:
        """Return an object of which each virtual worker has its own attributes.

        Example: `own = run.per_virtual_worker(hidden=None)`. For values that follow from one stream of samples: hidden
        states of recurrent networks, baselines, buffers. The types are those of `state`, and each virtual worker begins
        with the given values. The attributes exist in the loop body before `optimizer.step()`, which detaches tensors;
        elsewhere access raises UserError. Every worker holds the values of all N virtual workers, and changed values
        travel in each step.

        Call it before the loop; raises UserError in the loop and after it. Source: EasyScale 3.2.
        """
        if self._epochs:
            raise UserError("run.per_virtual_worker() was called in the loop or after it: call it before")
        if self._trainer is not None and self._trainer.grows:
            check_script((), 1, False, False, own_values=True)
        self._registered.declare_virtual(values)
        return self._registered.virtual.object

    def epoch_begin(self, function: Callable[[], T]) -> T:
        """Compute `function()` once at the beginning of an epoch and carry the result until the next epoch.

        Example: `teacher = run.epoch_begin(lambda: copy.deepcopy(model))`. A worker that joins in the middle of the
        epoch, or restarts there, receives the value instead of computing it from later weights. The value may be a
        tensor, an array, a list, a mapping, a dataclass, a tuple of these, or a module, which every worker builds by
        `function` and then fills. Random numbers in `function` are seeded from the job's seed, the epoch and the number
        of the call.

        Call it in the loop over epochs before the loop over batches, on all workers in the same order. Raises UserError
        elsewhere, and for values that cannot travel.
        """
        return cast(T, self._require_trainer("run.epoch_begin()").of_epoch(function))

    def scaling(
        self, mode: str = "hybrid", *, max_factor: int = DEFAULT_MAX_FACTOR, ramp_steps: int = DEFAULT_RAMP_STEPS
    ) -> None:
        """Let the batch grow while the job trains. Call it once, before `prepare`; or say it in the job file.

        With factor k a step trains k micro-batches of each virtual worker before its update. Each change is an event of
        the job. An epoch still visits each sample once, in the same order.

        - `mode`: "hybrid" lets the cluster double the batch when the job gets more GPUs than its batch can use, by the
          measured throughput; `set_batch` works, too. "manual": `set_batch` alone.
        - `max_factor`: the greatest factor.
        - `ramp_steps`: steps in which the learning rate moves linearly to `factor` times what the script and its
          schedulers set. Schedulers of `prepare` are stepped `factor` times per step, so that they keep their place in
          the data.

        Raises UserError for other values, and after `prepare`. Source: Elan III.
        """
        if self._trainer is not None or self._scaling is not None:
            raise UserError("scaling() was called twice, or after prepare(): call it once, before")
        if mode not in ("hybrid", "manual"):
            raise UserError(f"scaling({mode!r}): the mode is 'hybrid' or 'manual'")
        self._scaling = Scaling(hybrid=mode == "hybrid", max_factor=max_factor, ramp_steps=ramp_steps)
        check_terms(self._scaling)

    def scaler(self, scaler: torch.amp.GradScaler) -> Any:
        """Make a gradient scaler elastic. Call it once, before `prepare`.

        Example: `scaler = run.scaler(torch.amp.GradScaler())`. The script uses the result as usual (`scale`, `step`,
        `update`). Each micro-batch's loss is scaled. The global gradient is unscaled once per global step, then
        applied, or skipped if it has overflowed. Raises UserError if called twice or after `prepare`.
        """
        if self._trainer is not None or self._scaler is not None:
            raise UserError("scaler() was called twice, or after prepare(): call it once, before")
        scaler.scale(
            torch.zeros(1, device=self._device)
        )  # a scaler creates its scale at the first loss, which a joining worker has not seen
        self._scaler = scaler
        return ElasticScaler(scaler)

    def prepare(
        self,
        model: M,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        dataset: Any,
        batch_size: int | None = None,
        *,
        scheduler: Scheduler | Sequence[Scheduler] | None = None,
        updates: Mapping[str, Any] | None = None,
        max_grad_norm: float | None = None,
        before_update: Callable[[], None] | None = None,
        after_update: Callable[[], None] | None = None,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Sequence[Any]] | None = None,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        prefetch_factor: int = 2,
        worker_init_fn: Callable[[int], Any] | None = None,
        pin_memory: bool | None = None,
        generator: torch.Generator | None = None,
        overlap: bool = True,
        normalize: str | None = None,
        scheduler_frequency: int = 1,
        gathers: bool = False,
    ) -> tuple[M, Any, Batches]:
        """Make a model, its optimizer and a dataset elastic; return the model, the optimizer and the batches.

        The optimizer that comes back is the same object, with the methods of `ElasticOptimizer`. Several optimizers
        come back as a tuple, and the loop body steps each of them.

        - `model`: a module on any device; it is moved to `run.device`. Put several models into one
          `torch.nn.ModuleDict`.
        - `optimizer`: one or several optimizers of the model's parameters.
        - `dataset`: a map-style dataset, a tuple of tensors with one row per sample, `elastic.Shards`, or an
          `IterableDataset` that divides itself by `get_worker_info()`. A `DataLoader` also brings its `batch_size`,
          `sampler`, `collate_fn` and so on.
        - `batch_size`: samples in one virtual worker's micro-batch. The loss must be a mean over them. A global step
          trains N micro-batches.
        - `scheduler`: learning-rate schedulers, which the runtime steps after global steps. Leave out schedulers that
          the script steps itself: the runtime finds them when the loop begins.
        - `scheduler_frequency`: global steps from one step of the schedulers to the next.
        - `updates`: several updates from each batch, in this order (the two halves of a GAN): a mapping from a name to
          the optimizer or optimizers that are stepped. Each update is a global step that trains only their parameters;
          `batches.update` is its name.
        - `max_grad_norm`: clip the global gradient to this 2-norm before the update.
        - `before_update`: function that is called on every worker just before the update, with the global gradient in
          the parameters' `grad`.
        - `after_update`: function that is called on every worker after the update, the place in a step where a script
          may change parameters.
        - `shuffle`: visit the samples (of `Shards`: the shards) in a new order in each epoch. Default True, unless
          `sampler` or `batch_sampler` gives the order.
        - `sampler`, `batch_sampler`: one pass is an epoch. It is drawn once per epoch, seeded from (seed, epoch). A
          batch of `batch_sampler` is one virtual worker's micro-batch.
        - `drop_last`: leave out an epoch's last step if it has fewer than N * `batch_size` samples.
        - `collate_fn`: as in a `DataLoader`.
        - `num_workers`: processes that read batches ahead, `prefetch_factor` batches each; 0 reads in this process when
          a batch is needed. Each process has a copy of the dataset, calls `worker_init_fn(number)` when it begins, and
          calls the dataset's `set_epoch(epoch)` if that exists.
        - `pin_memory`: default True on a machine with a GPU.
        - `generator`: its `initial_seed()` changes the order of the shuffle, together with the job's seed.
        - `overlap`: reduce gradients while the backward pass still computes others, if a batch has one backward pass.
          False: reduce at `optimizer.step()`, so that the script may change each micro-batch's gradient before.
        - `normalize`: name of a count for losses that are sums over items, such as tokens: `normalize="tokens"`, with
          `run.share(tokens=...)` in each loop body. The gradient is that of the mean over all items of the step.
        - `gathers`: True if loop bodies call `run.gather`; each body then runs up to three times in a step.

        Raises UserError for arguments that cannot work, and if called twice.
        """
        if self._trainer is not None:
            raise UserError(
                "prepare() was called twice: a run trains one model. Of several models that are trained one after another, such "
                "as those of folds, each is a job of its own: submit the script once for each, with its number as an argument"
            )
        check_model(model)
        cuda_graphs.check(model, self._device)
        optimizers = check_optimizers(model, optimizer)
        schedulers = check_schedulers(scheduler)
        check_update(max_grad_norm, before_update, after_update)
        check_evaluations(optimizers, self._scaler, max_grad_norm, before_update, normalize, gathers)
        turns = Updates.of(updates, optimizers)
        scaling = agreed_terms(self._env.scaling if self._env else read_replay(os.environ), self._scaling)
        if scaling is not None:
            evaluates_again = any(isinstance(each, torch.optim.LBFGS) for each in optimizers)
            check_script(optimizers, len(turns), evaluates_again, gathers, self._registered.virtual.declared)
        job = Job(self._virtual_workers, self._seed, self._device, len(turns), scaling, self._batch_changed)
        if self._initial is not None:
            self._initial.check(model)
        wanted = Wanted(batch_size, shuffle, sampler, batch_sampler, drop_last, generator)
        options = LoaderOptions(collate_fn, num_workers, prefetch_factor, worker_init_fn, pin_memory)
        feed = feed_of(dataset, wanted, options, job)
        check_has_values(model, self._device)
        model.to(self._device)
        check_repeatable(self._env.determinism if self._env else Determinism.ELASTIC, optimizers)
        divided: DividedState | FullySharded | None = None
        if self._env is not None and self._env.sharding is Sharding.OPTIMIZER:
            check_divided(self._env.determinism, turns, self._scaler, before_update, gathers)
            divided = DividedState(optimizers)
        if is_under_fully_shard(model):
            divided = self._sharded(model, optimizers, turns, (before_update, after_update), gathers, scaling, feed)
        state = TrainingState(model, optimizers, schedulers, self._scaler, self._registered, feed.position, divided)
        if scheduler_frequency < 1:
            raise UserError(f"scheduler_frequency is {scheduler_frequency}; it must be at least 1")
        update = Update(
            optimizers, schedulers, self._scaler, max_grad_norm, before_update, after_update, scheduler_frequency
        )
        env = self._env
        tell = self._control.tell
        writer = CheckpointWriter(Path(env.checkpoint_directory), env.checkpoint_keep, tell) if env else None
        if env and writer and env.resume_from:
            writer.others = Others(Path(env.resume_from), env.resume_any_code)
        trainer = Trainer(
            self._recipe_of(overlap, normalize, turns, gathers, model),
            self._control,
            state,
            update,
            feed,
            Shared(writer, self._likeness(feed.data), self._code, Compiled(env.key, tell) if env else None),
            self._functions,
            [self, *([self._scaler] if self._scaler is not None else []), *feed.seeded],
        )
        self._trainer = trainer
        if env:
            self._fence = Fence(Path(env.checkpoint_directory), lambda: trainer.generation)
        stepping = trainer.stepping
        several = stepping.evaluations if isinstance(stepping.evaluations, SeveralEvaluations) else None
        own_update = divided.update if divided is not None else several.install if several is not None else None
        for position, each in enumerate(optimizers):
            make_elastic(
                each,
                partial(trainer.optimizer_stepped, position),
                partial(trainer.computes_for, each),
                stepping.evaluate if several is not None else None,
                own_update,
                divided is not None,
                partial(stepping.clip_calls.unscaled, position),
            )
        single = isinstance(optimizer, torch.optim.Optimizer)
        return (
            model,
            optimizer if single else tuple(optimizers),
            Batches(trainer, feed.data, getattr(feed.sampling, "batch_size", None)),
        )

    def mesh(self) -> DeviceMesh:
        """Return the mesh for `fully_shard` (FSDP2): `fully_shard(layer, mesh=run.mesh())`.

        Parameters, gradients and optimizer state are then divided among the job's workers, and divided anew when these
        change. The mesh has one worker, since a script cannot know how many there are: the runtime replaces it in the
        loop. No collective can be called on it. Raises UserError after `prepare`.
        """
        if self._trainer is not None:
            raise UserError("run.mesh() was called after prepare(): call fully_shard before, and prepare() last")
        if TorchVersion(torch.__version__) < LEAST_FOR_FSDP:
            raise UserError(
                f"fully_shard in an elastic job needs torch {LEAST_FOR_FSDP}, and this is {torch.__version__}"
            )
        if self._mesh is None:
            from .sharding.mesh import Mesh

            self._mesh = Mesh(self._device.type)
        return self._mesh

    def _sharded(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        updates: Updates,
        functions: tuple[Callable[[], None] | None, Callable[[], None] | None],
        gathers: bool,
        scaling: Scaling | None,
        feed: Feed,
    ) -> FullySharded:
        """Return the state of a model under `fully_shard`. Raises UserError for what does not work with it.

        functions: before_update and after_update of `prepare`.
        """
        from .sharding.fully import FullySharded

        env = self._env
        determinism = env.determinism if env else Determinism.ELASTIC
        before_update, after_update = functions
        check_divided(determinism, updates, self._scaler, before_update, gathers, "fully_shard")
        for given, what in (
            (env is not None and env.sharding is not Sharding.NONE, "the job file has `sharding:`, which it contains"),
            (after_update is not None, "prepare() was given after_update="),
            (scaling is not None, "the batch may grow (scaling)"),
            (determinism is Determinism.HETEROGENEOUS, "the job's determinism is heterogeneous"),
            (not isinstance(feed.batching, Loader), "the data are read in sequence: give a dataset with an index"),
            (
                self._device.type != "cpu",
                "the job runs on GPUs, where its bits have not been compared yet: it works on CPUs alone",
            ),
        ):
            if given:
                raise UserError(f"fully_shard was called, and {what}: these do not work together")
        return FullySharded(model, self._mesh, optimizers)

    def _batch_changed(self, changes: tuple[BatchChange, ...], ceiling: int) -> None:
        self._control.tell(BatchesChanged(changes, ceiling))

    def _recipe_of(
        self, overlap: bool, normalize: str | None, updates: Updates, gathers: bool, model: torch.nn.Module
    ) -> Recipe:
        recipe = replace(self._recipe(overlap, normalize, updates), gathers=gathers)
        if not is_under_fully_shard(model):
            return recipe
        return replace(
            recipe, comparing=replace(recipe.comparing, tensors=False)
        )  # no other worker has the same tensors

    def _recipe(self, overlap: bool, normalize: str | None, updates: Updates) -> Recipe:
        env = self._env
        determinism = env.determinism if env else Determinism.ELASTIC
        agnostic = determinism is Determinism.HETEROGENEOUS
        if agnostic:
            pin(os.environ)
        ask_for(determinism, self._device)
        return Recipe(
            virtual_workers=self._virtual_workers,
            seed=self._seed,
            device=self._device,
            canonical=determinism in (Determinism.ELASTIC, Determinism.HETEROGENEOUS),
            overlap=overlap,
            changes_gradients=not overlap,
            max_steps=env.max_steps if env else None,
            normalize=normalize,
            updates=updates,
            agnostic=agnostic,
            comparing=Terms(env.compare_every, determinism is not Determinism.NONE, env.on_divergence)
            if env
            else Terms(),
        )

    def _likeness(self, data: Any) -> Likeness | None:
        """Return the comparison of this worker's data with other workers' data; None outside a cluster."""
        env = self._env
        if env is None:
            return None
        equal = env.determinism is not Determinism.NONE
        return Likeness(data, f"{env.worker} on {env.address}", SteadyClock().now, equal)

    def begin(self, epochs: int, max_steps: int | None = None) -> Position:
        """Begin the loop: block until this worker has a place in the job and the job's state.

        - `epochs`: number of epochs in the loop.
        - `max_steps`: limit of global steps; None: no limit.

        Returns the job's position. Loops over `epochs` and `batches`, or over `steps`, follow. `epochs` calls `begin`
        if the script has not. Raises UserError for numbers below 1, before `prepare`, if called twice, and after the
        training has ended.
        """
        trainer = self._require_trainer()
        if epochs < 1 or (max_steps is not None and max_steps < 1):
            raise UserError(f"begin({epochs}, {max_steps}): at least one epoch and one step are needed")
        if trainer.over and not self._epochs:
            raise UserError("the loop begins after save() or finish(), which end the training: begin it before")
        if self._epochs:
            raise UserError("begin() was called twice: a run has one loop, with as many epochs as all of it needs")
        check_group()
        self._epochs = epochs
        at_script_end(self._at_exit)  # threads that the script has left running do not delay the other workers
        atexit.register(self._at_exit)
        _call_with_last_error(trainer.explain, trainer.raised)
        trainer.find(sys._getframe(1), self._local.has)
        epoch = trainer.arrive(epochs, max_steps)
        return Position(epoch, trainer.held.next_step)

    def steps(self) -> Steps:
        """Return the remaining global steps of an epoch, for loops of frameworks.

        `len()` is the number of global steps in a whole epoch. Each step yields the batches of this worker's virtual
        workers. A batch's gradient is complete when the next batch is requested. A second pass is over the next epoch,
        unless a loop over `epochs` counts the epochs. Call `finish` after the last epoch. Raises UserError before
        `prepare`.
        """
        return Steps(self._require_trainer("run.steps()"), counts_epochs=not self._in_epochs)

    def epochs(self, count: int) -> Iterator[int]:
        """Iterate over the remaining epochs, up to epoch number `count - 1`.

        A joining worker begins in the job's current epoch; a worker that leaves the job ends inside the loop by
        SystemExit. Leaving the loop early (`break`) ends the training of the whole job, so the decision must depend on
        values that are the same on all workers. Raises UserError for a count below 1, before `prepare`, if called
        twice, and after the training has ended.
        """
        trainer = self._require_trainer()
        if count < 1:
            raise UserError(f"epochs({count}): at least one epoch is needed")
        if trainer.over and not self._epochs:
            raise UserError("epochs() was called after save() or finish(), which end the training: call it before")
        if self._in_epochs:
            raise UserError("epochs() was called twice: a run has one loop, with as many epochs as all of it needs")
        if self._epochs not in (0, count):
            raise UserError(f"epochs({count}) was called after begin({self._epochs}): say the same in both")
        if not self._epochs:
            self.begin(count)
        self._in_epochs = self._looping = True
        epoch = trainer.script.epoch
        try:
            while epoch < count:
                trainer.epoch_begins(epoch)
                yield epoch
                epoch += 1
                if trainer.stepping.finished:
                    break
        except GeneratorExit:
            if not self._over:  # at the end of Python, the generator may be closed when modules are gone
                trainer.left_early(by_error=_is_raising(sys._getframe(1)))
            raise
        finally:
            self._looping = False
        self.finish()

    def finish(self) -> None:
        """End the training on this worker. `epochs` calls it at its end, `save` before it writes."""
        if self._trainer is not None:
            self._trainer.finish(self._epochs)
            self._over = True
            atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        """Finish the training of a script that left its loop by `break` and came to its end.

        A script that failed, or called `sys.exit` in the middle of its loop, is reported as ended.
        """
        if self._over:
            return
        self._over = True
        trainer = self._require_trainer()
        if trainer.over:
            return
        error = getattr(sys, "last_value", None)
        if error is not None:
            trainer.ended(described(error))
        elif trainer.broken_off:
            trainer.ended("an exception or sys.exit has left its training loop")
        else:
            try:
                self.finish()
            except UserError as wrong:  # too late to raise it: Python would end with exit code 0
                trainer.ended(described(wrong))
                print(described(wrong), file=sys.stderr, flush=True)
                sys.stdout.flush()
                os._exit(1)

    def has_failed(self) -> bool:
        """Return whether an exception has ended the script, or its training is unfinished. For the end of the script."""
        unfinished = self._trainer is not None and not self._trainer.over
        return unfinished or getattr(sys, "last_value", None) is not None

    # -- the result

    def save(self, what: torch.nn.Module | Any, path: str | Path) -> None:
        """Write a model's `state_dict`, or any value that `torch.save` takes, to `path`.

        The leader writes, once for the job and atomically. In the loop, also within a step, this is the model after the
        last applied step. After the loop, `save` first ends the training, as `finish` does. If the job runs in a
        snapshot of its code, a relative path is below the directory of submission.

        With several workers, all of them call `save` and their values are compared. In the loop the file gets its name
        after the next step (`saves`). If the values differ, no file is written and the job ends with the reason. Values
        saved under `if run.is_leader:` are not compared.

        A worker that was cut off from its job, which has gone on elsewhere, writes nothing. Raises UserError before the
        loop.
        """
        trainer = self._in_job("save()", "call it in the loop, or after it")
        # A script that loops over `steps` alone is behind its loop when no step is left.
        in_loop = self._looping if self._in_epochs else not trainer.stepping.finished
        if not in_loop:
            self.finish()
        with trainer.stepping.as_applied():
            value = what.state_dict() if isinstance(what, torch.nn.Module) else what
            if trainer.sharded is not None:
                value = trainer.sharded.to_save(value)
            target = trainer.to_save(str(path), value, self._results / path)
            if target is None or not trainer.is_leader:
                return
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f".{target.name}.{os.getpid()}")
            torch.save(value, temporary)
        if self._fence is not None and (newer := self._fence.overtaken_by()) is not None:
            temporary.unlink()
            log.warning("%s is not written: generation %d of the job goes on elsewhere", target, newer)
            return
        if self._fence is not None:
            self._fence.mark()
        os.replace(temporary, target)


def _call_with_last_error(
    before_print: Callable[[BaseException], None], after: Callable[[BaseException], None]
) -> None:
    """Pass the error that ends the script to both functions: before its traceback is printed, and after."""
    before = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before_print(error)
        before(kind, error, trace)
        after(error)

    sys.excepthook = show


def _is_raising(frame: FrameType) -> bool:
    """Return whether an exception is leaving a loop of `frame` right now, as opposed to `break`, which leaves no trace.

    An exception on its way has a traceback that refers to the frame's current instruction. The traceback of an
    exception that was caught before refers to another instruction.
    """
    return any(
        isinstance(referrer, TracebackType) and referrer.tb_lasti == frame.f_lasti
        for referrer in gc.get_referrers(frame)
    )
