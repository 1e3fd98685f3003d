"""Checkpoints: a job's state on disk, in case no worker survives.

A checkpoint is one file, named after the generation that has written it and the step of its state. The state is copied
while the next step is computed, which does not change the state until its update: so training stands still only if
copying takes longer than a step. The file is written in the background under another name, flushed to disk and only
then given its name. A file with a checkpoint's name is therefore complete whenever the process or the machine stops.
Its contents are plain values and tensors, which are read without unpickling code. If a file cannot be read all the same
(disks fail silently), the one before it is used.

`lineages` decides which of several checkpoints is the newest, and which writer may write or remove one.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import pickle
import re
import secrets
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...protocol.errors import OperatorError
from ..events import CheckpointFailed, CheckpointSaved, SaveCheckpoint
from ..lineages import Name, newest_first, overtaken_by, superfluous, taken_over
from .host_copies import HostCopies

log = logging.getLogger(__name__)

_TEMPORARY = re.compile(r"\.(?:generation-\d{8,}-)?step-\d{12,}\.pt\.[0-9a-f]+")
_UNREADABLE = (
    OSError,
    RuntimeError,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    NotImplementedError,
    zipfile.BadZipFile,
    zlib.error,
    pickle.UnpicklingError,
)
STALE_AFTER_S = 3600.0  # a temporary file of that age has lost its writer


@dataclass(frozen=True)
class Document:
    """Contents of a checkpoint: see `training_state.TrainingState`."""

    header: dict[str, Any]
    tensors: list[torch.Tensor]


def checkpoints(directory: Path) -> list[Name]:
    """Return all files with a checkpoint's name, newest first.

    Raises OperatorError if the directory exists and cannot be listed.
    """
    try:
        files = os.listdir(directory)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise OperatorError(f"{directory} cannot be listed: {error.strerror}") from error
    return newest_first(name for file in files if (name := Name.parse(file)) is not None)


class Damaged(OperatorError):
    """A checkpoint's file can be opened, but its contents are not those that were written."""


def load(path: Path) -> Document:
    """Read a checkpoint. Its tensors are on the CPU, mapped from the file.

    Raises OperatorError if the file cannot be opened, such as for lack of rights or of a mounted file system, and
    Damaged if it is truncated, has other bits than were written, or is on a medium that cannot be read.
    """
    try:
        open(path, "rb").close()
    except OSError as error:
        raise OperatorError(f"{path}: cannot be opened: {error.strerror}") from error
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        document = Document(content["header"], content["tensors"])
        if len(document.header.get("tensors", document.tensors)) != len(document.tensors):
            raise ValueError("tensors are missing")
        if content.get("summed"):
            _check_sums(path)
        return document
    except _UNREADABLE as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EIO):
            raise OperatorError(f"{path}: cannot be read: {error.strerror}") from error
        raise Damaged(f"{path}: not a checkpoint that can be read: {str(error).partition(chr(10))[0]}") from error


def _check_sums(path: Path) -> None:
    """Compare the file's contents with their CRC-32 checksums, at about a gigabyte a second; torch does not.

    Raises ValueError.
    """
    with zipfile.ZipFile(path) as file:
        if wrong := file.testzip():
            raise ValueError(f"{wrong} has other bits than were written")


def _writes_sums() -> bool:
    """Return whether torch writes checksums of the contents. A script may have switched that off."""
    asked = getattr(torch.serialization, "get_crc32_options", None)
    return asked is None or bool(asked())


@dataclass(frozen=True)
class Others:
    """Checkpoints of another job, from which a job without checkpoints of its own resumes. They are not changed."""

    directory: Path
    any_code: bool  # accept checkpoints of other code or data


def latest(directory: Path, generation: int | None) -> tuple[Document | None, str, int | None]:
    """Return the newest readable checkpoint; None without any.

    The second value is the errors of newer checkpoints, the third the step of the newest if that is damaged. The
    checkpoint becomes one of `generation`; with None it keeps its name.
    """
    troubles: list[str] = []
    damaged: int | None = None
    try:
        names = checkpoints(directory)
    except OperatorError as error:
        return None, str(error), None
    for name in names:
        try:
            document = load(directory / name.file)
        except OperatorError as error:
            log.warning("%s; going back to the one before", error)
            damaged = name.step if isinstance(error, Damaged) and not troubles else damaged
            troubles.append(str(error))
            continue
        if generation is not None:
            _take_over(directory, name, generation)
        return document, "; ".join(troubles), damaged
    return None, "; ".join(troubles), damaged


def _take_over(directory: Path, name: Name, generation: int) -> None:
    own = taken_over(name, generation)
    if own == name:
        return
    try:
        os.rename(directory / name.file, directory / own.file)
    except OSError as error:  # the checkpoint can be used under its old name
        log.warning("%s cannot be renamed: %s", directory / name.file, error)


COPYING = "elasticd-snapshot"  # name of the thread that copies a state to the host


def _stream_beside(tensors: Sequence[torch.Tensor]) -> contextlib.AbstractContextManager[object]:
    """Return a context with a new stream for copies beside the training, ordered after the work queued on the present
    stream.

    Another thread's present stream is the default one: copies there would make the training's kernels wait, or not wait
    for them.
    """
    device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
    if device is None:
        return contextlib.nullcontext()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    return torch.cuda.stream(stream)


class CheckpointWriter:
    """Writes checkpoints in the background, one at a time. `save` and `settle` are for one thread.

    A checkpoint that cannot be written never stops the training: the failure is logged and reported.
    """

    def __init__(self, directory: Path, keep: int, tell: Callable[[CheckpointSaved | CheckpointFailed], None]) -> None:
        """keep: number of checkpoints to leave in `directory`, which is created if missing. tell: called by any thread."""
        self.directory = directory
        self.others: Others | None = None  # source of the first state, while `directory` has no checkpoint
        self._keep = keep
        self._tell = tell
        self._lock = threading.Lock()
        self._queued: tuple[SaveCheckpoint, Document] | None = None
        self._writing = False
        self._copying: threading.Thread | None = None
        self._copies = HostCopies()

    def save(
        self,
        save: SaveCheckpoint,
        header: Mapping[str, Any],
        tensors: Sequence[torch.Tensor],
        mutable: Sequence[torch.Tensor] = (),
    ) -> None:
        """Begin to copy the state, which is then written.

        The tensors must not change until `settle` has returned, except for those in `mutable`, which are copied at
        once. If an earlier checkpoint still waits for a slow disk, this one replaces it.
        """
        self.settle()
        changing = {id(tensor) for tensor in mutable}
        taken = [tensor.detach().clone() if id(tensor) in changing else tensor.detach() for tensor in tensors]
        self._copying = threading.Thread(
            target=self._copy, args=(save, dict(header), taken, _stream_beside(taken)), name=COPYING, daemon=True
        )
        self._copying.start()

    def settle(self) -> None:
        """Block until the state passed to `save` is copied and may change again."""
        if self._copying is not None:
            self._copying.join()
            self._copying = None

    def _copy(
        self,
        save: SaveCheckpoint,
        header: dict[str, Any],
        tensors: list[torch.Tensor],
        stream: contextlib.AbstractContextManager[object],
    ) -> None:
        try:
            with stream:
                document = Document(header, self._copies.of(tensors))
        except RuntimeError as error:  # out of memory
            log.exception("the state of step %d could not be copied", save.step)
            self._tell(CheckpointFailed(save.number, f"it could not be copied: {error}"))
            return
        with self._lock:
            self._queued = save, document
            if not self._writing:
                self._writing = True
                threading.Thread(target=self._write_all, name="elasticd-checkpoint", daemon=True).start()

    def _write_all(self) -> None:
        while True:
            with self._lock:
                if self._queued is None:
                    self._writing = False
                    return
                (save, document), self._queued = self._queued, None
            try:
                self._write(save, document)
            except Exception as error:  # the edge of this thread: no error may stop the training
                log.exception("the checkpoint of step %d could not be written", save.step)
                self._tell(CheckpointFailed(save.number, f"it could not be written: {error}"))
            else:
                self._tell(CheckpointSaved(save.number))

    def _write(self, save: SaveCheckpoint, document: Document) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._check_not_overtaken(save.generation)
        target = self.directory / Name.of(save.generation, save.step).file
        # A random suffix: writers on two servers may have the same process id.
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
        try:
            with open(temporary, "wb") as file:
                content = {"header": document.header, "tensors": document.tensors, "summed": _writes_sums()}
                torch.save(content, file)
                file.flush()
                os.fsync(file.fileno())
            self._check_not_overtaken(save.generation)
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        self._flush_directory()
        try:
            self._prune(save.generation)
        except (OSError, OperatorError) as error:  # superfluous checkpoints only take space
            log.warning("older checkpoints in %s cannot be removed: %s", self.directory, error)
        log.info("wrote the checkpoint %s", target)

    def _check_not_overtaken(self, generation: int) -> None:
        """Raise OperatorError if a newer generation has a checkpoint."""
        newer = overtaken_by(checkpoints(self.directory), generation)
        if newer is not None:
            raise OperatorError(f"generation {newer} of the job goes on, this is generation {generation}")

    def _flush_directory(self) -> None:
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _prune(self, generation: int) -> None:
        for name in superfluous(checkpoints(self.directory), generation, self._keep):
            (self.directory / name.file).unlink(missing_ok=True)
        for path in sorted(self.directory.iterdir()):
            if _TEMPORARY.fullmatch(path.name):
                _remove_if_stale(path)


def _remove_if_stale(path: Path) -> None:
    try:
        if time.time() - path.stat().st_mtime > STALE_AFTER_S:
            path.unlink()
    except FileNotFoundError:
        pass  # its writer has finished
