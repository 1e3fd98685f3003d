"""What a training script sees (design: worker-runtime 8)::

    import elasticd as elastic

    run = elastic.join()
    model, optimizer, batches = run.prepare(model, optimizer, dataset, batch_size=32)
    for epoch in run.epochs(10):
        for x, y in batches:
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    run.save(model, "digits.pt")

The script is written for one GPU. The job has N *virtual workers*; a global step trains one micro-batch for each of them and
applies one update, however many processes share the work. The loop body therefore runs once for each virtual worker that
this process hosts, and `optimizer.step()` acts when the last of them is done. Outside a cluster one process hosts
all N, with the same result, bit for bit.
"""

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
from typing import Any, TypeVar, cast

import torch

from ..protocol import exits
from ..protocol.errors import UserError
from ..protocol.model import Determinism, GpuKind
from ..protocol.rehearsal import asked
from ..runtime.clock import SteadyClock
from . import cuda_graphs, warm
from .admission import JOINED, Process, check_group, check_process, leave_gang, take_key
from .checking import check_evaluations, check_model, check_optimizers, check_schedulers, check_update
from .code import Code
from .comparison import Terms
from .compiled import Compiled
from .control import OUT_OF_ROOM, ClusterControl
from .data.choice import Job, feed_of
from .data.dataloader import Wanted
from .data.likeness import Likeness
from .data.loading import LoaderOptions
from .data.shards import Shards as Shards
from .data.sources import Lines as Lines
from .data.sources import TarSamples as TarSamples
from .determinism import ask_for, before_cuda, described
from .driver import Control, LocalControl
from .ending import end_process
from .environment import ClusterEnvironment, read_cluster, read_virtual_workers
from .events import Noticed
from .gradients.update import ElasticScaler, Update, make_elastic
from .gradients.updates import Updates
from .hostloop import Position, Steps
from .initial import InitialWeights
from .left_threads import Patience, at_script_end, watch
from .state.checkpoint import CheckpointWriter, Others
from .state.fence import Fence
from .state.registered import Registered
from .state.script_state import State
from .state.training_state import TrainingState
from .state.virtual_state import VirtualWorkerState
from .stepping import Recipe
from .together import Together
from .trainer import Trainer

log = logging.getLogger(__name__)
M = TypeVar("M", bound=torch.nn.Module)
T = TypeVar("T")
Scheduler = torch.optim.lr_scheduler.LRScheduler


def join(*, virtual_workers: int | None = None, seed: int = 0, threads: int = 1) -> Run:
    """Take this process's place in its job; outside a cluster, as the only worker.

    virtual_workers: N outside a cluster, where ELASTIC_VIRTUAL_WORKERS does not say (default 1). In a cluster the job says it,
    and a different number here raises UserError: the result depends on it.
    seed: everything random that the runtime seeds is derived from it, the step and the virtual worker. Also the weights of a
    model that is made afterwards.
    threads: torch's threads for one operation on a CPU. The bits of a result depend on it.
    Raises UserError in a process that is not the worker itself (`admission`).
    """
    check_process(os.environ, Process.present(os.getpid()))
    check_group()
    torch.set_num_threads(threads)
    if (errand := asked(os.environ)) is not None:
        from .rehearsal.run import Rehearsed

        return Rehearsed(errand, virtual_workers, seed)
    environment = read_cluster(os.environ)
    if environment is None:
        before_cuda(os.environ)
        count = read_virtual_workers(os.environ, virtual_workers)
        return Run(LocalControl.alone(count), None, count, seed, InitialWeights(seed))
    if virtual_workers is not None and virtual_workers != environment.virtual_workers:
        raise UserError(
            f"the job has {environment.virtual_workers} virtual workers, the script asks for {virtual_workers}: "
            "say it in one place, or the same in both"
        )
    leave_gang(os.environ)
    take_key(os.environ)
    os.environ[JOINED] = str(os.getpid())
    try:
        control = ClusterControl(environment)
        control.start()
    except OUT_OF_ROOM as error:
        end_process(exits.SPEECHLESS, f"this worker cannot talk to the cluster: {type(error).__name__}: {error}")
    run = Run(control, environment, environment.virtual_workers, seed, InitialWeights(seed))
    patience = Patience.of(environment.limits.pause_timeout_s)
    watch(patience, lambda text: control.tell(Noticed(text)), run.has_failed)
    return run


class Batches:
    """The micro-batches of this worker; one pass is the rest of the present epoch."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def __iter__(self) -> Iterator[Any]:
        return self._trainer.batches()

    def __len__(self) -> int:
        """Global steps of an epoch. A pass has as many batches for each virtual worker, so for this worker as many times those
        that it hosts; in a pass that it begins in the middle there are fewer. TypeError where nobody knows: shards."""
        steps = self._trainer.steps_per_epoch
        if steps is None:
            raise TypeError("an epoch of data that is read in sequence has no length")
        return steps

    @property
    def update(self) -> str:
        """In the loop body: which of `prepare(…, updates=…)` the present step makes."""
        return self._trainer.update


class Run(Together):
    """This process's part in a job. Made by `join`."""

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
        self._initial = initial
        self._code: Code | None = None
        self._results = Path(environment.results) if environment is not None else Path()
        self._fence: Fence | None = None  # there is one in a job, from `prepare` on
        self._in_epochs = False  # the script has come to a loop over `epochs`
        self._looping = False  # and has not left it
        self._over = False  # the script has come to its end, or the training has
        if cuda and index:
            torch.cuda.set_device(index)
        warm.prepare()  # better now than in a joiner's first step, for which everybody waits
        if cuda:
            warm.on_device(self._device)
            cuda_graphs.refuse()
        if environment is not None:
            self._code = Code(self._device, compared=not environment.any_code)

    # -- the loop

    def register(self, name: str, get: Any, set: Callable[[Any], Any] | None = None) -> None:
        """Let the script's own values travel with the job: `get()` returns numbers, text, lists, mappings and tensors,
        `set(values)` takes them over on a joiner and after a restart (Elan V-A, RegisterState). Or register an object with
        `state_dict()` and `load_state_dict()`. Call it before `prepare`. Raises UserError for what cannot travel."""
        if self._trainer is not None:
            raise UserError(f"register({name!r}) was called after prepare(): call it before")
        self._registered.add(name, get, set)

    def state(self, **values: Any) -> State:
        """An object with these attributes, which travel with the job: `state = run.state(step=0, best=math.inf)`.

        Values may be numbers, text, bytes, None, tensors, NumPy's arrays and scalars, generators of random numbers, and lists,
        tuples, deques, sets, mappings and dataclasses of them. The loop changes them as it likes. In the loop body each virtual
        worker begins with the job's values, and virtual worker 0's at `optimizer.step()` are the job's; what is set behind it
        and between steps has to be the same on all workers (`state.script_state`). May be called several times, before the loop.
        Raises UserError for what cannot travel, for a name that is there already, and in the loop. Source: Elan V-A,
        RegisterState."""
        if self._epochs:
            raise UserError("run.state() was called in the loop or after it: call it before, with all names at once")
        self._registered.declare(values)
        return self._registered.state.object

    def per_virtual_worker(self, **values: Any) -> VirtualWorkerState:
        """An object whose attributes are of the virtual worker whose body runs: `own = run.per_virtual_worker(hidden=None)`.

        For what follows from one stream of samples: hidden states of recurrent networks, baselines, buffers. Values are as
        `state` takes them, and each virtual worker begins with these. They are there in the loop body before `optimizer.step()`;
        elsewhere UserError is raised. Tensors are detached at `optimizer.step()`. Each worker holds the values of all N virtual
        workers, and those that have changed travel in each step. Call it before the loop. Source: EasyScale 3.2."""
        if self._epochs:
            raise UserError("run.per_virtual_worker() was called in the loop or after it: call it before")
        self._registered.declare_virtual(values)
        return self._registered.virtual.object

    def epoch_begin(self, function: Callable[[], T]) -> T:
        """What `function()` gives at the beginning of this epoch, computed once and carried until the next epoch begins:
        `teacher = run.epoch_begin(lambda: copy.deepcopy(model))`.

        A worker that joins in the middle of the epoch, and a restart from there, get the value as it is, and do not compute it
        from later weights. It may be a tensor, an array, a list, a mapping, a dataclass, a tuple of these, or a module, which is
        built by `function` everywhere and then filled. Random numbers in `function` are seeded from the job's seed, the epoch and
        the number of the call. Call it in the loop over epochs before the loop over batches, on all workers in the same order;
        elsewhere, and for what cannot travel, UserError is raised."""
        return cast(T, self._require_trainer("run.epoch_begin()").of_epoch(function))

    def scaler(self, scaler: torch.amp.GradScaler) -> Any:
        """Make a gradient scaler elastic: `scaler = run.scaler(torch.amp.GradScaler())`, before `prepare`.

        The script uses the result as usual (`scale`, `step`, `update`). Each loss is scaled; the global gradient is scaled back,
        and applied or, if it has overflowed, skipped, once for each global step.
        """
        if self._trainer is not None or self._scaler is not None:
            raise UserError("scaler() was called twice, or after prepare(): call it once, before")
        scaler.scale(
            torch.zeros(1, device=self._device)
        )  # it has no scale before the first loss, which a joiner has not seen
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
        """Make a model, its optimizer and a dataset elastic. The same optimizer comes back as an `ElasticOptimizer`;
        several come back as a tuple, and each is stepped for each batch.

        dataset: one with an index (map-style), a tuple of tensors with a row for each sample, `elastic.Shards`, or an
        `IterableDataset` that asks `get_worker_info()` which part it is to give. Or a `DataLoader`, which then says what else is
        to be said of data (its `batch_size`, `sampler`, `collate_fn` and so on).
        batch_size: samples of one virtual worker's micro-batch, over which the loss must be a mean. N of them are a step.
        scheduler: stepped by the runtime once after every global step (one that is stepped per epoch: register it).
        updates: several from each batch, one after the other (a GAN's halves): by name, the optimizer or optimizers that are
        stepped. Each is a global step, in which only their parameters are trained; `batches.update` has its name.
        max_grad_norm: clips the global gradient to this norm before the update.
        before_update: called on every worker with the global gradient in the parameters' `grad`, just before the update.
        after_update: called on every worker after it; the one place where a script may change parameters itself.
        shuffle: visit the samples in another order in each epoch; of `Shards`: the shards. Default true, unless `sampler` or
        `batch_sampler` gives the order: one pass over it is an epoch. It is drawn from once for each epoch, under a seed of
        (seed, epoch). A batch of `batch_sampler` is one virtual worker's micro-batch.
        drop_last: leave out an epoch's last step if it would have fewer than N * batch_size samples.
        num_workers: processes that read batches ahead (0: this one, when it needs them), `prefetch_factor` each. They work
        on a copy of the dataset; one with a method `set_epoch(epoch)` is told the epoch. `worker_init_fn(number)` is called in
        each when it begins.
        pin_memory: default true where there is a GPU. generator: shuffles as its `initial_seed()` says, besides the job's seed.
        overlap: reduce gradients while the backward pass still computes others, where one pass runs for a batch. False: later,
        and the script may change each micro-batch's gradient before `optimizer.step()`.
        normalize: the loss is a sum over items, such as tokens, and each body tells how many: `normalize="tokens"` with
        `run.share(tokens=...)`. The gradient is then that of the mean over all items of the step.
        scheduler_frequency: global steps between two of a scheduler's.
        gathers: loop bodies call `run.gather`, for which each runs up to three times in a step.
        Raises UserError where the arguments cannot work.
        """
        if self._trainer is not None:
            raise UserError("prepare() was called twice: a run trains one model")
        check_model(model)
        cuda_graphs.check(model, self._device)
        optimizers = check_optimizers(model, optimizer)
        schedulers = check_schedulers(scheduler)
        check_update(max_grad_norm, before_update, after_update)
        check_evaluations(optimizers, self._scaler, max_grad_norm, before_update, normalize, gathers)
        turns = Updates.of(updates, optimizers)
        job = Job(self._virtual_workers, self._seed, self._device, len(turns))
        if self._initial is not None:
            self._initial.check(model)
        wanted = Wanted(batch_size, shuffle, sampler, batch_sampler, drop_last, generator)
        options = LoaderOptions(collate_fn, num_workers, prefetch_factor, worker_init_fn, pin_memory)
        feed = feed_of(dataset, wanted, options, job)
        model.to(self._device)
        state = TrainingState(model, optimizers, schedulers, self._scaler, self._registered, feed.position)
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
            replace(self._recipe(overlap, normalize, turns), gathers=gathers),
            self._control,
            state,
            update,
            feed.sampling,
            feed.batching,
            writer,
            feed.participants,
            self._functions,
            [self, *([self._scaler] if self._scaler is not None else []), *feed.seeded],
            dataset,
            self._likeness(feed.data),
            self._code,
            Compiled(env.key, tell) if env else None,
        )
        self._trainer = trainer
        if env:
            self._fence = Fence(Path(env.checkpoint_directory), lambda: trainer.generation)
        stepping = trainer.stepping
        several = stepping.evaluations
        for position, each in enumerate(optimizers):
            make_elastic(
                each,
                partial(trainer.optimizer_stepped, position),
                partial(trainer.computes_for, each),
                stepping.evaluate if several is not None else None,
                several.install if several is not None else None,
            )
        single = isinstance(optimizer, torch.optim.Optimizer)
        return model, optimizer if single else tuple(optimizers), Batches(trainer)

    def _recipe(self, overlap: bool, normalize: str | None, updates: Updates) -> Recipe:
        env = self._env
        determinism = env.determinism if env else Determinism.ELASTIC
        ask_for(determinism, self._device)
        return Recipe(
            virtual_workers=self._virtual_workers,
            seed=self._seed,
            device=self._device,
            canonical=determinism in (Determinism.ELASTIC, Determinism.HETEROGENEOUS),
            overlap=overlap,
            max_steps=env.max_steps if env else None,
            normalize=normalize,
            updates=updates,
            comparing=Terms(env.compare_every, determinism is not Determinism.NONE, env.on_divergence)
            if env
            else Terms(),
        )

    def _likeness(self, data: Any) -> Likeness | None:
        """Of the data of this worker with that of the others; alone there are none."""
        env = self._env
        if env is None:
            return None
        equal = env.determinism is not Determinism.NONE
        return Likeness(data, f"{env.worker} on {env.address}", SteadyClock().now, equal)

    def begin(self, epochs: int, max_steps: int | None = None) -> Position:
        """Come to the loop, of so many epochs and at most `max_steps` global steps: wait for a place in the job and its state.

        Returns where the job is. `epochs` and `batches`, or `steps`, follow; `epochs` does this by itself where it is not called.
        Raises UserError where there cannot be such a loop.
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
        at_script_end(self._at_exit)  # others do not wait for threads that the script has left behind
        atexit.register(self._at_exit)
        _call_with_last_error(trainer.explain, trainer.raised)
        trainer.find(sys._getframe(1), self._local.has)
        epoch = trainer.arrive(epochs, max_steps)
        return Position(epoch, trainer.applied)

    def steps(self) -> Steps:
        """The global steps that are left of an epoch, one after the other (`hostloop`); sized: steps of a whole epoch. Each gives
        the batches of this worker's virtual workers, whose gradients are complete when the next one is asked for.

        A second pass is over the next epoch, unless a loop over `epochs` counts them. After the last, call `finish`.
        """
        return Steps(self._require_trainer("run.steps()"), counts_epochs=not self._in_epochs)

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left, up to `count`. A joiner begins in the one that the job is in; a leaver ends inside.

        Leaving the loop early (`break`) ends the training of the whole job: decide it from what is the same on all workers.
        Raises UserError where there cannot be such a loop.
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
        epoch = trainer.epoch
        try:
            while epoch < count:
                trainer.epoch_begins(epoch)
                yield epoch
                epoch += 1
                if trainer.finished:
                    break
        except GeneratorExit:
            if not self._over:  # else Python may close what the script has held until its end, when modules are gone
                trainer.left_early(by_error=_is_raising(sys._getframe(1)))
            raise
        finally:
            self._looping = False
        self.finish()

    def finish(self) -> None:
        """The training is over on this worker. `epochs` calls it at its end, `save` before it writes."""
        if self._trainer is not None:
            self._trainer.finish(self._epochs)
            self._over = True
            atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        """A script that left the loop by `break` and came to its end has finished. One that failed, or that called `sys.exit` in
        the middle of its loop, has not."""
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
        """Has the script been left by an exception, or come to its end with its training unfinished?"""
        unfinished = self._trainer is not None and not self._trainer.over
        return unfinished or getattr(sys, "last_value", None) is not None

    # -- the result

    def save(self, what: torch.nn.Module | Any, path: str | Path) -> None:
        """Write a model's `state_dict` (or any value that `torch.save` takes) to `path`, once, by the leader, atomically. A job
        that runs in a snapshot writes to where it was submitted, if `path` is relative.

        In the loop, also within a step, it is the model after the last applied step. After the loop it ends the training, as
        `finish`. UserError before the loop. A worker that was cut off, and whose job has gone on elsewhere, writes nothing.

        Where several workers train, all give the same: what they give is compared, and in the loop the file has its name after
        the next step (`saves`). If they differ, nothing is written, and the job ends with the reason. Under
        `if run.is_leader:` nothing is compared."""
        trainer = self._in_job("save()", "call it in the loop, or after it")
        # Who loops over `steps` alone has come to an end when none is left.
        in_loop = self._looping if self._in_epochs else not trainer.finished
        if not in_loop:
            self.finish()
        with trainer.as_applied():
            value = what.state_dict() if isinstance(what, torch.nn.Module) else what
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
    """Both functions get the error that ends the script: before its traceback is printed, and after."""
    before = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before_print(error)
        before(kind, error, trace)
        after(error)

    sys.excepthook = show


def _is_raising(frame: FrameType) -> bool:
    """Is an exception leaving a loop of `frame` right now? `break` is not one, and leaves no other trace.

    An exception on its way has made a traceback of where the frame stands. One that was caught before has stood elsewhere.
    """
    return any(
        isinstance(referrer, TracebackType) and referrer.tb_lasti == frame.f_lasti
        for referrer in gc.get_referrers(frame)
    )
