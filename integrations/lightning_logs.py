"""Logging in a Lightning module's training step: values of all virtual workers, and their means over steps and epochs.

`self.log` in `training_step` is called for one virtual worker. Its value is shared with the step's gradient, and logged
once when the step is over, as the mean over the step's samples. For `on_epoch=True` this module keeps the mean over the
epoch's samples, since it has to travel with the job.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback

import elasticd as elastic

from ..protocol.errors import UserError


class StepLogs(Callback):
    """Callback that must come first among the Trainer's, so that the others find the logged values."""

    def __init__(self, run: elastic.Run) -> None:
        self._run = run
        self._how: dict[str, dict[str, Any]] = {}  # options of `self.log`, by name
        self._sums: dict[str, list[float]] = {}  # of the present epoch: values times weights, weights

    @property
    def state_key(self) -> str:
        return "elastic step logs"

    def state_dict(self) -> dict[str, Any]:
        return {"how": self._how, "sums": self._sums}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._how, self._sums = state_dict["how"], state_dict["sums"]

    @contextmanager
    def collecting(self, module: Any, batch: Any) -> Iterator[None]:
        """Collect the values that one virtual worker logs in its training step."""
        module.log = self._collect
        try:
            yield
        finally:
            del module.log

    def _collect(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Any = "mean",
        **_: Any,
    ) -> None:
        if reduce_fx not in ("mean", torch.mean):
            raise UserError(
                f"self.log({name!r}, reduce_fx={reduce_fx!r}) in training_step: only the mean over virtual workers works"
            )
        if not isinstance(value, int | float | torch.Tensor):
            raise UserError(
                f"self.log({name!r}) in training_step got a {type(value).__name__}: log numbers there, metrics in validation_step"
            )
        self._run.share(**{name: value})
        self._how[name] = {
            "prog_bar": prog_bar,
            "logger": True if logger is None else logger,
            "on_step": on_step is not False,
            "on_epoch": bool(on_epoch),
        }

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        for name, shared in self._run.shared.items():
            # A worker without a sample has not called `self.log` in this step, but in an earlier one, or others have.
            how = self._how.get(name)
            if how is None:
                continue
            weight = sum(shared.weights)
            kept = self._sums.setdefault(name, [0.0, 0.0])
            kept[0] += shared.mean * weight
            kept[1] += weight
            if how["on_step"]:
                both = f"{name}_step" if how["on_epoch"] else name
                pl_module.log(
                    both, shared.mean, how["prog_bar"], how["logger"], on_step=True, on_epoch=False, batch_size=1
                )

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        for name, (total, weights) in self._sums.items():
            how = self._how[name]
            if how["on_epoch"]:
                mean = total / weights
                if how["on_step"]:
                    pl_module.log(
                        f"{name}_epoch", mean, False, how["logger"], on_step=False, on_epoch=True, batch_size=1
                    )
                pl_module.log(
                    name,
                    mean,
                    how["prog_bar"],
                    how["logger"] and not how["on_step"],
                    on_step=False,
                    on_epoch=True,
                    batch_size=1,
                )
        self._sums = {}
