"""A log has one line per record, of bounded length, and no peer can fill it."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticd.runtime import logs
from elasticd.runtime.logs import AT_ONCE, INTERVAL_S, LONGEST, Form, Process, Spared, about

log = logging.getLogger("elasticd.test")


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    path = tmp_path / "log"
    logs.configure(Process("test"), "INFO", str(path))
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


def test_a_line_names_what_it_is_about_before_its_message(file: Path) -> None:
    log.info("is started", extra=about(job="digits-1", generation=3, worker="digits-1.0", server=None, gpu=0, note=""))
    told = file.read_text()
    assert told.endswith("Z info test job=digits-1 generation=3 worker=digits-1.0 gpu=0 is started\n")


def test_json_has_an_object_on_each_line(file: Path) -> None:
    logs.configure(Process("agent", {"server": "s1"}), "INFO", str(file), Form.JSON)
    evil = "x\n\x1b[2J\u202e" + "y" * 10_000
    log.warning("dropped %s", evil, extra=about(job=evil, generation=3))
    try:
        raise ValueError("no\nthing")
    except ValueError:
        log.exception("it fails")
    first, second = map(json.loads, file.read_text().splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    assert first["message"].isprintable()
    assert first["job"].isprintable()
    assert len(first["job"]) < LONGEST + 10
    names = {"level": "warning", "component": "agent", "server": "s1", "generation": 3}
    assert {name: first[name] for name in names} == names
    assert second["level"] == "error"
    assert "ValueError" in second["exception"]


SAYS = """
import logging
from elasticd.runtime import logs
logs.configure(logs.Process("agent", {"server": "s1"}), "DEBUG", None, logs.Form(FORM))
log = logging.getLogger("elasticd.test")
log.info("a", extra=logs.about(job="j-1"))
log.warning("b")
try:
    raise ValueError("c")
except ValueError:
    log.exception("d")
log.debug("e")
"""


def said(form: str, journal: bool) -> list[str]:
    """Output of a process on stderr; `journal`: as if the service manager's journal read it."""
    read, write = os.pipe()
    status = os.fstat(write)
    stream = f"{status.st_dev}:{status.st_ino}" if journal else "8:1"
    environment = {**os.environ, "JOURNAL_STREAM": stream}
    with open(read, encoding="utf-8") as told:
        code = SAYS.replace("FORM", repr(form))
        subprocess.run([sys.executable, "-c", code], stderr=write, env=environment, check=True)
        os.close(write)
        return told.read().splitlines()


def test_the_journal_gets_priorities_and_no_second_time() -> None:
    lines = said("text", journal=True)
    assert lines[:3] == ["<6>agent[s1] job=j-1 a", "<4>agent[s1] b", "<3>agent[s1] d"]
    assert lines[-1] == "<7>agent[s1] e"
    assert all(line.startswith("<3>") for line in lines[2:-1]), "each line of a traceback has its priority"
    assert any("ValueError: c" in line for line in lines)


def test_json_in_the_journal_is_json_after_the_priority() -> None:
    lines = said("json", journal=True)
    assert [line[:3] for line in lines] == ["<6>", "<4>", "<3>", "<7>"]
    assert json.loads(lines[0][3:])["job"] == "j-1"


def test_who_is_not_read_by_the_journal_tells_the_time() -> None:
    first = said("text", journal=False)[0]
    assert re.match(r"\d{4}-\d\d-\d\dT.*Z info agent\[s1\] job=j-1 a$", first)
