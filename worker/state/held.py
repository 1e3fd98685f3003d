"""The state that this worker holds: of which step it is, how it is taken over, and how it is written down.

Its tensors stand in their places: they are the model's and the optimizers' own. A state is taken over from a checkpoint (`load`)
or from another worker (`transfers`): its tensors are put in their places first, then follows what is not a tensor.

The script's registered values may be of a later epoch than the script has come to: others are past the end of an epoch that
this worker's script has still to run. Such values are kept, and handed to the script when its loop is there (`epoch_begins`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..events import CheckpointLoaded, CheckpointMissing, SaveCheckpoint
from ..script import Script
from .checkpoint import CheckpointWriter, latest
from .training_state import TrainingState


class HeldState:
    """What one worker has of the job's state. For the training thread."""

    def __init__(
        self,
        parts: TrainingState,
        script: Script,
        mutable: Sequence[torch.Tensor],
        writer: CheckpointWriter | None,
    ) -> None:
        """mutable: those of its tensors that change in the middle of a step. writer: None outside a cluster."""
        self.parts = parts
        self.mutable = mutable
        self.next_step = 0  # the state is that after the step before
        self._script = script
        self._writer = writer
        self._deferred: tuple[int, dict[str, Any]] | None = None  # registered values that belong to a later epoch

    @property
    def is_behind(self) -> bool:
        """Is the script's loop in an epoch that this state is past?"""
        return self._deferred is not None

    # -- taking over

    def load(self, generation: int) -> CheckpointLoaded | CheckpointMissing:
        """Take the newest checkpoint over, which becomes one of `generation`."""
        assert self._writer is not None
        document, trouble = latest(self._writer.directory, generation)
        if document is None:
            return CheckpointMissing(trouble)
        self.put(document.header, document.tensors)
        applied, epoch = self.take(document.header)
        return CheckpointLoaded(applied, epoch, next_epoch(document.header))

    def put(self, header: dict[str, Any], tensors: Sequence[torch.Tensor]) -> None:
        """Put the tensors of a state in their places."""
        self.settle()
        with torch.no_grad():
            for own, new in zip(self.parts.adopt(header), tensors, strict=True):
                own.copy_(new)

    def take(self, header: dict[str, Any]) -> tuple[int, int]:
        """The tensors of a state stand in their places: make the rest of it this worker's own. Returns its step and epoch."""
        self.parts.finish(header)
        applied, epoch = int(header["counters"]["applied"]), int(header["counters"]["epoch"])
        self.next_step = applied + 1
        self._script.state_is_of(epoch)
        return applied, epoch

    # -- giving

    def header(self, counters: dict[str, int]) -> dict[str, Any]:
        """Of the state of now. Its registered values may belong to a later epoch than the script has come to."""
        header = self.parts.header(counters)
        if self._deferred is not None:
            header["counters"]["epoch"], header["registered"] = self._deferred
        return header

    def save(self, save: SaveCheckpoint) -> None:
        """Begin to write the state of now."""
        assert self._writer is not None
        header = self.header({"applied": save.step, "epoch": save.epoch, "generation": save.generation})
        self._writer.save(save, header, self.parts.tensors(), mutable=self.mutable)

    def settle(self) -> None:
        """A checkpoint of the present state may still be copied: it is about to change."""
        if self._writer is not None:
            self._writer.settle()

    # -- the script's registered values

    def registered(self) -> tuple[int, dict[str, Any]]:
        """The newest ones, with the epoch that they belong to."""
        return self._deferred or (self._script.epoch, self.parts.registered_values())

    def defer(self, epoch: int, registered: dict[str, Any]) -> None:
        """Others have registered these for `epoch`. A script that has still to run the end of an epoch takes them after it."""
        self._script.state_is_of(epoch)
        self._deferred = (epoch, registered)
        self.epoch_begins(self._script.epoch)

    def epoch_begins(self, epoch: int) -> None:
        """The script's loop has come to `epoch`: values that others registered there hold now."""
        self._script.epoch = epoch
        if self._deferred is not None and self._deferred[0] <= epoch:
            self.parts.set_registered(self._deferred[1])
            self._deferred = None


def next_epoch(header: dict[str, Any]) -> int | None:
    """The epoch of the step after a state, where that does not follow from the step's number."""
    data = header.get("data")
    return None if data is None else int(data["epoch"])
