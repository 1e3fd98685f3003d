"""Notifications of daemons to the service manager: readiness, and the watchdog of the loop."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticd.runtime import loop as loops
from elasticd.runtime import readiness
from elasticd.runtime.clock import WallClock
from elasticd.runtime.loop import Loop


class Manager:
    """A service manager that listens."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(str(path))
        self.environment = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "8000000"}

    def heard(self) -> list[str]:
        found = []
        while True:
            try:
                found.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    one = Manager(tmp_path / "notify")
    yield one
    one.close()


def test_a_manager_that_is_away_or_full_holds_nobody_up(manager: Manager) -> None:
    assert not readiness.notify("READY=1", {})
    assert readiness.notify("READY=1", manager.environment)
    assert manager.heard() == ["READY=1"]
    assert not all(readiness.notify("STATUS=more and more", manager.environment) for _ in range(100_000))
    manager.close()
    assert not readiness.notify("READY=1", manager.environment)


def test_a_watchdog_is_fed_a_few_times_per_limit_and_no_more(manager: Manager) -> None:
    now = 100.0
    watchdog = readiness.Watchdog(manager.environment, lambda: now)
    for _ in range(80):  # eight seconds
        watchdog.feed()
        now += 0.1
    assert manager.heard() == ["WATCHDOG=1"] * readiness.FEEDS_PER_LIMIT


@pytest.mark.parametrize("wrong", [{"WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "0"}])
def test_where_nobody_watches_this_process_nothing_is_fed(manager: Manager, wrong: dict[str, str]) -> None:
    readiness.Watchdog({**manager.environment, **wrong}).feed()
    assert manager.heard() == []


def test_only_a_turn_that_has_gone_round_feeds_the_watchdog(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[str] = []

    class Watchdog:
        def feed(self) -> None:
            fed.append("fed")

    monkeypatch.setattr(loops.readiness, "Watchdog", Watchdog)
    steps: list[str] = []

    def on_turn() -> None:
        steps.append("turn")
        if len(steps) == 2:
            raise RuntimeError("a turn that does not end")

    loop = Loop(WallClock(), on_turn, lambda: 0.0)
    loop.turn()
    with pytest.raises(RuntimeError):
        loop.turn()
    loop.close()
    assert (steps, fed) == (["turn", "turn"], ["fed"])


def test_a_signal_is_handled_in_the_loop_and_once() -> None:
    calls: list[str] = []
    loop = Loop(WallClock(), lambda: None, lambda: 0.0)
    before = signal.getsignal(signal.SIGHUP)
    try:
        loop.on_signal(signal.SIGHUP, lambda: calls.append("again"))
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGHUP)
        assert calls == []
        loop.turn()
        loop.turn()
    finally:
        signal.signal(signal.SIGHUP, before)
        loop.close()
    assert calls == ["again"]
