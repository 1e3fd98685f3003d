"""Support for scripts with a written-out loop: its body runs once for each virtual worker that this worker hosts.

The script prepares its objects in its framework's way, in any order. They become elastic when the loop over epochs
begins. A torch DataLoader defines the data; the first one prepared is for training, and every worker reads all others
in full.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

import elasticd as elastic

from ..protocol.errors import UserError
from .ranks import by_rank

ONE_AFTER_ANOTHER = "the virtual workers of one GPU run one after the other, so the tensors of others are not there"
GATHERS = "For a loss over the whole global batch write the loop with elastic.join(): run.gather(tensor)"


class Bodies:
    """A script's model, optimizers and training data."""

    def __init__(self, run: elastic.Run) -> None:
        self.run = run
        self.models: list[torch.nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.reading: Reading | None = None

    def read(self, loader: DataLoader[Any]) -> Reading | None:
        """Return a replacement of the training's loader; None: training has one, so `loader` is for evaluation."""
        if self.reading is not None:
            return None
        self.reading = Reading(loader, self.run.virtual_workers)
        return self.reading

    def epochs(self, count: int) -> Iterator[int]:
        """Return the remaining epochs, in place of `range(count)`. Raises UserError if a model, an optimizer or data is
        missing.
        """
        if len(self.models) != 1 or not self.optimizers or self.reading is None:
            raise UserError("before epochs(): prepare one model, its optimizers, and the training's data loader")
        reading = self.reading
        single = self.optimizers[0] if len(self.optimizers) == 1 else self.optimizers
        *_, batches = self.run.prepare(self.models[0], single, reading.loader)
        reading.begin(batches)
        return self.run.epochs(count)

    def clip(self, max_norm: float) -> torch.Tensor:
        """Clip the global gradient to this norm when it is complete. Returns the norm of the step before."""
        return torch.tensor(self.run.clip(max_norm) or 0.0)

    def refuse_in_body(self, what: str) -> None:
        """Raises UserError in the loop over batches, where other virtual workers cannot be reached."""
        if self.reading is not None and self.reading.in_body:
            raise UserError(
                f"{what} was called in the loop over batches: {ONE_AFTER_ANOTHER}. Call it between epochs, where every worker "
                f"has evaluated everything. {GATHERS}"
            )


class Reading:
    """The training's data loader, as the script sees it: its batches here, its length in global steps."""

    def __init__(self, loader: DataLoader[Any], virtual_workers: int) -> None:
        self.loader = loader
        if isinstance(loader.sampler, DistributedSampler) and loader.batch_size is not None:
            self.loader = by_rank(loader, virtual_workers)
        self._virtual_workers = virtual_workers
        self._batches: Any = None
        self.in_body = False

    def begin(self, batches: Any) -> None:
        """Set the batches when the loop over epochs begins."""
        self._batches = batches

    def __len__(self) -> int:
        """Return the number of global steps in an epoch."""
        if self._batches is not None:
            return len(self._batches)
        n, size = self._virtual_workers, self.loader.batch_size
        if size is None or type(self.loader.batch_sampler) is not BatchSampler:
            return -(-len(self.loader) // n)
        samples, full = len(self.loader.sampler), n * size  # type: ignore[arg-type]  # as torch's own len(loader)
        return samples // full if self.loader.drop_last else -(-samples // full)

    def __iter__(self) -> Iterator[Any]:
        if self._batches is None:
            raise UserError(
                "the training's batches are there in the loop over epochs(), in the place of range(), and nowhere else"
            )
        for batch in self._batches:
            self.in_body = True
            yield batch
        self.in_body = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


class Unscaled:
    """An elastic gradient scaler for hosts that unscale before they clip; the runtime itself unscales the global
    gradient.
    """

    def __init__(self, scaler: Any) -> None:
        self._scaler = scaler

    def unscale_(self, optimizer: Any) -> None:
        """Do nothing: the clipped gradient is the global one, which is unscaled by then."""

    def step(self, optimizer: Any, *nothing: None) -> None:
        """Call `optimizer.step()` through the scaler; the update skips a step that overflows."""
        self._scaler.step(optimizer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scaler, name)
