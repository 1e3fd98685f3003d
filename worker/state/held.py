"""The state that this worker holds: its step, the takeover of a state from others, and checkpoints.

The state's tensors are the model's and the optimizers' own. A state is taken over from a checkpoint (`load`) or from another
worker (`transfers`): its tensors are copied into their places first, then the other values follow.

A script may have to run code that precedes the state (`values`): the beginning of the epoch that it joins, and the end
of the epoch before, if the other workers were past it. The effects of that code are undone when the script's loop over
batches reaches the state's epoch. Code of an earlier epoch runs with the values that this worker had there
(`script_resumes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from ..code import Code
from ..data.likeness import Likeness, Unlike
from ..events import CheckpointFailed, CheckpointLoaded, CheckpointMissing, Event, SaveCheckpoint
from ..interlude import AgreedValues, Interlude, end_of
from ..results import Results
from ..script import Script, ScriptAt
from .checkpoint import CheckpointWriter, latest
from .training_state import DIVISION, TrainingState
from .values import ScriptValues

SCRIPT = "script"  # key in a checkpoint's header: the script's own variables, by name
ALONE = "alone"  # likewise: variables that bodies change, of a worker that has run all of them; absent: others have run some
VARIABLES = "variables"  # likewise: variables that the script did not declare, with their values
KEYS = "keys"  # likewise: the keys of `state_dict`, with which the state is exported


class Variables(Protocol):
    """Variables that the script did not declare, and that the job carries (`script_variables`)."""

    def give(self, looks: bool) -> Mapping[str, Any] | None:
        """Return the present values for a header; None: there are none. looks: look for variables that have begun to change."""

    def give_alone(self, given: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return further values, for a checkpoint of a worker that has run all loop bodies; None: others have run some."""

    def come(
        self, epoch: int, values: Mapping[str, Any] | None, alone: Mapping[str, Any] | None, at_once: bool
    ) -> None:
        """Take over the values of a received state of this epoch.

        alone: of `give_alone`, if the state is from a checkpoint. at_once: the script is in the pass over it.
        """

    def pass_ends(self) -> None:
        """Take note that the script's code between two epochs begins."""

    def step_passes(self, bodies: int) -> None:
        """Count the bodies of a step in which this worker has run none, since it has received the state in it."""


class HeldState:
    """The job's state as one worker holds it. For the training thread."""

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
        self.next_step = 0  # the state is that before this step
        self._script = script
        self._writer = writer
        self._tell = tell
        self.code = code
        self.agreed_values = AgreedValues()
        self.likeness: Likeness | None = None  # fingerprint of this worker's data; None outside a cluster
        # returns the script's own variables for a checkpoint (`crosscheck`)
        self.looks: Callable[[], Any] = lambda: None
        self.variables: Variables | None = None  # None: the script's variables are not carried
        self.resumed = False  # whether this process began with the state of a checkpoint
        self.script_was: Any = None  # the script's own variables in the checkpoint from which the job resumed
        self.end: int | None = None  # steps of the whole job, if the script has decided to stop
        self.interlude: Interlude | None = None  # the script's code between two steps, while it runs
        self.results = Results()  # results of the applied steps
        self.state_epoch = 0  # epoch of the last state that was taken over
        self.owes_functions = False  # the functions of `run.every` after the last applied step have not been called
        # Epoch and values of a state that the script's loop has not reached; and the script's own values while it runs
        # code before that
        self._taken: tuple[int, dict[str, Any]] | None = None
        self._own: dict[str, Any] | None = None
        self._with_own = False  # the script runs with its own values
        self._catches_up = False  # the worker has missed the last step of the script's epoch

    @property
    def about_bytes(self) -> int:
        """Estimate of the state's size in bytes before optimizers have theirs: two values per parameter, as with Adam."""
        parameters = sum(each.numel() * each.element_size() for each in self.parts.model.parameters())
        return 3 * parameters + sum(each.nbytes for each in self.parts.buffers())

    @property
    def runs_again(self) -> bool:
        """Whether the script runs code that precedes the state."""
        return self._taken is not None

    @property
    def epoch(self) -> int:
        """Epoch of the state, which may be later than the script's."""
        return self._script.epoch if self._taken is None else max(self._taken[0], self._script.epoch)

    @property
    def is_behind(self) -> bool:
        """Whether the script's loop is in an earlier epoch than the state."""
        return self._taken is not None and (self._catches_up or self._taken[0] > self._script.epoch)

    # -- taking over

    def load(self, generation: int) -> CheckpointLoaded | CheckpointMissing:
        """Take over the newest checkpoint, which becomes one of `generation`.

        A job without checkpoints resumes from another job's, if it was submitted to do so. Raises OtherCode or Unlike,
        without a change, for a state of other code or data.
        """
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
            self._check_division(document.header)
            self.check(document.header)
        self.script_was, self.resumed = document.header.get(SCRIPT), True
        self.put(document.header, document.tensors)
        applied, epoch = self.take(document.header)
        return CheckpointLoaded(applied, epoch, next_epoch(document.header), self.end, damaged, trouble, not own)

    def check(self, header: dict[str, Any]) -> None:
        """Check a state before it is taken over.

        Raises OtherCode if it comes from other code than this worker's, Unlike if from other data.
        """
        if self.code is not None:
            self.code.take(header)
        if self.likeness is not None:
            self.likeness.check(header.get("likeness"))

    def _check_division(self, header: dict[str, Any]) -> None:
        """Raise Unlike for a checkpoint of another number of virtual workers; one of an older version does not tell it."""
        ours = self.parts.registered.virtual.count
        theirs = header.get("virtual_workers", ours)
        if theirs != ours:
            raise Unlike(
                f"virtual_workers: the checkpoint is of a job with {theirs}, not {ours}: the result depends on that "
                "(--with-new-code takes another number)"
            )

    def header_came(self, header: dict[str, Any]) -> None:
        """Check a state that another worker sends, as `check`, and take note of the workers with its divided parts."""
        self.check(header)
        if self.parts.divided is not None:
            self.settle()
            self.parts.divided.header_came(header[DIVISION], int(header["counters"]["applied"]))

    def put(self, header: dict[str, Any], tensors: Sequence[torch.Tensor]) -> None:
        """Copy the tensors of a state into their places."""
        self.settle()
        with torch.no_grad():
            for own, new in zip(self.parts.adopt(header), tensors, strict=True):
                own.copy_(new)

    def take(self, header: dict[str, Any]) -> tuple[int, int]:
        """Take over the values of a state of which the tensors are in their places. Returns the state's step and epoch."""
        applied, epoch = int(header["counters"]["applied"]), int(header["counters"]["epoch"])
        behind = self._script.at is not ScriptAt.BEFORE and epoch > self._script.epoch
        if behind and self._own is None:
            self._own = self.values.whole()
        self.parts.finish(header)
        divided = self.parts.divided
        if divided is not None and DIVISION not in header:
            divided.take_whole(applied)
        self.next_step = applied + 1
        self.interlude = None
        if "results" in header:  # absent in a checkpoint of an older version
            self.results.take(header["results"])
        self.agreed_values.take(header.get("settlements", {}))
        self.end = end_of(header)
        self.state_epoch = epoch
        self.owes_functions = bool(header["counters"].get("owes_functions", 0))
        self._is_of(epoch)
        if self.variables is not None:
            self.variables.come(epoch, header.get(VARIABLES), header.get(ALONE), at_once=self._taken is None)
        return applied, epoch

    def take_changes(self, epoch: int, changes: dict[str, Any]) -> None:
        """Take over changes that other workers, whose loop is in `epoch`, have made since the update."""
        self.values.take(changes)
        self._is_of(epoch)

    def _is_of(self, epoch: int) -> None:
        self._script.state_is_of(epoch)
        in_it = self._script.at is ScriptAt.READING and epoch <= self._script.epoch
        self._taken = None if in_it else (epoch, self.values.whole(modules=True))

    def epoch_begins(self, epoch: int) -> None:
        """Note that the script's loop has come to `epoch`."""
        self._script.epoch = epoch
        if self._taken is not None and self._taken[0] <= epoch:
            self._restore(self._taken[1])
            self._with_own = False

    def script_resumes(self) -> None:
        """Let the script continue in its epoch, which may be before that of the state: then with its own values of that
        time.
        """
        if self._own is not None:
            own, self._own = self._own, None
            if self.is_behind:
                self.values.restore(own)
                self._with_own = True

    def catch_up(self) -> None:
        """Note that other workers have applied the last step of the script's epoch, which this worker has missed."""
        self._catches_up = True
        if self._taken is None:
            self._taken = self._script.epoch, self.values.whole(modules=True)

    def batches_begin(self) -> None:
        """Note that the script's loop over batches begins.

        In the state's epoch, the effects of code that ran again are undone.
        """
        self._catches_up = False
        if self._taken is not None and self._taken[0] <= self._script.epoch:
            self._restore(self._taken[1])
            self._taken, self._with_own = None, False

    def _restore(self, whole: dict[str, Any]) -> None:
        self.settle()
        self.values.restore(whole)

    # -- giving

    def header(self, counters: dict[str, int]) -> dict[str, Any]:
        """Return the header of the present state. Its values may belong to a later epoch than the script's."""
        if self._with_own and self._taken is not None:
            own, (_, taken) = self.values.whole(), self._taken
            self.values.restore(taken, modules=False)
            header = self.parts.header(counters)
            self.values.restore(own)
        else:
            header = self.parts.header(counters)
        header["results"] = self.results.plain()
        header["settlements"] = self.agreed_values.plain()
        if self.likeness is not None:
            header["likeness"] = self.likeness.plain()
        header["virtual_workers"] = self.parts.registered.virtual.count
        if self.owes_functions:
            header["counters"]["owes_functions"] = 1
        if self.end is not None:
            header["counters"]["end"] = self.end
        if self._taken is not None and self.is_behind:
            header["counters"]["epoch"] = self._taken[0]
        return header

    def to_give(self, header: dict[str, Any]) -> dict[str, Any]:
        """Return this header for another worker, with values beside the state that workers do not compare."""
        code = {} if self.code is None else {"code": self.code.description()}
        variables = {} if VARIABLES in header else self._variables(looks=True)
        return {key: value for key, value in {**header, **code, **variables}.items() if key != ALONE}

    def _variables(self, looks: bool) -> dict[str, Any]:
        """Return the script's variables for a header, as they are now. looks: as in `ScriptVariables.give`."""
        given = None if self.variables is None else self.variables.give(looks)
        return {} if given is None else {VARIABLES: given}

    def _alone(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return further variables for a checkpoint's header, as they are now (`ScriptVariables.give_alone`)."""
        alone = None if self.variables is None else self.variables.give_alone(given)
        return {} if alone is None else {ALONE: alone}

    def save(self, save: SaveCheckpoint) -> None:
        """Begin to write the present state; inside the script's code between two steps, the state in which that code
        began.
        """
        assert self._writer is not None
        counters = {"applied": save.step, "epoch": save.epoch, "generation": save.generation}
        if self.parts.divided is None:
            self._save(save, counters)
        elif self.parts.divided.whole_at != save.step or self.interlude is not None:
            self._tell(
                CheckpointFailed(
                    save.number, "the state is divided among the workers, and not all of it is on this one"
                )
            )
        else:
            with self.parts.divided.whole() as staged:
                self._save(save, counters, staged)

    def _save(self, save: SaveCheckpoint, counters: dict[str, int], staged: frozenset[int] = frozenset()) -> None:
        """staged: addresses of tensors that are in the host's memory and belong to an accelerator."""
        assert self._writer is not None
        if self.interlude is None:
            header = self.header(counters)
            header.pop(DIVISION, None)
        elif self.interlude.interruptible:
            header = self.interlude.header(counters, self.agreed_values)
        else:
            self._tell(CheckpointFailed(save.number, "the script has changed tensors between two steps, and goes on"))
            return
        tensors = self.parts.tensors()
        for description, tensor in zip(header["tensors"], tensors, strict=True):
            if tensor.data_ptr() in staged:
                description[3] = "device"
        was = self.script_was  # of a checkpoint, with variables that are not set yet
        seen = {} if SCRIPT in header else {SCRIPT: self.looks() if was is None else was}
        given = {**self.to_give(header), **seen, KEYS: self.parts.keys()}
        given |= {ALONE: header[ALONE]} if ALONE in header else self._alone(given.get(VARIABLES, {}))
        self._writer.save(save, given, tensors, mutable=self.parts.changing(tensors))

    def interlude_begins(self, after_step: bool, interruptible: bool = True) -> None:
        """Begin the script's code between two steps. after_step: the code is a function of `run.every`."""
        header = self.header({}) if self._writer is not None and interruptible else None
        if header is not None and not after_step and (variables := self._variables(looks=False)):
            # All of the same moment, or a restart would miss what changes now
            header |= {**variables, **self._alone(variables[VARIABLES]), SCRIPT: self.looks()}
        if self.variables is not None and not after_step:
            self.variables.pass_ends()
        self.interlude = Interlude(header, self.parts.tensors() if header else [], after_step)

    def settle(self) -> None:
        """Wait until a checkpoint of the present state has been copied, since the state is about to change."""
        if self._writer is not None:
            self._writer.settle()


def next_epoch(header: dict[str, Any]) -> int | None:
    """Return the epoch of the step after a state; None if it follows from the step's number."""
    data = header.get("data")
    return None if data is None else int(data["epoch"])
