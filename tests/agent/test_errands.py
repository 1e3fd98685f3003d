"""Work that may block: in order within a lane, never in the way of another lane, and bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from elasticd.agent.errands import Errands

PATIENCE_S = 120.0


class Driven:
    """Errands with a loop that waits until it is woken."""

    def __init__(self, **limits: int) -> None:
        self.woken = threading.Semaphore(0)
        self.errands = Errands(self.woken.release, **limits)
        self.heard: list[Any] = []

    def ask(self, lane: str, work: Callable[[], object]) -> None:
        self.errands.ask(lane, work, self.heard.append)

    def turn_until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            assert self.woken.acquire(timeout=PATIENCE_S), "nothing comes any more"
            self.errands.deliver()


def test_the_work_of_a_lane_is_done_in_order_and_told_in_the_loops_thread() -> None:
    driven = Driven()
    threads = []
    for number in range(100):
        driven.errands.ask("a", lambda number=number: number, lambda told: threads.append(threading.get_ident()))
        driven.ask("a", lambda number=number: number)
    driven.turn_until(lambda: len(driven.heard) == 100)
    assert driven.heard == list(range(100))
    assert set(threads) == {threading.get_ident()}


def test_a_lane_that_hangs_does_not_hold_up_another_one() -> None:
    driven, gate = Driven(), threading.Event()
    driven.ask("hangs", gate.wait)
    driven.ask("hangs", lambda: "after it")
    for lane in range(20):
        driven.ask(f"lane {lane}", lambda lane=lane: lane)
    driven.turn_until(lambda: len(driven.heard) == 20)
    assert sorted(driven.heard) == list(range(20))
    gate.set()
    driven.turn_until(lambda: len(driven.heard) == 22)
    assert driven.heard[-2:] == [True, "after it"]


def test_more_lanes_than_threads_take_turns() -> None:
    driven = Driven(threads=2)
    for lane in range(50):
        driven.ask(f"lane {lane}", lambda lane=lane: lane)
    driven.turn_until(lambda: len(driven.heard) == 50)
    assert sorted(driven.heard) == list(range(50))


def test_an_offer_is_refused_when_too_much_waits_and_taken_again_later() -> None:
    driven, gate = Driven(waiting=3), threading.Event()
    for _ in range(3):
        assert driven.errands.offer("a", gate.wait, driven.heard.append)
    assert not driven.errands.offer("b", lambda: "no", driven.heard.append)
    gate.set()
    driven.turn_until(lambda: len(driven.heard) == 3)
    assert driven.errands.offer("b", lambda: "yes", driven.heard.append)
    driven.turn_until(lambda: "yes" in driven.heard)


def test_a_bug_in_the_work_ends_the_loop_and_not_a_thread_in_silence() -> None:
    driven = Driven()
    driven.ask("a", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        driven.turn_until(lambda: False)


def test_after_the_end_nothing_is_told_and_nobody_is_woken() -> None:
    driven, gate, done = Driven(), threading.Event(), threading.Event()
    driven.ask("a", gate.wait)
    driven.errands.close()
    driven.ask("a", done.set)
    gate.set()
    assert done.wait(PATIENCE_S)
    driven.errands.deliver()
    assert driven.heard == []
    assert not driven.woken.acquire(blocking=False)
