"""The shim, with real processes."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elasticd.agent import privileges, shim
from elasticd.agent.shim import Lines

WORKER = "digits-1.0"


class Shimmed:
    """A shim around a command, in its own directory."""

    def __init__(
        self, directory: Path, argv: list[str], workdir: str = "/", grace_s: float = 20.0, log_bytes: int = 1 << 20
    ) -> None:
        self.directory = directory
        command = [sys.executable, "-I", "-S", shim.__file__, str(directory), "digits-1", "", WORKER, "0"]
        command.append(str(shim.Times(grace_s, 60.0, 0.5)))
        environment = {"PATH": os.environ["PATH"], "GREETING": "hello"}
        words = {"environment": environment, "drop": None, "cgroups": [], "cpus": [], "umask": 0o022}
        words |= {
            "log_bytes": log_bytes,
            "record": {"job": "digits-1", "uid": "", "worker": WORKER, "gpu": 0, "argv": argv},
        }
        orders = privileges.write_orders(words)
        self.process = subprocess.Popen([*command, workdir, *argv], env={}, stdin=orders, start_new_session=True)
        os.close(orders)

    def record(self) -> dict:
        """The record, once it names the worker's process."""
        path = self.directory / f"{WORKER}.json"
        eventually(lambda: path.exists() and "pid" in json.loads(path.read_text()))
        return json.loads(path.read_text())

    def end(self) -> dict:
        """The exit record, after the shim has ended."""
        assert self.process.wait(timeout=120) == 0
        return json.loads((self.directory / f"{WORKER}.exit").read_text())

    def log(self) -> list[bytes]:
        """The log's lines so far, without timestamps."""
        path = self.directory / f"{WORKER}.log"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        matches = [re.fullmatch(rb"\d+\.\d{6} ([oe] .*)", line, re.DOTALL) for line in lines]
        assert all(matches), lines
        return [match[1] for match in matches if match]


def eventually(holds: Callable[[], bool], within_s: float = 120.0) -> None:
    """Poll until `holds`, or fail."""
    give_up_at = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < give_up_at, "it did not come to pass"
        time.sleep(0.01)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Shimmed]]:
    started: list[Shimmed] = []

    def starter(*argv: str, **options: object) -> Shimmed:
        started.append(Shimmed(tmp_path, list(argv), **options))  # type: ignore[arg-type]
        return started[-1]

    yield starter
    for shimmed in started:
        shimmed.process.kill()
        shimmed.process.wait()


def test_a_clean_end_is_written_down_and_each_line_is_stamped_with_its_stream(start: Callable[..., Shimmed]) -> None:
    shimmed = start("sh", "-c", "echo $GREETING; sleep 0.05; echo oh >&2; sleep 0.05; printf unfinished")
    assert shimmed.end() == {"exit_code": 0, "reason": "exit code 0"}
    assert shimmed.log() == [b"o hello", b"e oh", b"o unfinished"]


def test_the_reason_of_a_failure_is_the_last_line_of_stderr(start: Callable[..., Shimmed]) -> None:
    shimmed = start(sys.executable, "-c", "raise ValueError('bad')")
    assert shimmed.end() == {"exit_code": 1, "reason": "exit code 1: ValueError: bad"}


def test_death_by_signal_is_named(start: Callable[..., Shimmed]) -> None:
    assert start("sh", "-c", "kill -KILL $$").end() == {"exit_code": -9, "reason": "killed by SIGKILL"}


def test_bytes_that_are_not_text_are_kept(start: Callable[..., Shimmed]) -> None:
    shimmed = start("printf", r"\377\376 caf\351\n")
    shimmed.end()
    assert shimmed.log() == [b"o \xff\xfe caf\xe9"]


def test_a_command_that_does_not_exist_ends_with_127_and_says_so_in_log_and_record(
    start: Callable[..., Shimmed],
) -> None:
    shimmed = start("no-such-program-here")
    assert shimmed.end() == {
        "exit_code": 127,
        "reason": "cannot start no-such-program-here: No such file or directory",
    }
    assert shimmed.log() == [b"e cannot start no-such-program-here: No such file or directory"]


def test_a_directory_that_does_not_exist_is_named(start: Callable[..., Shimmed]) -> None:
    assert "(in /nowhere)" in start("true", workdir="/nowhere").end()["reason"]


def test_sigterm_ends_the_whole_group_and_the_worker_may_say_its_last_words(start: Callable[..., Shimmed]) -> None:
    shimmed = start("sh", "-c", "trap 'echo bye; exit 7' TERM; sleep 60 & echo up; wait")
    eventually(lambda: b"o up" in shimmed.log())
    shimmed.process.send_signal(signal.SIGTERM)
    assert shimmed.end()["exit_code"] == 7
    assert shimmed.log()[-1] == b"o bye"


def test_a_warning_reaches_the_processes_that_handle_it_and_ends_no_other(start: Callable[..., Shimmed]) -> None:
    handler = (
        "lambda *_: (os.write(1, b'warned\\n'), os._exit(0))"  # a flag would need a wait that no signal can precede
    )
    handles = f"import os, signal; signal.signal(signal.SIGUSR1, {handler}); print('up', flush=True); signal.pause()"
    shimmed = start("bash", "-c", f'{sys.executable} -c "{handles}"; echo after')
    eventually(lambda: b"o up" in shimmed.log())
    shimmed.process.send_signal(signal.SIGUSR1)
    assert shimmed.end()["exit_code"] == 0
    assert shimmed.log() == [b"o up", b"o warned", b"o after"], "the shell has no handler, and lives on"


def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace(start: Callable[..., Shimmed]) -> None:
    shimmed = start("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done", grace_s=0.2)
    eventually(lambda: b"o up" in shimmed.log())
    shimmed.process.send_signal(signal.SIGTERM)
    assert shimmed.end() == {"exit_code": -9, "reason": "killed by SIGKILL"}


def test_what_a_worker_leaves_behind_in_its_group_is_killed_with_its_end(start: Callable[..., Shimmed]) -> None:
    shimmed = start("sh", "-c", "sleep 60 & echo $!; exit 0")
    assert shimmed.end()["exit_code"] == 0
    left = int(shimmed.log()[0].split()[1])
    eventually(lambda: shim.start_ticks(left) is None)


def test_the_worker_dies_with_its_shim(start: Callable[..., Shimmed]) -> None:
    shimmed = start("sleep", "60")
    record = shimmed.record()
    assert shim.start_ticks(record["pid"]) == record["start_ticks"]
    assert shim.start_ticks(record["shim_pid"]) == record["shim_start_ticks"]
    shimmed.process.kill()
    eventually(lambda: shim.start_ticks(record["pid"]) is None)


def test_the_worker_has_a_session_of_its_own_and_default_signals(start: Callable[..., Shimmed]) -> None:
    script = "import os,signal; print(os.getsid(0)==os.getpid(), signal.getsignal(signal.SIGHUP)==signal.SIG_DFL)"
    shimmed = start(sys.executable, "-c", script)
    shimmed.end()
    assert shimmed.log() == [b"o True True"]


def test_lines_end_at_newlines_and_returns_however_the_stream_is_cut() -> None:
    text = b"one\ntwo\r\n\n10%\r20%\r\r\nthree\r\n"
    for cut in range(len(text) + 1):
        lines = Lines()
        got = lines.feed(text[:cut]) + lines.feed(text[cut:]) + lines.end()
        assert got == [b"one", b"two", b"", b"10%", b"20%", b"", b"three"], f"cut at {cut}"


def test_an_endless_line_is_cut_into_pieces() -> None:
    lines = Lines()
    got = lines.feed(b"x" * (shim.MAX_LINE_BYTES + 5)) + lines.feed(b"y\n")
    assert got == [b"x" * shim.MAX_LINE_BYTES, b"xxxxxy"]


class Refused(shim.Shim):
    """A shim on a server without memory for a worker."""

    def __init__(self, base: Path) -> None:
        self._base = str(base)
        self._times = shim.Times(20.0, 60.0, 0.5)
        self._output = shim.Output(str(base.parent), base.name, 1 << 20)

    def _start(self, argv: list[str], workdir: str) -> shim.Child | None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")


def test_a_worker_for_which_there_is_no_memory_is_the_servers_fault(tmp_path: Path) -> None:
    assert Refused(tmp_path / "w").run({}, ["train"], "/tmp")
    assert json.loads((tmp_path / "w.exit").read_bytes()) == {
        "exit_code": None,
        "reason": "cannot start train: Cannot allocate memory",
        "fault": "server",
    }


def test_an_exit_record_for_which_there_is_no_room_is_written_when_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [OSError(errno.ENOSPC, "No space left on device")] * 3
    write = shim.write_whole

    def full(path: str, document: dict[str, object]) -> None:
        if refusals:
            raise refusals.pop()
        write(path, document)

    monkeypatch.setattr(shim, "write_whole", full)
    monkeypatch.setattr(shim.time, "sleep", lambda seconds: None)
    Refused(tmp_path / "w")._finish(0, "exit code 0")
    assert json.loads((tmp_path / "w.exit").read_bytes()) == {"exit_code": 0, "reason": "exit code 0"}


def test_a_line_that_a_full_disk_has_cut_spoils_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, real, left = shim.Output(str(tmp_path), "a-1.0", 1 << 20), os.write, 30

    def full(descriptor: int, data: bytes) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real(descriptor, data[:left])
        left -= written
        return written

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        for _ in range(3):
            output.take("o", b"what is lost\n")
    output.take("o", b"one\n")
    output.take("o", b"two\n")
    cut, *whole = (tmp_path / "a-1.0.log").read_text().splitlines()
    assert len(cut) == 30
    assert [line.split(" ", 2)[1:] for line in whole] == [["o", "one"], ["o", "two"]]
