"""Checkpoints: a job's state on disk, for the case that no worker survives.

A checkpoint is one file. The state is copied while the next step is computed, which does not change it until its update: so
the training stands still only if copying takes longer than a step. It is written in the background under another name, flushed
to disk and only then given its name, so that a file with a checkpoint's name is complete whenever the process or the machine
stops. Its contents are plain values and tensors, read without unpickling code. A file that cannot be read all the same (a disk
may lie) is passed over for the one before it.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..protocol.errors import OperatorError

log = logging.getLogger(__name__)

_NAME = re.compile(r"step-(\d{12,})\.pt")
_TEMPORARY = re.compile(r"\.step-\d{12,}\.pt\.\d+")
STALE_AFTER_S = 3600.0  # a temporary file of that age has no writer any more


@dataclass(frozen=True)
class Document:
    """What a checkpoint contains: see `state.TrainingState`."""

    header: dict[str, Any]
    tensors: list[torch.Tensor]


def path_of(directory: Path, step: int) -> Path:
    """Where the checkpoint after `step` is."""
    return directory / f"step-{step:012d}.pt"


def checkpoints(directory: Path) -> list[Path]:
    """All files with a checkpoint's name, newest first."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    steps = sorted((int(match[1]) for name in names if (match := _NAME.fullmatch(name))), reverse=True)
    return [path_of(directory, step) for step in steps]


def load(path: Path) -> Document:
    """Read a checkpoint; its tensors are on the CPU, mapped from the file. Raises OperatorError if it cannot be read."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        return Document(content["header"], content["tensors"])
    except (OSError, RuntimeError, EOFError, ValueError, TypeError, KeyError, pickle.UnpicklingError) as error:
        raise OperatorError(f"{path}: not a checkpoint that can be read: {str(error).partition(chr(10))[0]}") from error


def latest(directory: Path) -> Document | None:
    """The newest checkpoint that can be read, None if there is none. Warns of those that cannot."""
    for path in checkpoints(directory):
        try:
            return load(path)
        except OperatorError as error:
            log.warning("%s; going back to the one before", error)
    return None


class CheckpointWriter:
    """Writes checkpoints in the background, one at a time. For one thread.

    A checkpoint that cannot be written never stops the training: it is logged, and the next `save` or `wait` returns why.
    """

    def __init__(self, directory: Path, keep: int) -> None:
        """keep: how many checkpoints to leave in `directory`, which is made if it is not there."""
        self.directory = directory
        self._keep = max(keep, 1)
        self._changed = threading.Condition()
        self._queued: tuple[int, Document] | None = None
        self._writing = False
        self._error: str | None = None
        self._copying: threading.Thread | None = None

    def save(
        self,
        step: int,
        header: Mapping[str, Any],
        tensors: Sequence[torch.Tensor],
        mutable: Sequence[torch.Tensor] = (),
    ) -> str | None:
        """Begin to copy the state after `step`, to be written. Returns why an earlier one could not be written, if so.

        The tensors must not change until `settle` has returned, except for those in `mutable`, which are copied at once.
        If the disk is so slow that one is still waiting to be written, this one takes its place.
        """
        self.settle()
        changing = {id(tensor) for tensor in mutable}
        taken = [tensor.detach().clone() if id(tensor) in changing else tensor.detach() for tensor in tensors]
        self._copying = threading.Thread(
            target=self._copy, args=(step, dict(header), taken), name="elasticd-snapshot", daemon=True
        )
        self._copying.start()
        with self._changed:
            return self._take_error()

    def settle(self) -> None:
        """Until what `save` was given is copied: it may change again."""
        if self._copying is not None:
            self._copying.join()
            self._copying = None

    def wait(self) -> str | None:
        """Until everything is written. Returns why the last one that failed did, if any."""
        self.settle()
        with self._changed:
            self._changed.wait_for(lambda: not self._writing)
            return self._take_error()

    def _take_error(self) -> str | None:
        error, self._error = self._error, None
        return error

    def _copy(self, step: int, header: dict[str, Any], tensors: list[torch.Tensor]) -> None:
        try:
            document = Document(header, [tensor.to("cpu", copy=True) for tensor in tensors])
        except RuntimeError as error:  # no memory for it
            log.exception("the state of step %d could not be copied", step)
            with self._changed:
                self._error = f"the state of step {step} could not be copied: {error}"
            return
        with self._changed:
            self._queued = step, document
            if not self._writing:
                self._writing = True
                threading.Thread(target=self._write_all, name="elasticd-checkpoint", daemon=True).start()

    def _write_all(self) -> None:
        while True:
            with self._changed:
                if self._queued is None:
                    self._writing = False
                    self._changed.notify_all()
                    return
                (step, document), self._queued = self._queued, None
            try:
                self._write(step, document)
            except Exception as error:  # the edge of this thread: whatever it is must not cost the training
                log.exception("the checkpoint of step %d could not be written", step)
                with self._changed:
                    self._error = f"the checkpoint of step {step} could not be written: {error}"

    def _write(self, step: int, document: Document) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        target = path_of(self.directory, step)
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with open(temporary, "wb") as file:
                torch.save({"header": document.header, "tensors": document.tensors}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        self._flush_directory()
        self._prune()
        log.info("wrote the checkpoint %s", target)

    def _flush_directory(self) -> None:
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _prune(self) -> None:
        for path in checkpoints(self.directory)[self._keep :]:
            path.unlink(missing_ok=True)
        for path in sorted(self.directory.iterdir()):
            if _TEMPORARY.fullmatch(path.name):
                _remove_if_stale(path)


def _remove_if_stale(path: Path) -> None:
    try:
        if time.time() - path.stat().st_mtime > STALE_AFTER_S:
            path.unlink()
    except FileNotFoundError:
        pass  # its writer has finished
