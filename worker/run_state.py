"""Properties and calls through which a script reads its job: its position, and the results of the last step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from ..protocol.errors import UserError
from .results import Result
from .sharing import Shared
from .trainer import Trainer


class RunState:
    """The part of `run.Run` that needs no loop of its own. `_trainer` is set from `prepare` on."""

    def __init__(self, virtual_workers: int, device: torch.device) -> None:
        self._virtual_workers = virtual_workers
        self._device = device
        self._trainer: Trainer | None = None

    # -- position

    @property
    def virtual_workers(self) -> int:
        """N, the number of micro-batches in a global step. The result depends on N, but not on the number of GPUs."""
        return self._virtual_workers

    @property
    def batch_factor(self) -> int:
        """Number of micro-batches that each virtual worker has in this step; between two steps, in the next one. 1 unless the
        batch has grown (`run.scaling`).
        """
        return self._in_job("batch_factor", "read it in the loop, where the job's state has come").batch_factor

    @property
    def device(self) -> torch.device:
        """Device of this worker. Batches arrive there, and `prepare` moves the model there."""
        return self._device

    @property
    def is_leader(self) -> bool:
        """Whether this worker acts for the job in work that is done once, such as writing a file.

        Raises UserError before the loop.
        """
        trainer = self._in_job("is_leader", "what every process may do needs no leader; the rest belongs into the loop")
        trainer.asked_for_place(is_first=trainer.is_leader)
        return trainer.is_leader

    @property
    def world_size(self) -> int:
        """Number of workers that train now.

        Raises UserError before the loop, and in the loop body before `optimizer.step()`.
        """
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
        """Rank of this worker in the current roster, from 0. Raises UserError before the loop."""
        trainer = self._in_job("rank", "to tell processes apart in a log, use os.getpid()")
        trainer.asked_for_place(is_first=trainer.rank == 0)
        return trainer.rank

    @property
    def steps_done(self) -> int:
        """Global steps applied since the beginning of the job. Raises UserError before the loop."""
        return self._in_job("steps_done", "read it in the loop, where the job's state has come").steps_done

    def _in_job(self, what: str, instead: str) -> Trainer:
        """Return the trainer if this worker has a place among the workers; raises UserError otherwise."""
        if self._trainer is None or not self._trainer.has_place:
            raise UserError(
                f"run.{what} is not known before the loop over run.epochs(): this process may come to a job that has trained for "
                f"long, and gets its place there. {instead[0].upper()}{instead[1:]}"
            )
        return self._trainer

    @property
    def steps_per_epoch(self) -> int:
        """Number of global steps in an epoch.

        Raises UserError before `prepare`, and for shards, which have no known length.
        """
        steps = self._require_trainer("run.steps_per_epoch").steps_per_epoch
        if steps is None:
            raise UserError(
                "run.steps_per_epoch: how many steps an epoch of shards has is not known before they are read"
            )
        return steps

    @property
    def leads(self) -> bool:
        """Whether this worker is the leader at this moment; False before the loop.

        For frameworks, which also ask before the loop. A script reads `is_leader`.
        """
        return self._trainer is not None and self._trainer.has_place and self._trainer.is_leader

    @property
    def finished(self) -> bool:
        """Whether all steps of the job have been applied."""
        return self._trainer is not None and self._trainer.stepping.finished

    @property
    def is_behind(self) -> bool:
        """Whether this worker's loop is in an earlier epoch than the job's state.

        The worker has then taken over the state of other workers. Work of the script until its next epoch, such as an
        evaluation, has been done by them.
        """
        return self._trainer is not None and self._trainer.held.is_behind

    @property
    def last_lr(self) -> tuple[float, ...]:
        """Learning rates of the last applied step, one for each group of each optimizer; empty before the first step.

        In a loop body, this and the following properties describe the previous step, on every worker alike.
        """
        return self._result.rates

    @property
    def grad_norm(self) -> float | None:
        """2-norm of the global gradient before clipping, in the last applied step; None without clipping.

        `max_grad_norm=math.inf` measures the norm without changing the gradient.
        """
        norm = self._result.norm
        return None if norm is None else float(norm)

    @property
    def shared(self) -> Mapping[str, Shared]:
        """Values that the bodies of the last applied step passed to `share`, by name, on every worker.

        They include all virtual workers. In `before_update` these are the values of the step that is about to be
        applied.
        """
        return dict(self._result.shared)

    @property
    def _result(self) -> Result:
        return self._trainer.result if self._trainer else Result()

    def on_leader(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, as soon as this worker is the leader: to open files that only the leader writes to.

        The call happens when the loop begins, or later between two steps, on the script's thread.
        """
        self._require_trainer("run.on_leader()").call_as_leader(callback)

    # -- in a loop body

    def share(self, **values: int | float | torch.Tensor) -> None:
        """Share values of the current virtual worker with all workers: numbers, or tensors of one element.

        Every worker has the exact values as `run.shared` before the update. Call it in the loop body before
        `optimizer.step()`; raises UserError elsewhere.
        """
        trainer = self._require_trainer("run.share()")
        trainer.stepping.share(self._body("share"), values)

    def mean(self, **values: int | float | torch.Tensor) -> None:
        """Average numbers of this micro-batch over the global batch: `run.mean(loss=loss)`.

        Each sample has the same weight. The same call as `share`, under the name that most scripts need; `run.means`
        has the averages.
        """
        self.share(**values)

    @property
    def means(self) -> Mapping[str, float]:
        """Averages over the global batch of values passed to `mean` or `share`, by name.

        They are from the last applied step that had any, the same on all workers, and part of the job's state. A name
        that no step has averaged yet raises UserError.
        """
        return _Means(self._result.means)

    @property
    def weight(self) -> float:
        """Weight of the current virtual worker's mean in the mean of the step: 1 in a full step.

        Raises UserError outside a loop body.
        """
        return self._require_trainer("run.weight").stepping.weight(self._body("weight"))

    def gather(self, tensor: torch.Tensor, differentiable: bool = True) -> torch.Tensor:
        """Return this tensor of all N virtual workers, concatenated: from shape [B, ...] to [N * B, ...].

        For losses that compare samples of the whole global batch (CLIP, SimCLR). The rows of this body begin at
        `virtual_worker * B`. The step's gradient is that of the mean of all virtual workers' losses, each of which also
        depends on the tensors of others. With `differentiable=False` the tensors of other virtual workers count as
        constants.

        Needs `prepare(…, gathers=True)`; the loop body then runs three times in a step, or twice with
        `differentiable=False` (`gathering`). All bodies make the same calls, with tensors of one shape. Raises
        UserError elsewhere. Source: Gao et al. 2021.
        """
        trainer = self._require_trainer("run.gather()")
        self._body("gather")
        return trainer.stepping.gather(tensor, differentiable)

    @property
    def virtual_worker(self) -> int:
        """Number of the virtual worker that the loop body trains, 0 to N - 1.

        Raises UserError outside the body or after `optimizer.step()`.
        """
        trainer = self._require_trainer("run.virtual_worker")
        self._body("virtual_worker")
        return trainer.stepping.number

    def clip(self, max_norm: float) -> float | None:
        """Clip the global gradient to this 2-norm before the update, in place of `clip_grad_norm_`.

        A body sees the gradient of its micro-batch, which is not the global one. Returns `grad_norm` of the previous
        step. Call it in the loop body before `optimizer.step()`; raises UserError elsewhere.
        """
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


class _Means(dict[str, float]):
    """Averages by name."""

    def __missing__(self, name: str) -> float:
        raise UserError(
            f"run.means has no {name!r}: the average is known once a step has been applied whose loop bodies have called "
            f"run.mean({name}=...). Read it between steps, as in a function under @run.every(steps=1)"
        )
