"""Joint work of the workers' scripts between two steps: evaluations, decisions, the end of the job.

Between two steps all workers have the same state, and run the same code. A result obtained there is an agreed value
(`interlude`), which is part of the state. A worker's script may reach such code later than its state: the worker has missed a
step, or has joined in the middle of an epoch. It then finds the result in its state, and waits for no other worker.

*Evaluations* are pure: if a worker is lost during one, the others compute the missing parts themselves, and go on.

*Decisions* are not: the values that they are made from exist once. If a worker is lost while values are exchanged, some workers
may know the decision and others not. Those that do not stop, as after a loss in a step. In the next generation only the workers
that know the most decisions are holders of the state; the others receive the state with the decision. If no worker knows it, it
is made again. So a decision that any worker has acted upon holds as long as one of those that know it survives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import torch

from ..protocol import exits
from ..protocol.errors import UserError
from .communication.communicator import Communicator, CommunicatorBroken
from .communication.exchange import tell_each_other
from .comparison.remarks import Remarks
from .data.likeness import Likeness, Unlike, difference
from .ending import end_process
from .evaluation import Evaluation
from .events import (
    CollectiveFailed,
    EndDecided,
    EnterGeneration,
    Event,
    Instruction,
    Progressed,
    Resume,
    SharingBegun,
    SharingEnded,
    ThreadFact,
)
from .hosting import assign
from .interlude import BoundaryPoint
from .plain import pack, unpack
from .script import Script, ScriptAt
from .state.held import HeldState
from .virtual import derive_seed, seed_everything

T = TypeVar("T")
DATASETS = 4  # evaluated datasets with a cached fingerprint
IN_BODY = (
    "{call} was called in the loop over batches, whose body runs once for each virtual worker: call it between two epochs, or in "
    "a function `@run.every(steps=100)`, which runs on every worker after each hundredth step"
)


class ScriptExit(SystemExit):
    """This worker is no longer needed: its script ends, and no state is lost."""


class Superseded(BaseException):
    """Ends a function given to `run.every`: another worker's state will arrive, in which the function has run already."""

    def __init__(self, instruction: Instruction) -> None:
        super().__init__()
        self.instruction = instruction


@dataclass
class Function:
    """A function given to `run.every`."""

    steps: int
    call: Callable[[], Any]
    together: bool = False  # has evaluated or decided, so it may take long


class StepBoundary:
    """One worker's joint work between two steps. For the training thread."""

    def __init__(
        self,
        virtual_workers: int,
        seed: int,
        device: torch.device,
        tell: Callable[[Event], None],
        obey: Callable[[ThreadFact], Instruction],
        held: HeldState,
        script: Script,
        functions: Sequence[Function],
        remarks: Remarks,
    ) -> None:
        """obey: reports a fact of the thread and performs the machine's instructions until it is the script's turn."""
        self._remarks = remarks
        self._virtual_workers = virtual_workers
        self._seed = seed
        self._device = device
        self._tell = tell
        self._obey = obey
        self._held = held
        self._script = script
        self._functions = functions
        self._function: Function | None = None  # the running one
        self._after = 0  # number of steps before the running function
        self._read = -1, 0  # the last epoch with all batches read, and the number of steps done by then
        self._likenesses: deque[tuple[Any, Likeness]] = deque(maxlen=DATASETS)  # of evaluated datasets
        self._calls: dict[str, int] = {}  # number of calls made, by place
        self._entered: EnterGeneration | None = None
        self._communicator = Communicator.alone()
        self._all_have_state = True

    def enter(self, entered: EnterGeneration, communicator: Communicator) -> None:
        """Use this generation from now on."""
        self._entered, self._communicator = entered, communicator
        self._all_have_state = not entered.transfers

    def epoch_read(self, epoch: int) -> None:
        """Note that the loop over an epoch's batches has ended."""
        self._read = epoch, self._held.next_step
        self._calls.clear()
        self._held.interlude_begins(after_step=False)

    def has_read(self, epoch: int) -> bool:
        """Return whether the loop over an epoch's batches has ended."""
        return self._read[0] == epoch

    @property
    def in_function(self) -> bool:
        return self._function is not None

    # -- after each step

    def step_applied(self) -> Instruction | None:
        """Call the functions given to `run.every`. Returns an instruction that must be performed first, if there is one."""
        self._all_have_state = True
        self._held.agreed_values.step_applied()
        return self.call_functions()

    def call_functions(self) -> Instruction | None:
        """Call the functions of `run.every` that are due; their step may have been applied before a restart.

        Returns an instruction that must be performed first, if there is one."""
        self._held.owes_functions = False
        due = self._due()
        if not due:
            return None
        self._held.interlude_begins(after_step=True, interruptible=any(each.together for each in due))
        self._after = self._held.next_step
        try:
            for number, function in enumerate(due):
                # Seeded for each function: the one before may have drawn random numbers on the leader alone.
                seed_everything(derive_seed(self._seed, "after step", self._after, number))
                self._function = function
                function.call()
        except Superseded as superseded:
            return superseded.instruction
        finally:
            self._function = None
            self._calls.pop(BoundaryPoint("after", self._after).key, None)
            self._held.interlude = None
        return None

    @property
    def functions_due(self) -> bool:
        """Return whether a function is to be called after the last applied step."""
        return bool(self._due())

    def _due(self) -> list[Function]:
        return [each for each in self._functions if self._held.next_step % each.steps == 0]

    # -- where the script is

    def _place(self, call: str) -> BoundaryPoint:
        """Return the place of a call in the script. Raises UserError in the middle of a step, or outside the loop."""
        at, epoch = self._script.at, self._script.epoch
        if self._function is not None:
            self._function.together = True
            return BoundaryPoint("after", self._after)
        if at is ScriptAt.READING:
            raise UserError(IN_BODY.format(call=call))
        if at is not ScriptAt.BETWEEN:
            raise UserError(
                f"{call} was called outside the loop over run.epochs(): the workers are together only there"
            )
        return BoundaryPoint("end" if self.has_read(epoch) else "begin", epoch)

    def _is_live(self, place: BoundaryPoint) -> bool:
        """Return whether the state belongs to this place. If not, the other workers are past it, and this script follows."""
        read, steps_done = self._read
        match place.kind:
            case "after":
                return self._held.next_step == place.number
            case "end":
                return self._held.next_step == steps_done and self._held.state_epoch <= place.number
            case _:
                return self._held.next_step == (steps_done if read == place.number - 1 else 0)

    def _call(self, call: str) -> tuple[BoundaryPoint, int]:
        """Return the place of this call, and its number there."""
        place = self._place(call)
        number = self._calls.get(place.key, 0)
        self._calls[place.key] = number + 1
        return place, number

    def _known(self, place: BoundaryPoint, number: int) -> bytes | None:
        """Return the recorded result of this call; None if it has yet to be computed. Raises ScriptExit if it cannot be."""
        found = self._held.agreed_values.find(place, number)
        if found is None and not self._is_live(place):
            print(f"what was found out {place} is not known any more: this worker ends, to be replaced", flush=True)
            raise ScriptExit(exits.SPOILED)
        return found

    def _together(self) -> list[int]:
        """Return the ranks that take part: all but those that wait for their state."""
        assert self._entered is not None
        waiting = set() if self._all_have_state else {each.target_rank for each in self._entered.transfers}
        return [rank for rank in range(len(self._entered.roster.members)) if rank not in waiting]

    # -- evaluations

    def evaluate(self, evaluation: Callable[[tuple[int | str, ...]], Evaluation]) -> Any:
        """Evaluate, with seeds of this place."""
        if self._script.at in (ScriptAt.OVER, ScriptAt.LEFT):  # the others may have exited, so compute all parts here
            seeds = (self._seed, "evaluate", self._held.next_step, "over", 0)
            whole = evaluation(seeds)
            return whole.take(whole.result(whole.parts(range(self._virtual_workers), lambda: None)))
        place, number = self._call("run.evaluate()")
        present = evaluation((self._seed, "evaluate", place.key, number))
        result = self._known(place, number)
        if result is None:
            result = present.result(self._all_parts(present, f"evaluate {place.key} {number}"))
            self._held.agreed_values.record(place, number, result, decision=False)
        # Each worker has drawn for other batches. Reseed, so that the script's next draw is equal everywhere, late workers too.
        seed_everything(derive_seed(self._seed, "evaluated", place.key, number))
        return present.take(result)

    def _all_parts(self, evaluation: Evaluation, name: str) -> dict[int, bytes]:
        ranks = self._together()
        ranges = assign(self._virtual_workers, [True] * len(ranks))
        mine = ranges[ranks.index(self._communicator.rank)] if len(ranks) > 1 else ranges[0]
        self._remarks.evaluation_begins()
        parts = evaluation.parts(mine, self._progressed)
        self._remarks.evaluation_ends(evaluation.metrics)
        if len(ranks) > 1:
            parts = self._exchanged(ranks, name, parts, self._likeness(evaluation.dataset))
        missing = [v for v in range(self._virtual_workers) if v not in parts]
        if missing:
            parts.update(evaluation.parts(missing, self._progressed))
        return parts

    def _likeness(self, dataset: Any) -> Likeness | None:
        """Return the fingerprint of an evaluated dataset, cached since a script evaluates the same few datasets repeatedly."""
        if self._held.likeness is None:
            return None
        kept = next((each for each in self._likenesses if each[0] is dataset), None)
        if kept is None:
            kept = dataset, self._held.likeness.of(dataset, "the dataset given to run.evaluate()")
            self._likenesses.append(kept)
        return kept[1]

    def _exchanged(
        self, ranks: Sequence[int], name: str, parts: dict[int, bytes], likeness: Likeness | None
    ) -> dict[int, bytes]:
        """Return all workers' parts, or only this worker's where one is lost. A worker that has read other data than the first
        rank exits here, and the others go on without its parts."""
        own = msgspec.msgpack.encode((parts, {} if likeness is None else likeness.plain()))
        self._tell(SharingBegun(resumes=True))
        try:
            told = tell_each_other(self._communicator, ranks, name, own)
        except CommunicatorBroken:
            told = [own]
        self._tell(SharingEnded())
        kind = tuple[dict[int, bytes], dict[str, Any]]
        decoded = [msgspec.msgpack.decode(each, type=kind, strict=False) for each in told]
        first = decoded[0][1]
        if likeness is not None and first:
            try:
                likeness.check(first)
            except Unlike as error:  # the others go on without this worker
                end_process(exits.UNLIKE, str(error))
        found: dict[int, bytes] = {}
        for each, theirs in decoded:
            if not first or not theirs or difference(theirs, first, "", "") is None:
                found.update(each)
        return found

    def _progressed(self) -> None:
        """Report that a batch is done, so no hang is suspected. If the job is preempted, this worker exits here if it can."""
        interlude = self._held.interlude
        self._obey(Progressed(interruptible=interlude is not None and interlude.interruptible))

    # -- decisions

    def agree(self, value: Any, choose: Callable[[list[Any]], Any] | None, call: str = "run.agree()") -> Any:
        """Agree on one value on all workers: the result of `choose` on their values in rank order; None: the leader's value."""
        place, number = self._call(call)
        own = msgspec.msgpack.encode(pack(value, "the value given to run.agree()"))
        while (known := self._known(place, number)) is None:
            told = self._told(place, number, own)
            if told is not None:
                chosen = self._chosen([unpack(msgspec.msgpack.decode(each)) for each in told], choose)
                known = msgspec.msgpack.encode(pack(chosen, "what run.agree() has chosen"))
                self._held.agreed_values.record(place, number, known, decision=True)
        # Code on some workers alone may have drawn for its value. Reseed, so that the script's next draw is equal everywhere.
        seed_everything(derive_seed(self._seed, "agreed", place.key, number))
        return unpack(msgspec.msgpack.decode(known))

    def _told(self, place: BoundaryPoint, number: int, own: bytes) -> list[bytes] | None:
        """Return all workers' values; None if one was lost: this one is in the next generation, perhaps with another's state."""
        self._tell(SharingBegun(resumes=not self.in_function))
        try:
            told = tell_each_other(self._communicator, self._together(), f"agree {place.key} {number}", own)
        except CommunicatorBroken as error:
            instruction = self._obey(CollectiveFailed(str(error)))
            assert isinstance(instruction, Resume)
            return None
        self._tell(SharingEnded(settled=True))
        return told

    def _chosen(self, values: list[Any], choose: Callable[[list[Any]], Any] | None) -> Any:
        if choose is not None:
            return choose(values)
        assert self._entered is not None
        ranks, roster = self._together(), self._entered.roster
        leader = roster.rank(roster.leader)
        return values[ranks.index(leader) if leader in ranks else 0]

    # -- the end

    def stop(self) -> None:
        """Make the last applied step the job's last one."""
        self._place("run.stop()")
        self._held.end = self._held.next_step
        self._tell(EndDecided())
