"""The update of a step: unscaling and clipping of the gradient, the optimizers, the schedulers.

Every worker makes it once for each global step, from the same reduced gradient. So results that depend on the gradient (a norm, a
step that a gradient scaler skips because of an overflow) are equal on all workers.
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

Evaluate = Callable[[Callable[[], Any]], Any]  # calls a script's closure, and returns the result for its `step`


class Update:
    """Objects and settings with which a script updates its model."""

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
        """before_update: called on every worker with the global gradient in the parameters' `grad`. after_update: called on every
        worker with the new parameters. scheduler_frequency: number of units (`scaling`) per step of a scheduler."""
        self.optimizers = list(optimizers)
        self.schedulers = list(schedulers)
        self.scaler = scaler
        self.clipping = Clipping(max_grad_norm)
        self._scheduler_frequency = scheduler_frequency
        self._before_update = before_update
        self._after_update = after_update

    @property
    def functions(self) -> dict[str, Callable[[], None] | None]:
        """The script's functions, by the arguments of `prepare`."""
        return {"before_update": self._before_update, "after_update": self._after_update}

    def apply(
        self,
        parameters: Sequence[torch.nn.Parameter],
        stepped: Sequence[int],
        scale: Scale,
        items: float,
        results: Results,
        processed: bool = False,
    ) -> None:
        """Update the parameters from their `grad`, the mean over all micro-batches.

        stepped: positions of the optimizers of this update. scale: of the step. items: if not 0, the mean is over this number of
        items instead. results: receives the gradient's norm and the learning rates. processed: `process` has been called."""
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
        norm: Callable[[], torch.Tensor] | None = None,
    ) -> None:
        """Unscale, average and clip the step's gradient, in the parameters' `grad`. norm: as in `Clipping.apply`."""
        if self.scaler is not None:
            for optimizer in optimizers:
                self.scaler.unscale_(optimizer)
        divide(parameters, scale.micro_batches, items)
        if (before := self.clipping.apply(parameters, norm)) is not None:
            results.measured(before)
        if self._before_update is not None:
            self._before_update()

    def _apply(self, optimizers: Sequence[torch.optim.Optimizer], scale: Scale, results: Results) -> None:
        with at_rate(optimizers, scale.rate):
            for optimizer in optimizers:
                self._step(optimizer)
                optimizer._opt_called = True  # type: ignore[attr-defined]  # for torch's schedulers, also where the scaler skips
            groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
            results.updated(tuple([float(group["lr"]) for group in groups if "lr" in group]))
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
        """Step an optimizer. Raises UserError if it needs to evaluate the loss again."""
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
    """The runtime's side of one optimizer, for its inserted class."""

    def __init__(
        self,
        original: Callable[..., Any],
        stepped: Callable[[], None],
        computes: Callable[[], bool],
        evaluate: Evaluate | None,
        divided: bool,
        unscaled: Callable[[], None],
    ) -> None:
        self.original = original
        self.divided = divided  # the optimizer's state is divided among the workers (`sharding`)
        self.stepped = stepped
        self.unscaled = unscaled
        self.evaluate = evaluate
        self.computes = computes  # returns whether a micro-batch's gradient is being computed, and may be discarded
        self.acting = False  # whether the runtime makes the update: then `step` is the optimizer's own


class ElasticOptimizer(torch.optim.Optimizer):
    """A script's optimizer that updates once per global step. It stays the same object: this class is put before its own.

    So references to the optimizer stay valid (schedulers made before or after, hooks, a gradient scaler).
    """

    _act: _Act

    def __init__(self) -> None:
        raise TypeError("an ElasticOptimizer is made of an optimizer that is there: see `make_elastic`")

    def step(self, closure: Any = None, **named: Any) -> Any:
        """End this micro-batch's gradient; after the last one of a global step, apply the update.

        closure: computes the loss and its gradient, and is called once, at once; its result is returned. Optimizers that evaluate
        the loss several times need a closure: then the loop body runs once for each evaluation (`evaluations`)."""
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

    # torch wraps a `step` without these marks, for hooks and for schedulers. Hooks are for the update, not for this call; and
    # without the second mark, a scheduler would warn that `step` was overridden.
    step.hooked = True  # type: ignore[attr-defined]
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard the gradients that backward passes have computed for this micro-batch so far.

        Outside a micro-batch, and after `step`, it does nothing: complete gradients belong to the global step."""
        if self._act.computes():
            super().zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state as without the runtime. Raises UserError if the state is divided among the workers."""
        self._refuse_divided("state_dict()")
        return super().state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        """Load the optimizer's state as without the runtime. Raises UserError if the state is divided among the workers."""
        self._refuse_divided("load_state_dict()")
        super().load_state_dict(state_dict)

    def _refuse_divided(self, call: str) -> None:
        if self._act.divided:
            raise UserError(
                f"optimizer.{call} was called, and each worker has a part of the state (sharding: optimizer, or "
                "fully_shard): `elasticctl export` writes it from the job's checkpoints"
            )


def make_elastic(
    optimizer: torch.optim.Optimizer,
    stepped: Callable[[], None],
    computes: Callable[[], bool],
    evaluate: Evaluate | None = None,
    update: Callable[[torch.optim.Optimizer], None] | None = None,
    divided: bool = False,
    unscaled: Callable[[], None] = lambda: None,
) -> None:
    """Let `optimizer.step()` call `stepped()`, unless the runtime calls it.

    computes: returns whether a micro-batch's gradient is being computed for which this optimizer has not been stepped. evaluate:
    calls a closure, for an optimizer that evaluates the loss several times. update: replaces the `step` of such an optimizer.
    divided: the optimizer's state is divided among the workers. unscaled: called when the script's scaler is to unscale the
    gradient of a micro-batch."""
    kind = type(optimizer)
    # A scheduler may have put a wrapper before the class's `step`, to notice its calls.
    original = optimizer.__dict__.pop("step", None) or partial(kind.step, optimizer)
    if update is not None:
        original = partial(kind.profile_hook_step(update), optimizer)  # with the script's hooks
    put_between(optimizer, {"_act": _Act(original, stepped, computes, evaluate, divided, unscaled)}, ElasticOptimizer)


class ElasticScaler:
    """A script's gradient scaler. It scales each loss; the update unscales the global gradient, once per global step."""

    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        self._scaler = scaler

    def scale(self, outputs: Any) -> Any:
        """Return the loss multiplied by the present scale."""
        return self._scaler.scale(outputs)

    def step(self, optimizer: ElasticOptimizer) -> None:
        """Call `optimizer.step()`."""
        if not isinstance(optimizer, ElasticOptimizer):
            raise UserError("scaler.step() takes the optimizer that prepare() returned")
        optimizer.step()

    def update(self, new_scale: Any = None) -> None:
        """Do nothing: the scale changes once per global step. Raises UserError for a new scale."""
        if new_scale is not None:
            raise UserError("scaler.update(new_scale): the scale follows the global gradient and cannot be set")

    def unscale_(self, optimizer: ElasticOptimizer) -> None:
        """Do nothing, if `clip_grad_norm_` follows: the global gradient is unscaled before it is clipped (`clip_calls`)."""
        if not isinstance(optimizer, ElasticOptimizer):
            raise UserError("scaler.unscale_() takes the optimizer that prepare() returned")
        if self._scaler.is_enabled():
            optimizer._act.unscaled()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scaler, name)
