"""What a script reads of its job: where it is, and what the last step came to."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from ..protocol.errors import UserError
from .results import Result
from .sharing import Shared
from .trainer import Trainer


class Seen:
    """The part of `run.Run` that needs no loop of its own. `_trainer` is there from `prepare` on."""

    def __init__(self, virtual_workers: int, device: torch.device) -> None:
        self._virtual_workers = virtual_workers
        self._device = device
        self._trainer: Trainer | None = None

    # -- where we are

    @property
    def virtual_workers(self) -> int:
        """N: how many micro-batches a global step has. The result depends on it, and on nothing of the cluster."""
        return self._virtual_workers

    @property
    def device(self) -> torch.device:
        """Where this worker computes. Batches arrive there, and `prepare` moves the model there."""
        return self._device

    @property
    def is_leader(self) -> bool:
        """Whether this worker speaks for the job: for what is to be done once, such as writing a file. UserError before the
        loop."""
        trainer = self._in_job("is_leader", "what every process may do needs no leader; the rest belongs into the loop")
        trainer.asked_for_place(is_first=trainer.is_leader)
        return trainer.is_leader

    @property
    def world_size(self) -> int:
        """How many workers train now. UserError before the loop, and in the loop body before `optimizer.step()`."""
        if self._trainer is not None and self._trainer.stepping.virtual_worker is not None:
            raise UserError(
                "run.world_size was read in the loop body before optimizer.step(), and is another number after each resize. What "
                "a loss or a learning rate depends on is run.virtual_workers, which never changes; what a log needs is read "
                "behind optimizer.step()"
            )
        return self._in_job(
            "world_size", "what a result depends on is run.virtual_workers, which never changes"
        ).world_size

    @property
    def rank(self) -> int:
        """This worker's rank among them. UserError before the loop."""
        trainer = self._in_job("rank", "to tell processes apart in a log, use os.getpid()")
        trainer.asked_for_place(is_first=trainer.rank == 0)
        return trainer.rank

    @property
    def steps_done(self) -> int:
        """Global steps applied since the beginning of the job. UserError before the loop."""
        return self._in_job("steps_done", "read it in the loop, where the job's state has come").steps_done

    def _in_job(self, what: str, instead: str) -> Trainer:
        """The trainer, as soon as it has a place among the workers."""
        if self._trainer is None or not self._trainer.has_place:
            raise UserError(
                f"run.{what} is not known before the loop over run.epochs(): this process may come to a job that has trained for "
                f"long, and gets its place there. {instead[0].upper()}{instead[1:]}"
            )
        return self._trainer

    @property
    def steps_per_epoch(self) -> int:
        """Global steps of one epoch. Raises UserError before `prepare`, and where nobody knows: shards."""
        steps = self._require_trainer("run.steps_per_epoch").steps_per_epoch
        if steps is None:
            raise UserError(
                "run.steps_per_epoch: how many steps an epoch of shards has is not known before they are read"
            )
        return steps

    @property
    def leads(self) -> bool:
        """Does this worker speak for the job at this moment? For frameworks, which ask also before the loop, when it does not
        yet. A script asks `is_leader`."""
        return self._trainer is not None and self._trainer.has_place and self._trainer.is_leader

    @property
    def finished(self) -> bool:
        """Have all steps of the job been applied?"""
        return self._trainer is not None and self._trainer.finished

    @property
    def is_behind(self) -> bool:
        """Is this worker's loop in an epoch that the job's state is past? It has taken over the state of others then, and what it
        does until its next epoch begins, such as an evaluation, has been done."""
        return self._trainer is not None and self._trainer.is_behind

    @property
    def last_lr(self) -> tuple[float, ...]:
        """The learning rates that the step applied last was made with: of each group of each optimizer. None before the first. In
        a loop body this and what follows is of the step before, on every worker alike."""
        return self._result.rates

    @property
    def grad_norm(self) -> float | None:
        """The global gradient's 2-norm before clipping, in the step applied last. None: nothing clips. `max_grad_norm=math.inf`
        measures it and changes nothing."""
        norm = self._result.norm
        return None if norm is None else float(norm)

    @property
    def shared(self) -> Mapping[str, Shared]:
        """What the bodies of the step applied last have told (`share`), by name: of all virtual workers, on every worker. In
        `before_update` it is that of the step that is about to be applied."""
        return dict(self._result.shared)

    @property
    def _result(self) -> Result:
        return self._trainer.result if self._trainer else Result()

    def on_leader(self, callback: Callable[[], None]) -> None:
        """Call this once, as soon as this worker is the job's leader: to open what only the leader writes to. It is called when
        the loop begins, or later between two steps, on the thread of the script."""
        self._require_trainer("run.on_leader()").call_as_leader(callback)

    # -- in a loop body

    def share(self, **values: int | float | torch.Tensor) -> None:
        """Tell all workers these values of the present virtual worker: numbers, or tensors of one element. They are there as
        `run.shared` before the update, exact, on every worker. Call it in the loop body, before `optimizer.step()`; elsewhere it
        raises UserError."""
        trainer = self._require_trainer("run.share()")
        trainer.stepping.share(self._body("share"), values)

    def mean(self, **values: int | float | torch.Tensor) -> None:
        """Have numbers of this micro-batch averaged over the step's global batch, in which each sample counts the same:
        `run.mean(loss=loss)`. It is `share`, under the name of what most scripts want; `means` has the averages."""
        self.share(**values)

    @property
    def means(self) -> Mapping[str, float]:
        """The averages over the global batch of what bodies have told (`mean`, `share`), by name: of the last applied step in
        which they have. The same on all workers, and part of the state."""
        return dict(self._result.means)

    @property
    def weight(self) -> float:
        """What the present virtual worker's mean counts in that over all of them: 1 in a full step. In a loop body alone."""
        return self._require_trainer("run.weight").stepping.weight(self._body("weight"))

    def gather(self, tensor: torch.Tensor, differentiable: bool = True) -> torch.Tensor:
        """This tensor of all N virtual workers, one behind the other: from [B, ...] to [N * B, ...], in which the rows of this
        body begin at `virtual_worker * B`. For losses that compare samples of the whole global batch (CLIP, SimCLR).

        The step's gradient is that of the mean of all virtual workers' losses, each of which depends on the tensors of others,
        too. differentiable=False: others' tensors count as constants. Needs `prepare(…, gathers=True)`, for which the loop body
        runs three times in a step, or else twice (`gathering`). All bodies call it alike, with tensors of one shape. Raises
        UserError elsewhere. Source: Gao et al. 2021."""
        trainer = self._require_trainer("run.gather()")
        self._body("gather")
        return trainer.stepping.gather(tensor, differentiable)

    @property
    def virtual_worker(self) -> int:
        """The number of the one whose loop body runs, 0 to N - 1. In a loop body alone, before `optimizer.step()`."""
        trainer = self._require_trainer("run.virtual_worker")
        self._body("virtual_worker")
        return trainer.stepping.number

    def clip(self, max_norm: float) -> float | None:
        """Clip the global gradient to this 2-norm before the update. For a body that calls `clip_grad_norm_`: its own gradient is
        not the global one. Returns `grad_norm`, which is that of the step before. Call it where `share` may be."""
        trainer = self._require_trainer("run.clip()")
        trainer.stepping.clip(self._body("clip"), max_norm)
        return self.grad_norm

    def _body(self, what: str) -> int:
        virtual_worker = self._trainer.stepping.virtual_worker if self._trainer else None
        if virtual_worker is None:
            raise UserError(f"{what}() belongs into the loop body, before optimizer.step()")
        return virtual_worker

    def _require_trainer(self, what: str = "run.epochs()") -> Trainer:
        if self._trainer is None:
            raise UserError(f"call run.prepare(model, optimizer, dataset, batch_size=...) before {what}")
        return self._trainer
