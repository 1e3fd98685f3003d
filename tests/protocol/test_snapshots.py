"""A snapshot is unpacked unchanged, or refused."""

from __future__ import annotations

import zlib

import msgspec
import pytest

from elasticd.protocol import snapshots
from elasticd.protocol.errors import PeerError
from elasticd.protocol.limits import SNAPSHOT_PART_BYTES
from elasticd.protocol.model import Snapshot
from elasticd.protocol.snapshots import File, digest_of, fault_of, pack, part_bytes, part_of, parts_of, unpack

FILES = [File("train.py", False, b"print(1)"), File("tools/run.sh", True, b"#!/bin/sh")]


def packed(files: object) -> tuple[Snapshot, bytes]:
    data = zlib.compress(msgspec.msgpack.encode(files))
    return Snapshot(digest=digest_of(data), bytes=len(data)), data


def test_the_files_come_back_and_their_order_does_not_matter() -> None:
    snapshot, data = pack(FILES)
    assert unpack(snapshot, data) == sorted(FILES, key=lambda file: file.path)
    assert pack(reversed(FILES)) == (snapshot, data)
    assert fault_of(snapshot) == ""


def test_its_parts_put_together_are_the_whole() -> None:
    data = bytes(range(256)) * 5000
    snapshot = Snapshot(digest=digest_of(data), bytes=len(data))
    parts = [part_of(data, part) for part in range(parts_of(snapshot))]
    assert b"".join(parts) == data
    assert [len(part) for part in parts] == [part_bytes(snapshot, part) for part in range(3)]
    assert len(parts[0]) == SNAPSHOT_PART_BYTES


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data[:-1] + b"x", lambda data: b""])
def test_one_that_is_not_whole_is_refused(change) -> None:  # type: ignore[no-untyped-def]
    snapshot, data = pack(FILES)
    with pytest.raises(PeerError, match="not whole"):
        unpack(snapshot, change(data))


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../up", "a/../../up", "", "a//b", "./a", "a/.", "a\0b", "x" * 1001, "..", "a/"]
)
def test_a_path_that_leads_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(PeerError, match="not the path of a file"):
        unpack(*packed([[path, False, b""]]))


@pytest.mark.parametrize("files", [[["a", False]], [["a", False, "text"]], {"a": 1}, [["a", False, b""]] * 2, [1]])
def test_what_is_no_list_of_files_is_refused(files: object) -> None:
    with pytest.raises(PeerError):
        unpack(*packed(files))


def test_a_few_bytes_that_stand_for_very_many_are_refused_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MAX_SNAPSHOT_BYTES", 1000)
    monkeypatch.setattr(snapshots, "MAX_SNAPSHOT_FILES", 2)
    with pytest.raises(PeerError, match="more than 2 files"):
        unpack(*packed([["a", False, b"\0" * 1_000_000]]))
    with pytest.raises(PeerError, match="more than 2 files"):
        unpack(*packed([[name, False, b""] for name in "abc"]))


def test_bytes_that_are_not_compressed_are_refused() -> None:
    with pytest.raises(PeerError, match="cannot be unpacked"):
        unpack(Snapshot(digest=digest_of(b"text"), bytes=4), b"text")


@pytest.mark.parametrize("snapshot", [("A" * 64, 5), ("0" * 63, 5), ("0" * 64, 0), ("0" * 64, 1 << 40)])
def test_what_cannot_be_a_snapshot_is_named(snapshot: tuple[str, int]) -> None:
    assert "snapshot" in fault_of(Snapshot(digest=snapshot[0], bytes=snapshot[1]))
