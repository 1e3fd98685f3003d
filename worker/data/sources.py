"""Files that are read in sequence, and that can be opened at any sample: lines of text, and members of tar archives.

Both classes give by `state_dict()` the byte at which the next sample begins, as the datasets of torchdata and Hugging
Face give their positions. A worker that takes over a shard (`shards.Shards`) therefore does not read it from its
beginning.
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
    """The lines of a text file, without line ends: `open=elastic.Lines`, or with `parse=json.loads` for JSON Lines.

    - `path`: the file. A name that ends in `.gz` is decompressed.
    - `parse`: a function from a line to a sample.
    - `part`, `parts`: read part number `part` of `parts` parts with about the same number of bytes. A line belongs to
      the part in which it begins.
    - `encoding`: of the text.

    Raises UserError for a part that does not exist, and if a compressed file is to be divided.
    """

    def __init__(
        self,
        path: str | Path,
        parse: Callable[[str], Any] = str,
        *,
        part: int = 0,
        parts: int = 1,
        encoding: str = "utf-8",
    ) -> None:
        """Raises UserError for a part that does not exist, and if a compressed file is to be divided."""
        if not 0 <= part < parts:
            raise UserError(f"{path}: there is no part {part} of {parts}; parts are counted from 0")
        self._compressed = str(path).endswith(".gz")
        if self._compressed and parts > 1:
            raise UserError(
                f"{path} is compressed, so it cannot be divided by bytes: decompress it, or make several files"
            )
        self._path, self._parse, self._encoding = path, parse, encoding
        self._part, self._parts = part, parts
        self._next: int | None = None  # byte at which the next line begins; None: the part has not begun

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
        """Return the position of the next line, in bytes."""
        return {"next": self._next}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of a `state_dict`."""
        self._next = state["next"]

    def _open(self) -> IO[bytes]:
        if self._compressed:
            return cast(IO[bytes], gzip.open(self._path))
        return Path(self._path).open("rb")

    def _bound(self, part: int) -> int:
        return os.path.getsize(self._path) * part // self._parts

    def _first(self, file: IO[bytes]) -> int:
        """Return the byte at which the first line of this part begins."""
        if self._part == 0:
            return 0
        file.seek(self._bound(self._part) - 1)
        file.readline()
        return file.tell()


class TarSamples:
    """The samples of an uncompressed tar archive in WebDataset's layout: `open=elastic.TarSamples`.

    Neighbouring files with the same name up to the first dot form one sample: a dict from the rest of the name to the
    bytes, with the common name as `__key__`.

    - `path`: the archive.
    - `decode`: a function from such a dict to the sample.
    """

    def __init__(self, path: str | Path, decode: Callable[[dict[str, Any]], Any] = dict) -> None:
        """decode: a function from the dict of a sample to the sample."""
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
            archive.members = []  # type: ignore[attr-defined]  # tarfile would keep all members in memory
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
        """Return the position of the next sample, in bytes."""
        return {"next": self._next}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of a `state_dict`."""
        self._next = state["next"]
