"""Calls of a script that concern all workers: evaluate, agree, stop, and print or report once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from ..protocol.errors import UserError
from .driver import Control
from .evaluation import Evaluation
from .events import MetricsReported
from .run_state import RunState
from .step_boundary import Function
from .variables.local_names import LocalNames


class Collectives(RunState):
    """The part of `run.Run` that may wait for other workers (`step_boundary`)."""

    def __init__(self, control: Control, virtual_workers: int, device: torch.device) -> None:
        super().__init__(virtual_workers, device)
        self._control = control
        self._functions: list[Function] = []
        self._epochs = 0  # number of epochs in the script's loop; 0: the loop has not begun
        self._local = LocalNames()

    # -- between steps

    def every(self, steps: int) -> Callable[[Callable[[], None]], Callable[[], None]]:
        """Decorate a function that every worker calls after each `steps` global steps: `@run.every(steps=1000)`.

        Call it before `epochs`. The function is called after the step's update and its last loop body, on all workers
        alike, also on a worker that had no batch in that step. `run.steps_done` is the number of the step. The function
        may call `evaluate`, `agree` and `stop`. Raises UserError if `steps` is below 1, and in the loop.
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
        """Return the sum of `function(batch)` over all batches of `dataset`, bit for bit the same for every number of
        workers.

        The workers divide the batches among themselves. The function returns sums over its batch: a number, a tensor,
        or mappings and lists of these; or None if `metrics` hold the results. Tensors are added in double precision
        (integers in 64 bits); sums of numbers come back as numbers. The function runs without gradients, with the model
        of `prepare` in eval mode. It must change nothing but `metrics`, because it may run again for the same batch.

        - `metrics`: one or several metrics of torchmetrics that the function updates. Afterwards they have the state of
          all batches.
        - `model`: another model that the function uses, such as an average of the weights; it is put into eval mode,
          too.
        - `dataset`: a map-style dataset, or a DataLoader of one, which also gives the other arguments. Samples come in
          their order.
        - `batch_size`: samples per batch.
        - `collate_fn`, `num_workers`: as in a DataLoader.

        Call it on all workers, between two epochs or in a function of `every`. After the loop each worker computes the
        whole sum. Raises UserError elsewhere, and for arguments that cannot work.
        """
        trainer = self._require_trainer("run.evaluate()")
        models = [trainer.held.parts.model] if model is None else [trainer.held.parts.model, model]

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

        return trainer.step_boundary.evaluate(evaluation)

    def agree(self, value: Any, choose: Callable[[list[Any]], Any] | None = None) -> Any:
        """Return one value on all workers: the leader's, or the result of `choose` on the list of all values by rank.

        Example: `run.agree(time.time() > end, any)`. Also `all`, `max`, `min`, or a function that depends on the list
        alone. Values are numbers, text, bytes, None, and lists, tuples and mappings of these.

        An agreed value holds as long as one worker that knows it is left, and is saved with the job. Call it on all
        workers, between two epochs or in a function of `every`. Raises UserError elsewhere.
        """
        return self._require_trainer("run.agree()").step_boundary.agree(value, choose)

    def set_batch(self, factor: int, *, rate: float | None = None) -> None:
        """Let the batch be `factor` times the job's own from the next step on (AdaBatch; Elan VI-B).

        - `rate`: what the learning rate is multiplied by, reached linearly over the `ramp_steps` of `run.scaling`. None:
          `factor`.

        Call it on all workers, between two epochs or in a function of `every`. Raises UserError elsewhere, without
        `run.scaling`, for a factor outside 1 to its `max_factor`, and for a rate that is not finite and above 0.
        """
        self._require_trainer("run.set_batch()").set_batch(factor, rate)

    def stop(self) -> None:
        """End the training with the last applied step: both loops end, as after the last epoch.

        Call it in a function of `every`, on all workers alike, for example after a result of `evaluate` or `agree`.
        Raises UserError in the loop body.
        """
        trainer = self._require_trainer("run.stop()")
        trainer.step_boundary.stop()
        trainer.gather_parameters()  # now, since workers may still join

    def local(self, *names: str) -> None:
        """Declare variables of the script that may differ between workers: `run.local("running_loss")`.

        For variables on which only printed output depends; attributes work, too: `run.local("meter.total")`. Call it
        before `epochs`, in the function with the loop. Raises UserError for a name that does not exist in the script,
        and in the loop.
        """
        if self._epochs:
            raise UserError(
                "local() was called after epochs(): call it before, as the workers are compared from there on"
            )
        self._local.add(names, sys._getframe(1))

    # -- calls with an effect on the leader only

    def report(self, **metrics: float) -> None:
        """Show these numbers in `elasticctl status`: `run.report(**run.means)`.

        Only the leader's numbers are shown; those of `run.means` cover all workers. Raises UserError before the loop.
        """
        if self._in_job("report()", "call it in the loop, or after it").is_leader:
            self._control.tell(MetricsReported({name: float(value) for name, value in metrics.items()}))

    def log(self, text: str) -> None:
        """Print a line, on the leader only. Raises UserError before the loop."""
        if self._in_job("log()", "use print() before it, which each process does").is_leader:
            print(text, flush=True)
