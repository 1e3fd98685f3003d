"""Scripts written for torchrun: `adopt` takes the place of `init_process_group` and `DistributedDataParallel`::

    from elasticd.integrations.ddp import DistributedSampler, adopt

    job, model, optimizer, loader = adopt(model, optimizer, loader)
    for epoch in job.epochs(5):
        for x, y in loader:
            loss_fn(model(x), y).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    job.save(model, "model.pt")

Virtual worker v reads the samples that rank v of N processes would read. With the canonical hook
(`worker.gradients.ddp`) in those N processes the results are the same, bit for bit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from torch.utils.data import DistributedSampler as TorchSampler

import elasticd as elastic

from ..protocol.errors import UserError
from .bodies import Bodies


class DistributedSampler(TorchSampler[Any]):
    """torch's sampler without a process group: the runtime derives the N ranks' samples from it when the job begins."""

    def __init__(
        self,
        dataset: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        """num_replicas, rank: ignored, since the job fixes the number of virtual workers."""
        super().__init__(dataset, 1, 0, shuffle, seed, drop_last)


class Job(Bodies):
    """Handle of a script on its job, in place of a process group."""

    def save(self, what: Any, path: str | Path) -> None:
        """Save once, by the leader, as `Run.save` does."""
        self.run.save(what, path)

    def log(self, text: str) -> None:
        """Print a line, by the leader only, as `Run.log` does."""
        self.run.log(text)

    @property
    def is_leader(self) -> bool:
        """Whether this worker leads now, in place of `rank == 0`. Do not store it: another worker may become the
        leader.
        """
        return self.run.is_leader


def adopt(*objects: Any, run: elastic.Run | None = None) -> tuple[Any, ...]:
    """Join the job, and make these objects elastic: a model, its optimizers, the training's DataLoader, a GradScaler.
    Schedulers and data loaders for evaluation may be among them; every worker reads the latter in full.

    Returns the job, and the objects in their order. run: the job, if the script has called `elastic.join` itself.
    Raises UserError for objects that cannot be elastic.
    """
    job = Job(run or elastic.join())
    return job, *(_adopted(job, each) for each in objects)


def _adopted(job: Job, each: Any) -> Any:
    match each:
        case DistributedDataParallel():
            raise UserError("adopt() takes the model itself: leave DistributedDataParallel out")
        case torch.nn.Module():
            job.models.append(each)
        case torch.optim.Optimizer():
            job.optimizers.append(each)
        case DataLoader():
            return job.read(each) or each
        case torch.amp.GradScaler():
            return job.run.scaler(each)
        case LRScheduler():
            pass  # the runtime finds the scheduler, and follows the script's calls
        case _:
            raise UserError(
                f"adopt() got a {type(each).__name__}; it takes a model, optimizers, schedulers, a GradScaler and DataLoaders"
            )
    return each
