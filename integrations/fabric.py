"""lightning.fabric (version 2.6)::

    fabric = Fabric(strategy=ElasticStrategy(), accelerator="cpu")
    ...
    for epoch in fabric.strategy.epochs(5):

The first data loader that `setup_dataloaders` gets is the one for training.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from lightning.fabric.strategies import SingleDeviceStrategy
from lightning.fabric.utilities.rank_zero import rank_zero_only

import elasticd as elastic

from ..protocol.errors import UserError
from .bodies import Bodies, Unscaled
from .leading import LiveRank


class ElasticStrategy(SingleDeviceStrategy):
    """Strategy for one device, in a job with workers that join and leave."""

    def __init__(self, run: elastic.Run | None = None, **options: Any) -> None:
        """run: the job, if the script has called `elastic.join` itself. options: as every strategy takes them."""
        self.run = run or elastic.join()
        self._bodies = Bodies(self.run)
        super().__init__(device=self.run.device, **options)
        self.global_rank = self.local_rank = rank_zero_only.rank = LiveRank(self.run)

    def epochs(self, count: int) -> Iterator[int]:
        """Return the remaining epochs, in place of `range(count)`."""
        scaler = getattr(self.precision, "scaler", None)
        if scaler is not None:
            self.precision.scaler = Unscaled(self.run.scaler(scaler))
        return self._bodies.epochs(count)

    @property
    def is_global_zero(self) -> bool:
        return self.run.leads

    # -- objects that the script sets up

    def setup_module(self, module: Any) -> Any:
        self._bodies.models.append(module)
        return super().setup_module(module)

    def setup_optimizer(self, optimizer: Any) -> Any:
        self._bodies.optimizers.append(optimizer)
        return super().setup_optimizer(optimizer)

    def process_dataloader(self, dataloader: Any) -> Any:
        return self._bodies.read(dataloader) or dataloader

    # -- calls of the script's loop

    def clip_gradients_norm(
        self,
        module: Any,
        optimizer: Any,
        max_norm: float | int,
        norm_type: float | int = 2.0,
        error_if_nonfinite: bool = True,
    ) -> torch.Tensor:
        """Clip the global gradient as soon as it is complete. Returns the norm of the step before."""
        if norm_type != 2.0:
            raise UserError(f"clip_gradients(norm_type={norm_type}): only the 2-norm works here")
        return self._bodies.clip(max_norm)

    def clip_gradients_value(self, module: Any, optimizer: Any, clip_val: float | int) -> None:
        raise UserError("clip_gradients(clip_val=...): clip by norm, which acts on the global gradient")

    def all_reduce(self, tensor: Any, *arguments: Any, **named: Any) -> Any:
        """Return `tensor`: between epochs every worker has evaluated all of the data."""
        self._bodies.refuse_in_body("fabric.all_reduce()")
        return tensor

    def all_gather(self, tensor: Any, *arguments: Any, **named: Any) -> Any:
        """Return `tensor`, as `all_reduce` does."""
        self._bodies.refuse_in_body("fabric.all_gather()")
        return tensor

    def load_checkpoint(self, *arguments: Any, **named: Any) -> Any:
        """Load a checkpoint before the loop begins; later the state is the job's own."""
        if self.run.steps_done:
            raise UserError("fabric.load() was called in a job that trains: it goes on from its own state by itself")
        return super().load_checkpoint(*arguments, **named)
