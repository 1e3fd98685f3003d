"""Checkpoints: written in the background, whole or not at all, loaded without unpickling.

A checkpoint is ``step-<number of the last applied step>.pt``: `torch.save` of a header and a list of tensors (see `state`), written beside
its place, synced to the disk and renamed. A file that does not load (a disk may lie) is passed over for the one before it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Document:
    """A training state as `state.TrainingState` takes it."""

    header: dict[str, Any]
    tensors: list[torch.Tensor]


class CheckpointWriter:
    """Writes the checkpoints of one job, one at a time, and keeps the last few."""

    def __init__(self, directory: Path, keep: int) -> None:
        self.directory = directory
        self._keep = max(1, keep)
        self._thread: threading.Thread | None = None

    def save(self, step: int, header: dict[str, Any], tensors: Sequence[torch.Tensor]) -> None:
        """Copy the state and write it in the background. Waits for the one before, should that still be under way."""
        self.wait()
        copies = [tensor.detach().to("cpu", copy=True) for tensor in tensors]
        self._thread = threading.Thread(
            target=self._write, args=(step, header, copies), name="elasticd-checkpoint", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Return when nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, step: int, header: dict[str, Any], tensors: list[torch.Tensor]) -> None:
        path = self.directory / f"step-{step:012d}.pt"
        temporary = self.directory / f".{path.name}.{os.getpid()}"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                torch.save({"header": header, "tensors": tensors}, file)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(path)
            _sync_directory(self.directory)
            for old in _complete(self.directory)[self._keep :]:
                old.unlink(missing_ok=True)
        except (OSError, RuntimeError) as error:  # a full disk must not end the training; the next one may succeed
            log.error("checkpoint %s was not written: %s", path, error)
            temporary.unlink(missing_ok=True)


def latest(directory: Path) -> Document | None:
    """The newest checkpoint that loads, or None."""
    for path in _complete(directory):
        try:
            return load(path)
        except (OSError, RuntimeError, EOFError, KeyError, ValueError) as error:
            log.error("checkpoint %s does not load, taking the one before: %s", path, error)
    return None


def load(path: Path) -> Document:
    """The checkpoint in `path`. Raises what `torch.load` raises for a file that is none."""
    content = torch.load(path, map_location="cpu", weights_only=True)
    return Document(header=content["header"], tensors=content["tensors"])


def _complete(directory: Path) -> list[Path]:
    """All complete checkpoints, newest first."""
    return sorted(directory.glob("step-[0-9]*.pt"), reverse=True)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
