"""Notes of a rehearsed worker on its training, one JSON document per line, written at once: a killed worker's notes
remain.

{"loop": {...}}                   the training loop has begun: its place in the script, and the known parts of its length
{"look": s, "reach": [...]}       values that the script keeps (`reachable`) when it requests the step after s applied ones;
                                  -1: at the loop's beginning. Of several with one s the last one counts
{"state": s, "entries": [...]}    digests of the job's state by name, when s steps are applied
{"save": path, "step": s, "entries": [...]}   the value passed to `run.save`
{"over": s, "entries": [...]}     the loop is over; the state at its end, registered values included
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch

from ..events import Arrived, Event, StepApplied, StepWanted
from ..script import ScriptAt
from ..source.assigned import Sources
from ..source.own_code import directories, loop_frame, own_modules
from ..trainer import Trainer
from ..variables.frames import names_bound
from ..variables.looking import carried
from ..variables.reachable import look

LOOKS_S = 15.0  # limit of the time spent on looks
Entry = tuple[str, int, str]


class Notes:
    """The notes of one worker. For the training thread."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._trainer: Trainer | None = None
        self._beside: dict[str, Any] = {}
        self._bound: frozenset[str] = frozenset()
        self._batch_size: int | None = None
        self._looked = (-2, 0)  # applied steps and epoch of the script at the last look
        self._looks_s = 0.0
        self._has_read = False

    def follow(self, trainer: Trainer, dataset: Any, batch_size: int | None) -> None:
        """Follow a prepared script. batch_size: of one virtual worker, if known."""
        self._trainer, self._beside, self._batch_size = trainer, {"the data set": dataset}, batch_size

    def note(self, document: dict[str, Any]) -> None:
        os.write(self._descriptor, msgspec.json.encode(document) + b"\n")

    def saw(self, fact: Event) -> None:
        trainer = self._trainer
        if trainer is None:
            return
        match fact:
            case Arrived():
                self._arrived(trainer, fact)
            # otherwise the worker has just joined and still has to run the code at its epoch's beginning
            case StepWanted() if trainer.script.at is ScriptAt.READING:
                self._look(trainer.held.next_step)
            case StepApplied(step=step):
                self.note({"state": step + 1, "entries": trainer.comparison.entries(registered=False)})

    def _arrived(self, trainer: Trainer, fact: Arrived) -> None:
        frame = loop_frame(sys._getframe(1))
        found: dict[str, Any] = {}
        if frame is not None:
            others = [module.get("__file__") for module in own_modules(directories(), frame.f_globals).values()]
            found = {
                "file": frame.f_code.co_filename,
                "line": frame.f_lineno,
                "function": frame.f_code.co_name,
                "others": [name for name in others if isinstance(name, str)],
            }
        self.note(
            {
                "loop": {
                    **found,
                    "steps_per_epoch": fact.steps_per_epoch,
                    "total_steps": fact.total_steps,
                    "epochs": fact.epochs,
                    "virtual_workers": trainer.recipe.virtual_workers,
                    "batch_size": self._batch_size,
                }
            }
        )
        self._bound = names_bound(frame) - Sources.of(frame).temporaries()
        self._look(-1)

    def _look(self, step: int) -> None:
        frame = loop_frame(sys._getframe(1))
        # the first pass begins: include variables that the epoch's beginning has bound
        if not self._has_read and step >= 0:
            self._has_read = True
            sources = Sources.of(frame)
            self._bound |= (names_bound(frame) - sources.temporaries()) | sources.sometimes
        assert self._trainer is not None
        # at the edge of an epoch the step is looked at again, after the code between epochs
        place = step, self._trainer.script.epoch
        if place == self._looked or self._looks_s > LOOKS_S:
            return
        self._looked = place
        begun = time.monotonic()
        reach = look(frame, self._bound, carried(self._trainer.held.parts), beside=self._beside)
        self._looks_s += time.monotonic() - begun
        self.note({"look": step, "reach": reach.plain()})

    def saves(self, what: Any, path: Path, step: int) -> None:
        value = what.state_dict() if isinstance(what, torch.nn.Module) else what
        self.note({"save": str(path), "step": step, "entries": list(_entries(value, ""))})

    def over(self) -> None:
        assert self._trainer is not None
        trainer = self._trainer
        self.note({"over": trainer.held.next_step, "entries": trainer.comparison.entries(registered=True)})


def _entries(value: Any, name: str, depth: int = 0) -> Iterator[Entry]:
    """Yield digests of the values that `torch.save` would write, by name."""
    if isinstance(value, torch.Tensor):
        dense = value.detach() if value.layout is torch.strided else value.detach().to_dense()
        flat = dense.cpu().contiguous().reshape(-1)
        data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        shown = repr(flat[0].item()) if flat.numel() == 1 else f"a tensor {list(value.shape)}"
        yield name, _digest(f"{value.dtype} {tuple(value.shape)}".encode(), data), shown
    elif isinstance(value, dict) and depth < 8:
        for key, item in value.items():
            yield from _entries(item, f"{name}[{key!r}]", depth + 1)
    elif isinstance(value, list | tuple) and depth < 8:
        for number, item in enumerate(value):
            yield from _entries(item, f"{name}[{number}]", depth + 1)
    elif value is None or isinstance(value, bool | int | float | str | bytes):
        yield name, _digest(repr(value).encode()), repr(value)[:48]
    else:
        try:
            yield name, _digest(pickle.dumps(value)), type(value).__name__
        except Exception:  # `torch.save` would report the error; a rehearsal does not
            yield name, 0, type(value).__name__


def _digest(*parts: bytes) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return int.from_bytes(digest.digest(), "little") >> 1
