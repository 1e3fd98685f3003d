"""The state that this worker holds: of which step it is, how it is taken over, and how it is written down.

Its tensors stand in their places: they are the model's and the optimizers' own. A state is taken over from a checkpoint (`load`)
or from another worker (`transfers`): its tensors are put in their places first, then follows what is not a tensor.

A script may have to run code that the state has behind it already (`values`): the beginning of the epoch that it joins in, and
the end of the one before, where others were past it. What that code sets is undone when the script's loop over batches has come
to the state's epoch. Code of an earlier epoch runs with the values that this worker had there (`script_resumes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..code import Code
from ..data.likeness import Likeness
from ..events import CheckpointFailed, CheckpointLoaded, CheckpointMissing, Event, SaveCheckpoint
from ..interlude import Interlude, Settlements, end_of
from ..results import Results
from ..script import Script, ScriptAt
from .checkpoint import CheckpointWriter, latest
from .training_state import TrainingState
from .values import ScriptValues

SCRIPT = "script"  # in the header of a checkpoint: what the script kept itself, by name


class HeldState:
    """What one worker has of the job's state. For the training thread."""

    def __init__(
        self,
        parts: TrainingState,
        script: Script,
        values: ScriptValues,
        writer: CheckpointWriter | None,
        tell: Callable[[Event], None],
        code: Code | None = None,
    ) -> None:
        """writer, code: None outside a cluster."""
        self.parts = parts
        self.values = values
        self.next_step = 0  # the state is that after the step before
        self._script = script
        self._writer = writer
        self._tell = tell
        self.code = code
        self.settlements = Settlements()
        self.likeness: Likeness | None = None  # of this worker's data with that of others
        self.looks: Callable[[], Any] = lambda: None  # what the script keeps itself, for a checkpoint (`crosscheck`)
        self.resumed = False  # this process has begun with the state of a checkpoint
        self.script_was: Any = None  # the same, of the checkpoint from which the job goes on
        self.end: int | None = None  # steps of the whole job, where its script has decided that
        self.interlude: Interlude | None = None  # the script's code between two steps that runs now
        self.results = Results()  # of the steps that were applied
        self.state_epoch = 0  # of the state that was taken over last
        self.owes_functions = False  # those that come after the last applied step have not been called
        # Epoch and values of a state that the script's loop is not in yet; and the script's own, while it runs what is before
        self._taken: tuple[int, dict[str, Any]] | None = None
        self._own: dict[str, Any] | None = None
        self._with_own = False  # it does
        self._catches_up = False  # it is behind a step that it has missed, and no step is left in its epoch

    @property
    def about_bytes(self) -> int:
        """How much a state has, before the optimizers have any: as with Adam, which keeps two values for each parameter."""
        parameters = sum(each.numel() * each.element_size() for each in self.parts.model.parameters())
        return 3 * parameters + sum(each.nbytes for each in self.parts.buffers())

    @property
    def runs_again(self) -> bool:
        """Does the script run code that the state has behind it?"""
        return self._taken is not None

    @property
    def epoch(self) -> int:
        """That of the state, which may be later than the script's."""
        return self._script.epoch if self._taken is None else max(self._taken[0], self._script.epoch)

    @property
    def is_behind(self) -> bool:
        """Is the script's loop in an epoch that this state is past?"""
        return self._taken is not None and (self._catches_up or self._taken[0] > self._script.epoch)

    # -- taking over

    def load(self, generation: int) -> CheckpointLoaded | CheckpointMissing:
        """Take the newest checkpoint over, which becomes one of `generation`; a job without any goes on from that of another, if
        it is to. Raises OtherCode, Unlike, with nothing changed."""
        assert self._writer is not None
        directory, others = self._writer.directory, self._writer.others
        document, trouble, damaged = latest(directory, generation)
        own = document is not None or damaged is not None or others is None
        if not own and others is not None:
            directory = others.directory
            document, trouble, damaged = latest(directory, None)
        if document is None:
            return CheckpointMissing(trouble, damaged, str(directory))
        if own or others is None or not others.any_code:
            self.check(document.header)
        self.script_was, self.resumed = document.header.get(SCRIPT), True
        self.put(document.header, document.tensors)
        applied, epoch = self.take(document.header)
        return CheckpointLoaded(applied, epoch, next_epoch(document.header), self.end, damaged, trouble, not own)

    def check(self, header: dict[str, Any]) -> None:
        """A state is about to be taken over. Raises OtherCode if it is that of a job whose code is not this worker's, and Unlike
        if it was trained with other data than this worker has."""
        if self.code is not None:
            self.code.take(header)
        if self.likeness is not None:
            self.likeness.check(header.get("likeness"))

    def put(self, header: dict[str, Any], tensors: Sequence[torch.Tensor]) -> None:
        """Put the tensors of a state in their places."""
        self.settle()
        with torch.no_grad():
            for own, new in zip(self.parts.adopt(header), tensors, strict=True):
                own.copy_(new)

    def take(self, header: dict[str, Any]) -> tuple[int, int]:
        """The tensors of a state stand in their places: make the rest of it this worker's own. Returns its step and epoch."""
        applied, epoch = int(header["counters"]["applied"]), int(header["counters"]["epoch"])
        behind = self._script.at is not ScriptAt.BEFORE and epoch > self._script.epoch
        if behind and self._own is None:
            self._own = self.values.whole()
        self.parts.finish(header)
        self.next_step = applied + 1
        self.interlude = None
        if "results" in header:  # not in a checkpoint of an older version
            self.results.take(header["results"])
        self.settlements.take(header.get("settlements", {}))
        self.end = end_of(header)
        self.state_epoch = epoch
        self.owes_functions = bool(header["counters"].get("owes_functions", 0))
        self._is_of(epoch)
        return applied, epoch

    def take_changes(self, epoch: int, changes: dict[str, Any]) -> None:
        """Others, whose loop is in `epoch`, have changed this since the update."""
        self.values.take(changes)
        self._is_of(epoch)

    def _is_of(self, epoch: int) -> None:
        self._script.state_is_of(epoch)
        in_it = self._script.at is ScriptAt.READING and epoch <= self._script.epoch
        self._taken = None if in_it else (epoch, self.values.whole(modules=True))

    def epoch_begins(self, epoch: int) -> None:
        """The script's loop has come to `epoch`."""
        self._script.epoch = epoch
        if self._taken is not None and self._taken[0] <= epoch:
            self._restore(self._taken[1])
            self._with_own = False

    def script_resumes(self) -> None:
        """The script goes on where it stands, which may be in an epoch before that of the state: with its own values of there."""
        if self._own is not None:
            own, self._own = self._own, None
            if self.is_behind:
                self.values.restore(own)
                self._with_own = True

    def catch_up(self) -> None:
        """Others have applied a step of the script's epoch that this worker has missed, and have run the code behind it."""
        self._catches_up = True
        if self._taken is None:
            self._taken = self._script.epoch, self.values.whole(modules=True)

    def batches_begin(self) -> None:
        """The script's loop over batches begins: if in the state's epoch, it has nothing to run again. Or it has caught up."""
        self._catches_up = False
        if self._taken is not None and self._taken[0] <= self._script.epoch:
            self._restore(self._taken[1])
            self._taken, self._with_own = None, False

    def _restore(self, whole: dict[str, Any]) -> None:
        self.settle()
        self.values.restore(whole)

    # -- giving

    def header(self, counters: dict[str, int]) -> dict[str, Any]:
        """Of the state of now. Its values may belong to a later epoch than the script has come to."""
        if self._with_own and self._taken is not None:
            own, (_, taken) = self.values.whole(), self._taken
            self.values.restore(taken, modules=False)
            header = self.parts.header(counters)
            self.values.restore(own)
        else:
            header = self.parts.header(counters)
        header["results"] = self.results.plain()
        header["settlements"] = self.settlements.plain()
        if self.likeness is not None:
            header["likeness"] = self.likeness.plain()
        if self.owes_functions:
            header["counters"]["owes_functions"] = 1
        if self.end is not None:
            header["counters"]["end"] = self.end
        if self._taken is not None and self.is_behind:
            header["counters"]["epoch"] = self._taken[0]
        return header

    def to_give(self, header: dict[str, Any]) -> dict[str, Any]:
        """This header, as it goes to others: with what is no part of the state, and no worker compares with the others."""
        return header if self.code is None else {**header, "code": self.code.description()}

    def save(self, save: SaveCheckpoint) -> None:
        """Begin to write the state of now; in the middle of the script's code between two steps, that in which it has begun."""
        assert self._writer is not None
        counters = {"applied": save.step, "epoch": save.epoch, "generation": save.generation}
        if self.interlude is None:
            header = self.header(counters)
        elif self.interlude.interruptible:
            header = self.interlude.header(counters, self.settlements)
        else:
            self._tell(CheckpointFailed(save.number, "the script has changed tensors between two steps, and goes on"))
            return
        tensors = self.parts.tensors()
        given = {**self.to_give(header), SCRIPT: self.looks()}
        self._writer.save(save, given, tensors, mutable=self.parts.changing(tensors))

    def interlude_begins(self, after_step: bool, interruptible: bool = True) -> None:
        """The script's code between two steps begins. after_step: it is what `run.every` has been given."""
        header = self.header({}) if self._writer is not None and interruptible else None
        self.interlude = Interlude(header, self.parts.tensors() if header else [], after_step)

    def settle(self) -> None:
        """A checkpoint of the present state may still be copied: it is about to change."""
        if self._writer is not None:
            self._writer.settle()


def next_epoch(header: dict[str, Any]) -> int | None:
    """The epoch of the step after a state, where that does not follow from the step's number."""
    data = header.get("data")
    return None if data is None else int(data["epoch"])
