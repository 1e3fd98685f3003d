"""lightning.pytorch (version 2.6)::

    trainer = Trainer(strategy=ElasticStrategy(), accelerator="cpu", devices=1, ...)

The Trainer's loop gets one item for each global step, and its training step runs inside it for each virtual worker. So
its counters, schedulers, callbacks and stops need no change. The logged value of a step is the mean over all virtual
workers; each worker validates on all of the data. Clipping and `on_before_optimizer_step` see the global gradient, on
every worker.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities import rank_zero_only

import elasticd as elastic

from ..protocol.errors import UserError
from .bodies import GATHERS, ONE_AFTER_ANOTHER, Reading, Unscaled
from .leading import LiveRank
from .lightning_logs import StepLogs
from .lightning_state import HostState, refuse, refuse_loggers


class ElasticStrategy(SingleDeviceStrategy):
    """Strategy for one device, in a job with workers that join and leave. With automatic optimization."""

    def __init__(self, run: elastic.Run | None = None, **options: Any) -> None:
        """run: the job, if the script has called `elastic.join` itself. options: as every strategy takes them."""
        self.run = run or elastic.join()
        self._on_terminate = signal.getsignal(signal.SIGTERM)
        super().__init__(device=self.run.device, **options)
        self.global_rank = self.local_rank = rank_zero_only.rank = LiveRank(self.run)
        self._steps: Any = None
        self._step: Any = None
        self._logs = StepLogs(self.run)

    @property
    def is_global_zero(self) -> bool:
        return self.run.leads

    def connect(self, model: Any) -> None:
        """Check the loggers at the start, before the Trainer has used them."""
        super().connect(model)
        refuse_loggers(model.trainer)

    # -- the training's data: one item for each global step

    def process_dataloader(self, dataloader: Any) -> Any:
        """Return the steps of the training in place of its loader; every worker reads any other loader in full."""
        trainer = self.lightning_module.trainer
        if not trainer.training:
            return dataloader
        if self._steps is None:
            self._begin(trainer, Reading(dataloader, self.run.virtual_workers))
        return self._steps

    def _begin(self, trainer: Any, reading: Reading) -> None:
        refuse(trainer, self.lightning_module)
        state = HostState(trainer)
        # Lightning would end the training by itself when the cluster asks this worker to end.
        signal.signal(signal.SIGTERM, self._on_terminate)
        for callback in trainer.checkpoint_callbacks:
            # Workers check at different times: each writes the file again, under one name.
            callback.file_exists = lambda *_: False
        if getattr(self.precision_plugin, "scaler", None) is not None:
            self.precision_plugin.scaler = Unscaled(self.run.scaler(self.precision_plugin.scaler))
        self.run.register("lightning", state.give, state.take)
        self.run.prepare(self.lightning_module, self.optimizers[0], reading.loader, before_update=self._before_update)
        trainer.callbacks.insert(0, self._logs)
        trainer.callbacks.append(_AtTheEnd(self.run.finish))
        limit = trainer.max_steps if trainer.max_steps > 0 else None
        epochs = trainer.max_epochs if trainer.max_epochs not in (None, -1) else -(-(limit or 10**9) // len(reading))
        self._steps = _Epochs(self.run.steps())
        position = self.run.begin(epochs, limit)
        for _ in range(
            state.epoch - position.epoch
        ):  # others have passed the epoch's end, and the host continues after it
            assert not list(self.run.steps()), "an epoch whose end is part of the state has no step left"
        state.begin(position.steps)

    # -- one global step: the host's closure, once for each virtual worker here

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **named: Any) -> Any:
        result, ran = None, False
        for batch in self._step:
            self._micro_batch, ran = self._moved(batch), True
            result = closure()
        if not ran:  # this worker has no sample of this step; the host still needs its closure called
            self._micro_batch = None
            closure()
        return result

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self._step = batch

    def training_step(self, *arguments: Any, **named: Any) -> Any:
        if self._micro_batch is None:
            return None
        _, *others = arguments
        with self._logs.collecting(self.lightning_module, self._micro_batch):
            return super().training_step(self._micro_batch, *others, **named)

    def all_gather(self, tensor: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """Gather within one process, as validation is. Raises UserError in the training, where other workers' tensors
        are meant.
        """
        if self.lightning_module.trainer.training and self.run.virtual_workers > 1:
            raise UserError(f"self.all_gather() was called in the training: {ONE_AFTER_ANOTHER}. {GATHERS}")
        return super().all_gather(tensor, group, sync_grads)

    def _moved(self, batch: Any) -> Any:
        """Return a batch on the device, prepared as the host does for a batch from a data loader."""
        batch = self.lightning_module.on_before_batch_transfer(self.precision_plugin.convert_input(batch), 0)
        return self.batch_to_device(batch, self.root_device, 0)

    def _before_update(self) -> None:
        """Run the host's hook before the update, and its clipping, with the global gradient."""
        self.precision_plugin._after_closure(self.lightning_module, self.optimizers[0])


class _Epochs:
    """Iterable over the steps of one epoch after the other. The host stops by their number, and never asks for one
    more.
    """

    def __init__(self, steps: Any) -> None:
        self._steps = steps
        self._epoch: Iterator[Any] = iter(())

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[Any]:
        next(self._epoch, None)  # ends the epoch before
        self._epoch = iter(self._steps)
        while (step := next(self._epoch, None)) is not None:
            yield step


class _AtTheEnd(Callback):
    """Callback that ends the job's training after all other callbacks have run."""

    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish = finish

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._finish()
