"""From the step's gradient to new parameters: scaling back, clipping, the optimizers, the schedulers.

It happens once for each global step, on every worker, from the same reduced gradient; so whatever is decided here (a norm, a step
that a gradient scaler skips because of an overflow) is decided alike everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from ...protocol.errors import UserError
from ..data.scaling import Scale, at_rate
from ..interposed import put_between
from ..results import Results
from .clipping import Clipping, divide

Evaluate = Callable[[Callable[[], Any]], Any]  # calls a script's closure, and returns what its `step` returns


class Update:
    """What a script has chosen to update its model with."""

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        schedulers: Sequence[torch.optim.lr_scheduler.LRScheduler] = (),
        scaler: torch.amp.GradScaler | None = None,
        max_grad_norm: float | None = None,
        before_update: Callable[[], None] | None = None,
        after_update: Callable[[], None] | None = None,
        scheduler_frequency: int = 1,
    ) -> None:
        """before_update: called with the global gradient in the parameters' `grad`, on every worker. after_update: with the new
        parameters, on every worker. scheduler_frequency: units (`scaling`) between two of a scheduler's."""
        self.optimizers = list(optimizers)
        self.schedulers = list(schedulers)
        self.scaler = scaler
        self.clipping = Clipping(max_grad_norm)
        self._scheduler_frequency = scheduler_frequency
        self._before_update = before_update
        self._after_update = after_update

    def apply(
        self,
        parameters: Sequence[torch.nn.Parameter],
        stepped: Sequence[int],
        scale: Scale,
        items: float,
        results: Results,
        processed: bool = False,
    ) -> None:
        """Update the parameters from their `grad`, the mean over all micro-batches, or over `items` if not 0. stepped:
        positions of the optimizers that do it. scale: of the step. results: are told the gradient's norm and the rates.
        processed: `process` has been called for this gradient."""
        optimizers = [self.optimizers[position] for position in stepped]
        acts = [optimizer._act for optimizer in optimizers if isinstance(optimizer, ElasticOptimizer)]
        for act in acts:
            act.acting = True
        try:
            if not processed:
                self.process(parameters, optimizers, scale, items, results)
            self._apply(optimizers, scale, results)
        finally:
            for act in acts:
                act.acting = False

    def process(
        self,
        parameters: Sequence[torch.nn.Parameter],
        optimizers: Sequence[torch.optim.Optimizer],
        scale: Scale,
        items: float,
        results: Results,
    ) -> None:
        """Unscale, average and clip the step's gradient, in the parameters' `grad`."""
        if self.scaler is not None:
            for optimizer in optimizers:
                self.scaler.unscale_(optimizer)
        divide(parameters, scale.micro_batches, items)
        if (norm := self.clipping.apply(parameters)) is not None:
            results.measured(norm)
        if self._before_update is not None:
            self._before_update()

    def _apply(self, optimizers: Sequence[torch.optim.Optimizer], scale: Scale, results: Results) -> None:
        with at_rate(optimizers, scale.rate):
            for optimizer in optimizers:
                self._step(optimizer)
                optimizer._opt_called = True  # type: ignore[attr-defined]  # for torch's schedulers, also where the scaler skips
            groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
            results.updated(tuple(float(group["lr"]) for group in groups if "lr" in group))
        if self.scaler is not None:
            self.scaler.update()
        for unit in scale.units:  # so that a schedule keeps its place in the data
            if (unit + 1) % self._scheduler_frequency == 0:
                for scheduler in self.schedulers:
                    if any(scheduler.optimizer is optimizer for optimizer in optimizers):
                        scheduler.step()
        if self._after_update is not None:
            self._after_update()

    def _step(self, optimizer: torch.optim.Optimizer) -> None:
        """Raises UserError if it wants the loss again."""
        try:
            if self.scaler is None:
                optimizer.step()
            else:
                self.scaler.step(optimizer)
        except (TypeError, AssertionError, RuntimeError) as error:
            if not any(each in str(error) for each in ("'NoneType' object is not callable", "closure")):
                raise
            raise UserError(
                f"the optimizer, {type(optimizer).__name__}, needs the closure in its update, to evaluate the loss of the step "
                "once more, and a closure has the loss of one micro-batch: give an optimizer that needs gradients alone. Of "
                "those that evaluate the loss again torch.optim.LBFGS works"
            ) from error


class _Act:
    """What the runtime and one optimizer's class share."""

    def __init__(
        self,
        original: Callable[..., Any],
        stepped: Callable[[], None],
        computes: Callable[[], bool],
        evaluate: Evaluate | None,
        divided: bool,
    ) -> None:
        self.original = original
        self.divided = divided  # the optimizer's state is divided among the workers (`sharding`)
        self.stepped = stepped
        self.evaluate = evaluate
        self.computes = computes  # a micro-batch's gradient, that is: there may be a part of it to forget
        self.acting = False  # the runtime makes the update: `step` is the optimizer's own


class ElasticOptimizer(torch.optim.Optimizer):
    """A script's optimizer, acting once per global step. Everything else is as it was: it is the same object, of a class between.

    So whatever knows the optimizer (schedulers made before or after, hooks, a gradient scaler) goes on knowing it.
    """

    _act: _Act

    def __init__(self) -> None:
        raise TypeError("an ElasticOptimizer is made of an optimizer that is there: see `make_elastic`")

    def step(self, closure: Any = None, **named: Any) -> Any:
        """This micro-batch's gradient is complete; after the last one of a global step the update is applied.

        closure: computes it, and is called once, here and now. Returns what it returns. Optimizers that evaluate the loss again
        need one: the loop body runs once for each evaluation (`evaluations`)."""
        act = self._act
        if act.acting:
            return act.original(**named) if closure is None else act.original(closure, **named)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure() if act.evaluate is None else act.evaluate(closure)
        elif act.evaluate is not None:
            raise UserError("optimizer.step() was called without a closure, of which LBFGS has the loss: step(closure)")
        act.stepped()
        return loss

    # torch wraps a `step` that does not say that it is wrapped: for its hooks, and for its schedulers. Ours is neither the call
    # that hooks are for, nor may a scheduler made later miss that there was one.
    step.hooked = True  # type: ignore[attr-defined]
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget what backward passes have computed for this micro-batch so far. Before the first of them, and behind `step`,
        nothing: each micro-batch starts from no gradient, and what is complete belongs to the global step."""
        if self._act.computes():
            super().zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """As without the runtime. Raises UserError where no worker has the whole state."""
        self._refuse_divided("state_dict()")
        return super().state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        """As without the runtime. Raises UserError where no worker has the whole state."""
        self._refuse_divided("load_state_dict()")
        super().load_state_dict(state_dict)

    def _refuse_divided(self, call: str) -> None:
        if self._act.divided:
            raise UserError(
                f"optimizer.{call} was called, and each worker has a part of the state (sharding: optimizer): "
                "`elasticctl export` writes it from the job's checkpoints"
            )


def make_elastic(
    optimizer: torch.optim.Optimizer,
    stepped: Callable[[], None],
    computes: Callable[[], bool],
    evaluate: Evaluate | None = None,
    update: Callable[[torch.optim.Optimizer], None] | None = None,
    divided: bool = False,
) -> None:
    """From now on `optimizer.step()` means `stepped()`, unless the runtime calls it. computes: is the gradient of a micro-batch
    being computed, which this optimizer has not been stepped for?

    evaluate: calls a closure, for one that evaluates the loss again. update: what it does then, in place of its own `step`.
    divided: its state is divided among the workers."""
    kind = type(optimizer)
    # A scheduler has put its own `step` before the class's, to see that it is called.
    original = optimizer.__dict__.pop("step", None) or partial(kind.step, optimizer)
    if update is not None:
        original = partial(kind.profile_hook_step(update), optimizer)  # with the script's hooks
    put_between(optimizer, {"_act": _Act(original, stepped, computes, evaluate, divided)}, ElasticOptimizer)


class ElasticScaler:
    """A script's gradient scaler: it scales each loss; the rest happens once per global step, to the global gradient."""

    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        self._scaler = scaler

    def scale(self, outputs: Any) -> Any:
        """The loss, multiplied by the present scale."""
        return self._scaler.scale(outputs)

    def step(self, optimizer: ElasticOptimizer) -> None:
        """As `optimizer.step()`."""
        if not isinstance(optimizer, ElasticOptimizer):
            raise UserError("scaler.step() takes the optimizer that prepare() returned")
        optimizer.step()

    def update(self, new_scale: Any = None) -> None:
        """Nothing: the scale changes with the global step."""
        if new_scale is not None:
            raise UserError("scaler.update(new_scale): the scale follows the global gradient and cannot be set")

    def unscale_(self, optimizer: Any) -> None:
        """Refused: a micro-batch's gradient is not the global one."""
        raise UserError(
            "scaler.unscale_(): leave it out, the global gradient is unscaled before it is clipped. In place of clip_grad_norm_ "
            "write run.clip(1.0), or give prepare() max_grad_norm= or before_update="
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scaler, name)
