"""A log is one line a record, of bounded length, and no peer can fill it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticd.runtime import logs
from elasticd.runtime.logs import AT_ONCE, INTERVAL_S, LONGEST, Spared

log = logging.getLogger("elasticd.test")


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    path = tmp_path / "log"
    logs.configure("test", "INFO", str(path))
    yield path
    root.handlers[0].close()
    root.handlers[:] = before
    root.setLevel(level)


def test_what_a_peer_says_cannot_begin_a_line_of_its_own(file: Path) -> None:
    log.warning("dropped %s", "x\n2026-01-01T00:00:00.000Z info controller all is well\r\x1b[2J\u2028y\u202ez")
    lines = file.read_text().splitlines()
    assert len(lines) == 1
    assert lines[0].isprintable()


def test_a_line_is_cut_where_it_is_too_long(file: Path) -> None:
    log.error("%s", "x" * 10_000_000)
    assert len(file.read_text()) < LONGEST + 200


def test_warnings_of_one_kind_are_written_now_and_then_with_how_many_there_were(file: Path) -> None:
    now = 0.0
    spared = Spared(lambda: now)
    root = logging.getLogger()
    root.handlers[0].filters[:] = [spared]
    for number in range(5000):
        log.warning("dropped a message of %r: %d", b"s1", number)
    assert len(file.read_text().splitlines()) == AT_ONCE
    log.warning("another matter")
    log.info("no warning")
    assert len(file.read_text().splitlines()) == AT_ONCE + 2
    now = INTERVAL_S
    for number in range(10):
        log.warning("dropped a message of %r: %d", b"s1", number)
        if number == 0:
            log.warning("another matter")
    lines = file.read_text().splitlines()
    assert len(lines) == AT_ONCE + 13, "another line of the program is of another kind"


def test_what_was_held_back_is_told(file: Path) -> None:
    now = 0.0
    root = logging.getLogger()
    root.handlers[0].filters[:] = [Spared(lambda: now)]
    for round_ in range(2):
        now = round_ * INTERVAL_S
        for _ in range(AT_ONCE + 30):
            log.warning("dropped something")
    assert file.read_text().splitlines()[-1].endswith("dropped something (and 30 more of its kind before)")
