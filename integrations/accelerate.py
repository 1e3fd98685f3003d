"""accelerate (version 1.15), in the script's own training loop::

    accelerator = ElasticAccelerator()
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for epoch in accelerator.epochs(5):

The first data loader that `prepare` gets is the one for training. As under N processes, `num_processes` is N, and a
prepared scheduler advances N times for each step unless the batches are split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler

import elasticd as elastic

from ..protocol.errors import UserError
from .bodies import Bodies, Unscaled


class ElasticAccelerator(Accelerator):
    """An Accelerator whose processes are a job's virtual workers."""

    def __init__(self, *arguments: Any, run: elastic.Run | None = None, **named: Any) -> None:
        """run: the job, if the script has called `elastic.join` itself. Raises UserError for options that cannot work."""
        self.run = run or elastic.join()
        self._bodies = Bodies(self.run)
        super().__init__(*arguments, **named)
        if self.gradient_accumulation_steps != 1:
            raise UserError("gradient_accumulation_steps: virtual workers take the place of it, leave it at 1")
        if self.split_batches or self.dispatch_batches:
            raise UserError("split_batches, dispatch_batches: each virtual worker reads its own batch, leave them out")
        if (given := self.scaler) is not None:
            self.scaler: Any = Unscaled(self.run.scaler(given))
        self._trackers: tuple[tuple[Any, ...], dict[str, Any]] | None = None  # to be opened by the leader

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the remaining epochs, in place of `range(count)`."""
        return self._bodies.epochs(count)

    # -- ranks and number of processes

    @property
    def num_processes(self) -> int:
        return self.run.virtual_workers

    @property
    def is_main_process(self) -> bool:
        return self.run.leads

    is_local_main_process = is_main_process

    def on_main_process(self, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Return a function that runs only on the worker that leads at the time of the call."""
        return lambda *arguments, **named: function(*arguments, **named) if function and self.is_main_process else None

    on_local_main_process = on_main_process

    def print(self, *arguments: Any, **named: Any) -> None:
        if self.is_main_process:
            print(*arguments, **named)

    # -- objects that the script prepares

    def prepare_model(self, model: Any, *arguments: Any, **named: Any) -> Any:
        self._bodies.models.append(model)
        return super().prepare_model(model, *arguments, **named)

    def prepare_optimizer(self, optimizer: Any, device_placement: bool | None = None) -> Any:
        self._bodies.optimizers.append(optimizer)
        prepared = AcceleratedOptimizer(optimizer, device_placement=False)  # the scaler acts on the global gradient
        self._optimizers.append(prepared)
        return prepared

    def prepare_scheduler(self, scheduler: Any) -> Any:
        prepared = super().prepare_scheduler(scheduler)
        prepared.__class__ = _Scheduler
        prepared.times = self.num_processes if self.step_scheduler_with_optimizer else 1
        return prepared

    def prepare_data_loader(self, data_loader: Any, *arguments: Any, **named: Any) -> Any:
        """Return the training's data loader; every worker reads any other loader in full."""
        return self._bodies.read(data_loader) or prepare_data_loader(
            data_loader, self.device, num_processes=1, process_index=0, put_on_device=self.device_placement
        )

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Let the objects' states travel with the job. Call it before `epochs`."""
        for each in objects:
            name = f"{type(each).__name__} {len(self._custom_objects)}"
            self._custom_objects.append(each)
            self.run.register(name, each.state_dict, each.load_state_dict)

    # -- calls of the script's loop

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: int = 2) -> torch.Tensor:
        """Clip the global gradient as soon as it is complete. Returns the norm of the step before."""
        if norm_type != 2:
            raise UserError(f"clip_grad_norm_(norm_type={norm_type}): only the 2-norm works here")
        return self._bodies.clip(max_norm)

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        raise UserError("clip_grad_value_(): clip_grad_norm_() acts on the global gradient")

    def gather(self, tensor: Any) -> Any:
        """Return `tensor`: between epochs every worker has evaluated all of the data."""
        self._bodies.refuse_in_body("accelerator.gather()")
        return tensor

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        self._bodies.refuse_in_body("accelerator.gather_for_metrics()")
        return input_data

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        self._bodies.refuse_in_body("accelerator.reduce()")
        return tensor * scale

    def init_trackers(self, *arguments: Any, **named: Any) -> None:
        """Record the trackers, each of which opens its directory when the leader first logs."""
        self._trackers = arguments, named

    def log(self, *arguments: Any, **named: Any) -> None:
        if self.is_main_process:
            if self._trackers is not None:
                (first, others), self._trackers = self._trackers, None
                super().init_trackers(*first, **others)
            super().log(*arguments, **named)

    def save_state(self, *arguments: Any, **named: Any) -> str:
        raise UserError("accelerator.save_state(): the job keeps its own state; save_model() writes the weights")

    def load_state(self, *arguments: Any, **named: Any) -> None:
        raise UserError("accelerator.load_state(): the job goes on from its own state by itself")


class _Scheduler(AcceleratedScheduler):
    """A scheduler that advances as often as in a real run of N processes."""

    times: int

    def step(self, *arguments: Any, **named: Any) -> None:
        for _ in range(self.times):
            self.scheduler.step(*arguments, **named)
