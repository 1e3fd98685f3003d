"""Values that the script's own code changes beside the tensors of the state, and their handover to joining workers.

A step ends with the script's code after `optimizer.step()`, and there may be code between epochs. A joining worker has
made the same update, but has not run that code: it gets the changes at the next boundary (`changes`, `take`).

A joining worker's script then begins its loop, or continues in it, with code that precedes the state: the beginning of
its epoch, and for a survivor that was a step behind, the end of the epoch before. So the effects of that code are
undone (`whole`, `restore`), those on weights too: this costs a copy of the state from its arrival to the first batch.
"""

from __future__ import annotations

from typing import Any

from ..following import Following
from ..gradients.hyperparameters import Hyperparameters
from .training_state import TrainingState


class ScriptValues:
    """Hyperparameters, schedulers, averaged models and registered values."""

    def __init__(self, parts: TrainingState, hyperparameters: Hyperparameters, following: Following) -> None:
        self._parts = parts
        self._hyperparameters = hyperparameters
        self._following = following

    def changes(self) -> dict[str, Any]:
        """Return the values that a joining worker lacks after the last update."""
        return {
            "options": self._hyperparameters.values(),
            "schedulers": self._parts.scheduler_states(),
            "registered": self._parts.registered.pack_changes(),
            "state": self._parts.registered.state.changes(),
            "of epoch": self._parts.registered.of_epoch.changes(),
            "calls": self._following.calls,
            "batch": self._parts.batch_changes(),
        }

    def take(self, changes: dict[str, Any]) -> None:
        """Take over the `changes` of another worker."""
        self._following.replay(changes["calls"])
        self._hyperparameters.set_values(changes["options"])
        self._parts.set_scheduler_states(changes["schedulers"])
        registered = self._parts.registered
        registered.set(registered.unpack_changes(changes["registered"]))
        registered.state.take(changes["state"])
        registered.of_epoch.take(changes["of epoch"])
        self._parts.take_batch_changes(changes["batch"])

    def whole(self, modules: bool = False) -> dict[str, Any]:
        """Return all present values, with copies of the tensors among them.

        modules: also the parameters, optimizer states and buffers.
        """
        parts = self._parts
        beside: dict[str, Any] = {}
        if modules:
            beside = {"tensors": parts.copied(), "buffers": parts.copied_buffers(), "extra": parts.extra_state.values()}
        return {
            **beside,
            "options": self._hyperparameters.values(),
            "schedulers": self._parts.scheduler_states(),
            "registered": self._parts.registered.whole(),
            "state": self._parts.registered.state.whole(),
        }

    def restore(self, whole: dict[str, Any], modules: bool = True) -> None:
        """Restore the values of `whole`. modules: also parameters, optimizer states and buffers, if they are included."""
        if modules and "buffers" in whole:
            self._parts.put_back(*whole["tensors"])
            self._parts.put_buffers(whole["buffers"])
            self._parts.extra_state.set_values(whole["extra"])
        self._hyperparameters.set_values(whole["options"])
        self._parts.set_scheduler_states(whole["schedulers"])
        self._parts.registered.set_whole(whole["registered"])
        self._parts.registered.state.restore_whole(whole["state"])
