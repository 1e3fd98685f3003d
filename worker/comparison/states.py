"""Comparison of the workers' states during training, so that no worker differs from the others unnoticed.

All workers hold the same state, bit for bit, when a step begins. In some steps each of them takes a digest of a part of
it (`rotation` chooses the part and the step, `digests` computes it), and the maximum and the minimum of the digests
travel in the step's word (`inband`). If they are not equal, the states differ. Then the workers exchange the digest of
each entry of that part, and all of them come to the same `verdict` before the step is applied, since its gradient has
come from states that differ.

The whole state is compared in the second step after each change of workers, when new workers have all of it, and after
the last update of the job; there without registered values, which a loop body may set after the update, and only some
bodies have run by then. A new worker sends nothing in its first step, in which it receives the state.

The compared state is the one that a joining worker gets: `TrainingState.header` and `TrainingState.tensors`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...protocol.limits import COMPARE_EVERY
from ...protocol.model import OnDivergence
from ..communication.communicator import Communicator, CommunicatorBroken
from ..digests import ALIGNED, digests, mixed, of_values, together
from ..events import EnterGeneration
from ..inband import NOTHING, InBand, Part, never
from ..state import rotation
from ..state.held import HeldState
from ..state.registered import is_registered
from ..state.verdict import Entry, judge, sentence, value_entries
from .crosscheck import CrossCheck

_SILENT = (NOTHING,) * 4


@dataclass(frozen=True)
class Terms:
    """A job's settings for the comparison of workers' states."""

    every: int = COMPARE_EVERY  # each element is compared in one of this number of steps
    tensors: bool = True  # False: compare plain values only
    on_divergence: OnDivergence = OnDivergence.REPLACE


class Comparison:
    """This worker's part in the comparison. A participant in the exchange within a step; for the training thread."""

    name = "comparison"
    slots = 4
    compares = True

    def __init__(self, held: HeldState, terms: Terms, cross_check: CrossCheck) -> None:
        """cross_check: knows which workers have just joined, and acts on verdicts."""
        self._held = held
        self._cross_check = cross_check
        self._terms = terms
        self._workers: list[str] = []
        self._begun = 0  # number of steps begun in this generation
        self._looks = 1  # number of looks in a round
        self._look: _Look | None = None
        self._differ = False  # whether the workers' digests differ in this step

    def enter(self, entered: EnterGeneration) -> None:
        """Begin a generation."""
        self._workers = [f"{each.worker} on {each.gpu}" for each in entered.roster.members]
        self._begun = 0
        self._look = None

    def begin(self, step: int) -> None:
        """Begin a step: take digests of the state if a look is due."""
        begun, self._begun = self._begun, self._begun + 1
        self._look = None
        if begun == 0 or len(self._workers) < 2:
            return
        if begun == 1:
            self._look = self._whole()
            return
        every = self._terms.every
        look = rotation.look_of(step, every, self._looks)
        if look is not None:
            self._look = self._part(look)

    def at_the_end(self, communicator: Communicator, part: Part) -> None:
        """Compare after the job's last update. Does nothing if the other workers cannot be reached any more."""
        if len(self._workers) < 2:
            return
        self._look = None if part.joins else self._whole(registered=False)
        alone = InBand()
        alone.add(self)
        try:
            alone.issue(communicator, part, NOTHING)
            alone.complete(communicator, part)
            alone.read(part)
        except CommunicatorBroken:
            return

    # -- looking

    def entries(self, registered: bool) -> list[Entry]:
        """Return digests of the present state, by name. registered: include the script's registered values."""
        return self._whole(registered).entries()

    def _tensors(self) -> tuple[list[tuple[str, torch.Tensor]], list[int]]:
        """Return the tensors by name, and the length of each in a round."""
        found = self._held.parts.named_tensors() if self._terms.tensors else []
        return found, [rotation.length(each.nbytes, each.device.type != "cpu") for _, each in found]

    def _whole(self, registered: bool = True) -> _Look:
        tensors, lengths = self._tensors()
        self._looks = rotation.count_looks(self._terms.every, lengths)
        values = self._values()
        if not registered:
            tensors = [each for each in tensors if not is_registered(each[0])]
            values["tensors"] = [each for each in values["tensors"] if not is_registered(each[0])]
            del values["registered"]
        return _Look(tensors, values)

    def _part(self, look: int) -> _Look:
        tensors, lengths = self._tensors()
        if look == 0:
            self._looks = rotation.count_looks(self._terms.every, lengths)
        elements = [each.numel() for _, each in tensors]
        seen: list[tuple[str, torch.Tensor]] = []
        for piece in rotation.pieces(look, self._looks, lengths, elements, ALIGNED):
            name, tensor = tensors[piece.position]
            whole = piece.end - piece.begin == tensor.numel()
            seen.append((name, tensor if whole else tensor.reshape(-1)[piece.begin : piece.end]))
        return _Look(seen, self._values() if look == 0 else None)

    def _values(self) -> dict[str, Any]:
        header = self._held.header({})
        # Workers may keep different numbers of these. Results are exact, or computed from compared values.
        del header["counters"], header["settlements"], header["results"]
        header.pop("likeness", None)  # differs between workers
        return header

    # -- telling

    wants = never

    def numbers(self, part: Part) -> Sequence[int]:
        return _SILENT if self._look is None else self._look.numbers()

    def wants_after(self, part: Part, greatest: Sequence[int]) -> bool:
        high, low, negative_high, negative_low = greatest
        self._differ = high != NOTHING and (high != -negative_high or low != -negative_low)
        return self._differ

    def payload(self, part: Part) -> Any:
        return self._look.entries() if self._differ and self._look is not None else None

    def read(self, part: Part, payloads: Sequence[Any]) -> None:
        """Judge the payloads. Raises CommunicatorBroken if the others are to continue without a worker that is wrong."""
        newcomers = self._cross_check.newcomers
        verdict = judge(payloads, newcomers) if self._differ else None
        if verdict is None:
            return
        text = sentence(verdict, part.step, self._workers) + self._cross_check.also_differs(verdict)
        self._cross_check.carry_out(verdict, newcomers, text)


class _Look:
    """Digests of a part of the state at one moment. Digests of tensors are computed on their devices in the background."""

    def __init__(self, tensors: Sequence[tuple[str, torch.Tensor]], header: dict[str, Any] | None) -> None:
        self._header = header
        by_device: dict[torch.device, list[tuple[str, torch.Tensor]]] = {}
        for name, tensor in tensors:
            by_device.setdefault(tensor.device, []).append((name, tensor))
        self._groups = [_Group(group) for group in by_device.values()]

    def numbers(self) -> Sequence[int]:
        values = [] if self._header is None else [of_values(self._header)]
        digest = mixed([*values, *(group.number() for group in self._groups)])
        high, low = digest >> 32, digest & 0xFFFFFFFF
        return high, low, -high, -low

    def entries(self) -> list[Entry]:
        values = [] if self._header is None else value_entries(self._header, of_values)
        return [*values, *(entry for group in self._groups for entry in group.entries())]


class _Group:
    """Digests of tensors on one device."""

    def __init__(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        self._names = [name for name, _ in tensors]
        self._each = digests([tensor for _, tensor in tensors])
        number = together(self._each)
        self._copied: torch.cuda.Event | None = None
        if number.is_cuda:  # copied long before `number` is called, which then need not wait for work queued later
            self._number = torch.empty((), dtype=torch.int64, pin_memory=True)
            self._number.copy_(number, non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()
        else:
            self._number = number

    def number(self) -> int:
        if self._copied is not None:
            self._copied.synchronize()
        return int(self._number)

    def entries(self) -> list[Entry]:
        return [(name, digest, "") for name, digest in zip(self._names, self._each.tolist(), strict=True)]
