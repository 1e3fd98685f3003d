"""State of a Lightning Trainer that travels with its job, and checks of its settings."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import ModelCheckpoint, Timer

from ..protocol.errors import UserError


class HostState:
    """Counters of the loops, callbacks with a state, metrics, and whether the training is to stop."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._arrived: dict[str, Any] | None = None  # received, and not yet restored into the host
        self._loops = False  # whether the host's loop has begun, so that a state is restored at once

    @property
    def epoch(self) -> int:
        """The epoch with which the host continues."""
        return int(self._arrived["loops"]["epoch_progress"]["current"]["processed"]) if self._arrived else 0

    def begin(self, steps: int) -> None:
        """Restore the state at the start of the host's loop, after `steps` earlier steps."""
        if steps:
            self._restore(begins=True)
        self._arrived, self._loops = None, True

    def give(self) -> dict[str, Any]:
        if self._arrived is not None:
            return self._arrived
        trainer = self._trainer
        loops = dict(trainer.fit_loop.state_dict())
        batches = loops["epoch_loop.batch_progress"]
        updates = loops["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]
        epochs = loops["epoch_progress"]
        epochs["total"] = dict(epochs["current"])  # the host's own count continues if a worker begins within an epoch
        for since in ("total", "current"):  # started but uncompleted work is not part of the state
            for each in (batches, updates["step"]):
                each[since] = dict.fromkeys(each[since], each[since]["completed"])
            # Gradients are zeroed once for each virtual worker here.
            updates["zero_grad"][since] = dict.fromkeys(
                updates["zero_grad"][since], updates["step"][since]["completed"]
            )
        loops["epoch_loop.state_dict"]["_batches_that_stepped"] = updates["step"]["total"]["completed"]
        return {
            "loops": loops,
            "callbacks": {each.state_key: state for each in trainer.callbacks if (state := each.state_dict())},
            "metrics": dict(trainer.callback_metrics),
            "stops": trainer.should_stop,
        }

    def take(self, values: dict[str, Any]) -> None:
        self._arrived = values
        if self._loops:
            self._restore(begins=False)

    def _restore(self, begins: bool) -> None:
        trainer, arrived = self._trainer, self._arrived
        self._arrived = None
        assert arrived is not None, "a state has come with the position"
        trainer.fit_loop.load_state_dict(arrived["loops"])
        if not begins:
            trainer.fit_loop.restarting = False
            # The host recognizes the last batch of an epoch by this number: that of the position, not of its own batches
            trainer.fit_loop._data_fetcher.fetched = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        for callback in trainer.callbacks:
            if callback.state_key in arrived["callbacks"]:
                callback.load_state_dict(arrived["callbacks"][callback.state_key])
                # Its `state_dict` contains this value, but its `load_state_dict` ignores it
                if isinstance(callback, ModelCheckpoint):
                    callback.current_score = arrived["callbacks"][callback.state_key]["current_score"]
        trainer.callback_metrics.update(arrived["metrics"])
        trainer.should_stop = arrived["stops"]


def refuse(trainer: Any, module: Any) -> None:
    """Raises UserError, naming the setting, for settings that cannot work."""
    for wrong, text in (
        (
            not module.automatic_optimization,
            "automatic_optimization = False: training_step() would step its optimizers itself, for each micro-batch, and the "
            "gradient of a step is complete only when all virtual workers have run. Leave it at True and return the loss; or "
            "write the loop with elastic.join(), where several updates of a batch are prepare(…, updates={…})",
        ),
        (
            len(trainer.optimizers) != 1,
            "configure_optimizers() with several optimizers: the loop has one update a step",
        ),
        (
            trainer.accumulate_grad_batches != 1,
            "accumulate_grad_batches: virtual workers take the place of it, leave it at 1",
        ),
        (trainer.limit_train_batches != 1.0, "limit_train_batches: an epoch is all of the data, shorten the dataset"),
        (trainer.overfit_batches, "overfit_batches: an epoch is all of the data, shorten the dataset"),
        (
            trainer.reload_dataloaders_every_n_epochs,
            "reload_dataloaders_every_n_epochs: a job has one training dataset",
        ),
        (trainer.ckpt_path, "fit(ckpt_path=...): the job goes on from its own state by itself"),
        (
            any(isinstance(each, Timer) for each in trainer.callbacks),
            "max_time, Timer: clocks differ; use max_steps or max_epochs",
        ),
    ):
        if wrong:
            raise _cannot(text)


def refuse_loggers(trainer: Any) -> None:
    """Raises UserError for a logger to which workers would give different names."""
    if any(getattr(each, "_version", "") is None for each in trainer.loggers):
        raise _cannot("a logger without version=: it would look for a free one, and workers look at different times")


def _cannot(text: str) -> UserError:
    return UserError(f"this cannot work with ElasticStrategy: {text}")
