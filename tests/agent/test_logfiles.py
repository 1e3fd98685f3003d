"""Pieces of logs, as read over the network."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticd.agent import logfiles
from elasticd.agent.accounts import myself
from elasticd.agent.logfiles import JobFiles, read_piece
from elasticd.protocol.errors import PeerError
from elasticd.protocol.messages import ReadLog
from elasticd.protocol.model import JobId, WorkerId


def request(offset: int = 0, job: str = "digits-1", worker: str = "digits-1.0") -> ReadLog:
    return ReadLog(request="r", job=JobId(job), worker=WorkerId(worker), offset=offset, limit=10)


def written(root: Path, data: bytes) -> JobFiles:
    (root / "digits-1").mkdir()
    (root / "digits-1" / "digits-1.0.log").write_bytes(data)
    return JobFiles(root)


def test_only_whole_lines_are_sent_while_the_log_grows(tmp_path: Path) -> None:
    files = written(tmp_path, b"1 o a\n1 o b\n1 o unfin")
    piece = read_piece(files, request(), growing=True, account=myself())
    assert (piece.data, piece.next_offset, piece.end) == (b"1 o a\n1 o b\n", 12, False)
    assert read_piece(files, request(12), growing=True, account=myself()).data == b""


def test_the_log_ends_when_its_worker_has_ended_and_all_is_read(tmp_path: Path) -> None:
    files = written(tmp_path, b"1 o a\n1 o unfin")
    assert not read_piece(files, request(), growing=False, account=myself()).end
    last = read_piece(files, request(6), growing=False, account=myself())
    assert (last.data, last.next_offset, last.end) == (b"1 o unfin\n", 15, True)
    assert read_piece(files, request(15), growing=False, account=myself()).end


def test_a_long_log_comes_in_pieces_that_add_up(tmp_path: Path) -> None:
    data = b"".join(b"%d o line\n" % number for number in range(40_000))
    files, offset, got = written(tmp_path, data), 0, b""
    while not (piece := read_piece(files, request(offset), growing=False, account=myself())).end:
        assert len(piece.data) <= logfiles.MIN_PIECE_BYTES
        got, offset = got + piece.data, piece.next_offset
    assert got + piece.data == data


def test_a_missing_log_is_an_error_unless_its_worker_is_just_starting(tmp_path: Path) -> None:
    files = JobFiles(tmp_path)
    assert "no log" in read_piece(files, request(), growing=False, account=myself()).error
    starting = read_piece(files, request(), growing=True, account=myself())
    assert (starting.error, starting.end) == ("", False)


@pytest.mark.parametrize(
    ("job", "worker"),
    [
        ("../etc", "../etc.0"),
        ("..", "...0"),
        ("", ".0"),
        ("a/b", "a/b.0"),
        ("digits-1", "digits-1.0/../../x"),
        ("digits-1", "digits-2.0"),
        ("digits-1", "digits-1.0\n"),
        ("digits-1", "digits-1."),
        ("digits-1\0", "digits-1\0.0"),
    ],
)
def test_a_name_that_is_not_an_id_never_becomes_a_path(tmp_path: Path, job: str, worker: str) -> None:
    files = JobFiles(tmp_path)
    with pytest.raises(PeerError):
        files.of(JobId(job), WorkerId(worker), "log")
    assert "is not the id" in read_piece(files, request(job=job, worker=worker), growing=False, account=myself()).error


@pytest.mark.parametrize(
    ("back", "data"),
    [(1, b""), (7, b"2 o b\n"), (13, b"1 o a\n2 o b\n"), (17, b"1 o a\n2 o b\n"), (99, b"0 o first\n1 o a\n2 o b\n")],
)
def test_a_negative_offset_counts_back_from_the_end_and_begins_with_a_whole_line(
    tmp_path: Path, back: int, data: bytes
) -> None:
    files = written(tmp_path, b"0 o first\n1 o a\n2 o b\n")
    piece = read_piece(files, request(-back), growing=False, account=myself())
    assert (piece.data, piece.next_offset, piece.end) == (data, 22, True)


def test_the_end_of_a_rotated_log_is_read_from_the_files_that_are_left(tmp_path: Path) -> None:
    files = written(tmp_path, b"1 o a\n")  # the first file has been removed up to byte 100
    (tmp_path / "digits-1" / "digits-1.0.log").rename(tmp_path / "digits-1" / "digits-1.0.log.100")
    piece = read_piece(files, request(-50), growing=False, account=myself())
    assert (piece.data, piece.next_offset, piece.end) == (b"1 o a\n", 106, True)


@pytest.mark.parametrize("offset", [-(2**63), 2**63, 2**64 - 1])
def test_an_offset_that_no_file_has_is_refused_with_a_reason(tmp_path: Path, offset: int) -> None:
    files = written(tmp_path, b"1 o a\n")
    piece = read_piece(files, request(offset), growing=True, account=myself())
    assert piece.error
    assert 0 <= piece.next_offset < 2**63
