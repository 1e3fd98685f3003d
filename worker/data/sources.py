"""Files that are read in sequence, and that can be opened anywhere: lines of text, and members of tar archives.

Both say by `state_dict()` at which byte the next sample begins, as the datasets of torchdata and Hugging Face say where they
stand. So whoever takes a shard over (`shards.Shards`) does not read it from its beginning.
"""

from __future__ import annotations

import gzip
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

from ...protocol.errors import UserError


class Lines:
    """The lines of a text file, each without its end. `open=elastic.Lines`, or with `parse=json.loads` for JSON Lines."""

    def __init__(
        self,
        path: str | Path,
        parse: Callable[[str], Any] = str,
        *,
        part: int = 0,
        parts: int = 1,
        encoding: str = "utf-8",
    ) -> None:
        """path: a name that ends in `.gz` is decompressed. part: of how many parts of about the same number of bytes; a line
        belongs to the part in which it begins. Raises UserError if there is no such part, or if a compressed file has several."""
        if not 0 <= part < parts:
            raise UserError(f"{path}: there is no part {part} of {parts}; parts are counted from 0")
        self._compressed = str(path).endswith(".gz")
        if self._compressed and parts > 1:
            raise UserError(
                f"{path} is compressed, so it cannot be divided by bytes: decompress it, or make several files"
            )
        self._path, self._parse, self._encoding = path, parse, encoding
        self._part, self._parts = part, parts
        self._next: int | None = None  # byte at which the next line begins; None: at the beginning of the part

    def __iter__(self) -> Iterator[Any]:
        with self._open() as file:
            end = None if self._compressed else self._bound(self._part + 1)
            if self._next is None:
                self._next = self._first(file)
            file.seek(self._next)
            while end is None or self._next < end:
                line = file.readline()
                if not line:
                    return
                self._next += len(line)
                yield self._parse(line.decode(self._encoding).rstrip("\r\n"))

    def state_dict(self) -> dict[str, Any]:
        """Where the next line begins, in bytes."""
        return {"next": self._next}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._next = state["next"]

    def _open(self) -> IO[bytes]:
        if self._compressed:
            return cast(IO[bytes], gzip.open(self._path))
        return Path(self._path).open("rb")

    def _bound(self, part: int) -> int:
        return os.path.getsize(self._path) * part // self._parts

    def _first(self, file: IO[bytes]) -> int:
        """Where the first line begins that begins in this part."""
        if self._part == 0:
            return 0
        file.seek(self._bound(self._part) - 1)
        file.readline()
        return file.tell()


class TarSamples:
    """The samples of a tar archive that is not compressed, as WebDataset has them: neighbouring files with the same name up to
    its first dot are one sample, a dict from what follows that dot to the bytes, with the name as `__key__`."""

    def __init__(self, path: str | Path, decode: Callable[[dict[str, Any]], Any] = dict) -> None:
        """decode: from such a dict to the sample."""
        self._path, self._decode = path, decode
        self._next = 0  # byte at which the next sample begins

    def __iter__(self) -> Iterator[Any]:
        if self._next and self._next >= os.path.getsize(self._path):
            return
        with Path(self._path).open("rb") as file:
            file.seek(self._next)
            with tarfile.open(fileobj=file, mode="r:") as archive:
                yield from self._samples(archive)

    def _samples(self, archive: tarfile.TarFile) -> Iterator[Any]:
        sample: dict[str, Any] = {}
        while (member := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined]  # else it remembers all of them
            if not member.isfile():
                continue
            folder, name = os.path.split(member.name)
            stem, _, extension = name.partition(".")
            key = os.path.join(folder, stem)
            if sample and sample["__key__"] != key:
                self._next = member.offset
                yield self._decode(sample)
                sample = {}
            content = archive.extractfile(member)
            assert content is not None
            sample["__key__"] = key
            sample[extension] = content.read()
        self._next = os.path.getsize(self._path)
        if sample:
            yield self._decode(sample)

    def state_dict(self) -> dict[str, Any]:
        """Where the next sample begins, in bytes."""
        return {"next": self._next}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._next = state["next"]
