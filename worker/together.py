"""What a script does together with the other workers: evaluate, decide, and have one of them speak."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from ..protocol.errors import UserError
from .between import Function
from .driver import Control
from .evaluation import Evaluation
from .events import MetricsReported
from .local_names import LocalNames
from .seen import Seen


class Together(Seen):
    """The part of `run.Run` that may wait for others (`between`)."""

    def __init__(self, control: Control, virtual_workers: int, device: torch.device) -> None:
        super().__init__(virtual_workers, device)
        self._control = control
        self._functions: list[Function] = []
        self._epochs = 0  # of the script's loop; 0: it has not come to it
        self._local = LocalNames()

    # -- between steps

    def every(self, steps: int) -> Callable[[Callable[[], None]], Callable[[], None]]:
        """Have a function called on every worker after each so many steps: `@run.every(steps=1000)`, before `epochs`.

        It is called when the step's update has been applied and the loop body has run for the last time, on all workers alike,
        also on one that had no batch in that step: `run.steps_done` says after which. It may call `evaluate`, `agree` and `stop`.
        """
        if steps < 1:
            raise UserError(f"every(steps={steps}): at least 1 is needed")

        def add(function: Callable[[], None]) -> Callable[[], None]:
            if self._epochs:
                raise UserError("every() was called after epochs(): call it before, as all workers have to know it")
            self._functions.append(Function(steps, function))
            return function

        return add

    def evaluate(
        self,
        function: Callable[[Any], Any],
        dataset: Any,
        batch_size: int | None = None,
        *,
        metrics: Any = None,
        model: torch.nn.Module | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
    ) -> Any:
        """What `function(batch)` says of each batch of `dataset`, added up; the same bits for every number of workers.

        The workers divide the batches among themselves. The function returns sums over its batch: a number, a tensor, or mappings
        and lists of them; or None, where `metrics` has all. Tensors are added in double precision (integers in 64 bits), those
        of one number come back as numbers. It is called without gradients, with the model that `prepare` was given in eval
        mode, and it may be called again for the same batch: it must change nothing but `metrics`.

        metrics: one of torchmetrics, or several, which the function updates. Afterwards they have the state of all batches.
        model: another one that the function uses, to be put in eval mode (such as an average of the weights).
        dataset: map-style, or a DataLoader of one, which says the rest, too. Samples come in their order.
        collate_fn, num_workers: as a DataLoader takes them.

        Call it on all workers, between two epochs or in a function of `every`; after the loop each worker computes all of it.
        Raises UserError elsewhere, and for arguments that cannot work.
        """
        trainer = self._require_trainer("run.evaluate()")
        models = [trainer.model] if model is None else [trainer.model, model]

        def evaluation(seeds: tuple[int | str, ...]) -> Evaluation:
            return Evaluation(
                function,
                dataset,
                batch_size,
                self._virtual_workers,
                seeds,
                self._device,
                models,
                metrics,
                collate_fn,
                num_workers,
            )

        return trainer.between.evaluate(evaluation)

    def agree(self, value: Any, choose: Callable[[list[Any]], Any] | None = None) -> Any:
        """One value on all workers, where each has its own: the leader's, or what `choose` makes of all in the order of ranks.

        `run.agree(time.time() > end, any)`; also `all`, `max`, `min`, or a function of your own that depends on the list alone.
        Values are numbers, text, bytes, None, lists, tuples and mappings of them.

        What has been agreed upon stands as long as one worker is left that knows it, and is saved with the job. Call it on all
        workers, between two epochs or in a function of `every`. Raises UserError elsewhere.
        """
        return self._require_trainer("run.agree()").between.agree(value, choose)

    def stop(self) -> None:
        """End the training with the last applied step, from a function of `every`: both loops end, as after the last epoch.

        Call it on all workers alike, because of what `evaluate` or `agree` has said. Raises UserError in the loop body.
        """
        self._require_trainer("run.stop()").between.stop()

    def local(self, *names: str) -> None:
        """These variables are a worker's own, and may differ from those of others: `run.local("running_loss")`, where only what
        is printed depends on it. Also attributes, `run.local("meter.total")`. Call it before `epochs`, where the loop is. Raises
        UserError for a name that the script has not."""
        if self._epochs:
            raise UserError(
                "local() was called after epochs(): call it before, as the workers are compared from there on"
            )
        self._local.add(names, sys._getframe(1))

    # -- what is done once

    def report(self, **metrics: float) -> None:
        """Show these numbers in `elasticctl status`. Only the leader's count: `run.report(**run.means)` are those of
        all. UserError before the loop."""
        if self._in_job("report()", "call it in the loop, or after it").is_leader:
            self._control.tell(MetricsReported({name: float(value) for name, value in metrics.items()}))

    def log(self, text: str) -> None:
        """Print a line, on the leader only. UserError before the loop."""
        if self._in_job("log()", "use print() before it, which each process does").is_leader:
            print(text, flush=True)
