"""The audit log: whole lines, bounded, private, and never blocking."""

from __future__ import annotations

import json
import logging
import os
import stat
import timeit
from pathlib import Path

import pytest

from elasticd.controller.auditlog import AuditLog
from elasticd.controller.events import Audit
from elasticd.protocol.rate_limit import RateLimiter

LINE = Audit(1_700_000_000.5, "user:alice", "cancel", "digits-3", True, "cancelled by alice", "r1")


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_says_who_has_done_what_and_when(tmp_path: Path):
    path = tmp_path / "audit.log"
    audit = AuditLog(path)
    audit.write([])
    assert not path.exists()
    audit.write([LINE])
    audit.close()
    audit.write([LINE])
    assert lines(path)[1] == {
        "time": "2023-11-14T22:13:20.500Z", "who": "user:alice", "act": "cancel", "of": "digits-3", "done": True,
        "text": "cancelled by alice", "request": "r1",
    }  # fmt: skip
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_somebody_has_made_up_stays_on_its_line(tmp_path: Path):
    path = tmp_path / "audit.log"
    AuditLog(path).write([Audit(0.0, "user:bob", "cancel", 'x\n{"who": "user:alice"}\x1b[2J', False)])
    (line,) = lines(path)
    assert line["who"] == "user:bob"
    assert b"\x1b" not in path.read_bytes()


def test_the_log_is_bounded_and_its_files_hold_the_newest_lines(tmp_path: Path):
    path = tmp_path / "audit.log"
    audit = AuditLog(path, max_bytes=1000, kept=2)
    for number in range(100):
        audit.write([Audit(float(number), "user:alice", "cancel", f"digits-{number}", True)])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["audit.log", "audit.log.1", "audit.log.2"]
    files = [path.with_name("audit.log.2"), path.with_name("audit.log.1"), path]
    assert all(file.stat().st_size <= 1000 for file in files)
    found = [line["of"] for file in files for line in lines(file)]
    assert found == [f"digits-{number}" for number in range(100 - len(found), 100)]


def test_a_full_disk_is_told_once_in_a_while_and_what_comes_later_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    audit = AuditLog(tmp_path / "audit.log")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(os, "write", full)
        for _ in range(50):
            audit.write([LINE])
    assert len(caplog.records) == 3
    audit.write([LINE])
    assert len(lines(tmp_path / "audit.log")) == 1


def test_a_line_that_a_full_disk_has_cut_spoils_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, real = tmp_path / "audit.log", os.write
    audit, left = AuditLog(path), 50

    def full(descriptor: int, data: bytes) -> int:
        nonlocal left
        if not left:
            raise OSError(28, "No space left on device")
        written = real(descriptor, data[:left])
        left -= written
        return written

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        audit.write([LINE])
    audit.write([LINE])
    cut, whole = path.read_text().splitlines()
    assert len(cut) == 50
    assert json.loads(whole)["who"] == "user:alice"


def test_a_link_that_somebody_has_laid_there_is_not_followed(tmp_path: Path):
    target = tmp_path / "target"
    (tmp_path / "audit.log").symlink_to(target)
    AuditLog(tmp_path / "audit.log").write([LINE])
    assert not target.exists()


def test_a_line_costs_some_microseconds(tmp_path: Path):
    audit, turn = AuditLog(tmp_path / "audit.log"), [LINE] * 100
    best_s = min(timeit.repeat(lambda: audit.write(turn), number=1, repeat=20)) / len(turn)
    assert best_s < 100e-6


def test_suppressed_messages_are_counted_and_pass_again_after_the_interval():
    limiter = RateLimiter(2, 10.0)
    assert [limiter.allow(now) for now in (0.0, 0.1, 0.2, 0.3)] == [True, True, False, False]
    assert limiter.suppressed == 2
    assert limiter.allow(11.0)
    assert limiter.suppressed == 0
    assert not limiter.allow(11.0)
    assert not limiter.allow(-100.0), "the clock was set back"
    assert limiter.allow(-85.0)
