"""Waits of elasticctl have a limit, and a message that names the awaited event."""

from __future__ import annotations

import pytest

from elasticd.ctl import waiting
from elasticd.ctl.waiting import Waiting, limit_s
from elasticd.protocol.errors import RequestRefused, UserError


class Time:
    """A clock that advances only in `sleep`."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    passing = Time()
    monkeypatch.setattr(waiting, "time", passing)
    return passing


def test_a_wait_ends_with_what_was_waited_for_and_what_stands_in_the_way(time: Time) -> None:
    wait = Waiting("digits-1 to train on 3 GPUs", 10.0)
    while time.now < 110.0:
        wait.pause("digits-1.2 has not called elastic.join() yet")
    with pytest.raises(RequestRefused) as refused:
        wait.pause("digits-1.2 has not called elastic.join() yet")
    assert str(refused.value) == (
        "waited 10s for digits-1 to train on 3 GPUs: digits-1.2 has not called elastic.join() yet"
    )


def test_a_wait_without_a_limit_says_how_to_end_it_and_what_changes_but_not_each_second(
    time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(waiting, "say", said.append)
    monkeypatch.setattr(waiting.sys.stderr, "isatty", lambda: True, raising=False)
    wait = Waiting("the end of digits-1", None)
    for second in range(50):
        wait.pause(f"starts again in {50 - second} s")
    wait.pause("its workers are starting")
    assert said[0].startswith("elasticctl: waits for the end of digits-1 (Ctrl-C ends the waiting): starts again in")
    assert said[1:] == ["elasticctl: still waits: its workers are starting"]


def test_a_limit_is_a_duration() -> None:
    assert limit_s(None) is None
    assert limit_s("2m") == 120.0
    with pytest.raises(UserError, match="--timeout"):
        limit_s("soon")


def test_a_wait_that_is_to_be_told_everywhere_is_told_in_a_pipe_too(
    time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(waiting, "say", said.append)
    monkeypatch.setattr(waiting.sys.stderr, "isatty", lambda: False, raising=False)
    wait = Waiting("digits-1 to train on 3 GPUs", 300.0, "; the order stands", always=True)
    while time.now < 400.0:
        wait.pause()
    assert said == ["elasticctl: waits for digits-1 to train on 3 GPUs (at most 5m00s)"]
    with pytest.raises(RequestRefused, match=r"digits-1 to train on 3 GPUs; the order stands$"):
        wait.pause()
