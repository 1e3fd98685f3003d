"""Scripts written for torchrun: `adopt` takes the place of `init_process_group` and `DistributedDataParallel`::

    from elasticd.integrations.ddp import DistributedSampler, adopt

    job, model, optimizer, loader = adopt(model, optimizer, loader)
    for epoch in job.epochs(5):
        for x, y in loader:
            loss_fn(model(x), y).backward()
            job.clip(1.0)
            optimizer.step()
    job.save(model, "model.pt")

Virtual worker v reads what rank v of N processes would. With the canonical hook (`worker.gradients.ddp`) in those N processes the
results are the same, bit for bit.
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
    """torch's, where no process group is: the shares of N ranks are made of it when the job begins."""

    def __init__(
        self,
        dataset: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        """num_replicas, rank: of no account, since the job says how many virtual workers there are."""
        super().__init__(dataset, 1, 0, shuffle, seed, drop_last)


class Job(Bodies):
    """What a script talks to in the place of its process group."""

    def save(self, what: Any, path: str | Path) -> None:
        """As `Run.save`: once, by the leader."""
        self.run.save(what, path)

    def log(self, text: str) -> None:
        """As `Run.log`: a line, by the leader only."""
        self.run.log(text)

    @property
    def is_leader(self) -> bool:
        """In the place of `rank == 0`, but not to be remembered: another worker may become the leader."""
        return self.run.is_leader


def adopt(*objects: Any, run: elastic.Run | None = None) -> tuple[Any, ...]:
    """Join the job, and make these objects elastic: a model, its optimizers, the training's DataLoader, a GradScaler. Schedulers
    and data loaders for evaluation may be among them; the latter are read in full by every worker.

    Returns the job, and the objects in their order. run: if the script has called `elastic.join` itself.
    Raises UserError for what cannot work.
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
            pass  # the runtime finds it, and follows what the script calls
        case _:
            raise UserError(
                f"adopt() got a {type(each).__name__}; it takes a model, optimizers, schedulers, a GradScaler and DataLoaders"
            )
    return each
