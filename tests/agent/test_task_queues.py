"""Blocking work in queues: in order within a queue, independent between queues, and bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from elasticd.agent.task_queues import (
    MAX_THREADS,
    MAX_THREADS_OF_ONE,
    MAX_WAITING,
    MAX_WAITING_OF_ONE,
    LatestTask,
    TaskQueues,
)

PATIENCE_S = 120.0


class Driven:
    """TaskQueues with a loop that waits to be woken."""

    def __init__(self, **limits: int) -> None:
        self.woken = threading.Semaphore(0)
        self.tasks = TaskQueues(self.woken.release, **limits)
        self.heard: list[Any] = []

    def submit(self, queue: str, work: Callable[[], object], account: str = "") -> None:
        self.tasks.submit(queue, work, self.heard.append, account)

    def turn_until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            assert self.woken.acquire(timeout=PATIENCE_S), "nothing comes any more"
            self.tasks.deliver()


def test_tasks_of_a_queue_run_in_order_and_their_results_arrive_in_the_loops_thread() -> None:
    driven = Driven()
    threads = []
    for number in range(100):
        driven.tasks.submit("a", lambda number=number: number, lambda told: threads.append(threading.get_ident()))
        driven.submit("a", lambda number=number: number)
    driven.turn_until(lambda: len(driven.heard) == 100)
    assert driven.heard == list(range(100))
    assert set(threads) == {threading.get_ident()}


def test_a_queue_that_hangs_does_not_block_another_one() -> None:
    driven, gate = Driven(), threading.Event()
    driven.submit("hangs", gate.wait)
    driven.submit("hangs", lambda: "after it")
    for queue in range(20):
        driven.submit(f"queue {queue}", lambda queue=queue: queue)
    driven.turn_until(lambda: len(driven.heard) == 20)
    assert sorted(driven.heard) == list(range(20))
    gate.set()
    driven.turn_until(lambda: len(driven.heard) == 22)
    assert driven.heard[-2:] == [True, "after it"]


def test_more_queues_than_threads_take_turns() -> None:
    driven = Driven(threads=2)
    for queue in range(50):
        driven.submit(f"queue {queue}", lambda queue=queue: queue)
    driven.turn_until(lambda: len(driven.heard) == 50)
    assert sorted(driven.heard) == list(range(50))


def test_an_account_all_of_whose_file_systems_hang_leaves_threads_to_others() -> None:
    driven, gate = Driven(), threading.Event()
    begun: list[int] = []

    def hang(number: int) -> int:
        begun.append(number)
        gate.wait()
        return number

    for number in range(3 * MAX_THREADS):
        driven.submit(f"alice's {number}", lambda number=number: hang(number), "alice")
        driven.submit(f"carol's {number}", lambda number=number: hang(number), "carol")
    driven.submit("bob's", lambda: "bob's", "bob")
    driven.submit("the agent's", lambda: "the agent's")
    driven.turn_until(lambda: len(driven.heard) == 2)
    assert set(driven.heard) == {"bob's", "the agent's"}
    assert len(begun) <= 2 * MAX_THREADS_OF_ONE < MAX_THREADS
    gate.set()
    driven.turn_until(lambda: len(driven.heard) == 2 + 6 * MAX_THREADS)
    assert driven.tasks._accounts == driven.tasks._queues == {}


def test_the_queues_of_one_account_take_turns_and_each_keeps_its_order() -> None:
    driven, gate = Driven(), threading.Event()
    for queue in range(3 * MAX_THREADS_OF_ONE):
        driven.submit(f"queue {queue}", gate.wait, "alice")
        for number in range(5):
            driven.submit(f"queue {queue}", lambda queue=queue, number=number: (number, queue), "alice")
    gate.set()
    driven.turn_until(lambda: len(driven.heard) == 18 * MAX_THREADS_OF_ONE)
    told = [each for each in driven.heard if each is not True]
    for queue in range(3 * MAX_THREADS_OF_ONE):
        assert [number for number, of in told if of == queue] == list(range(5))


def test_offers_of_one_account_are_bounded_and_others_are_taken() -> None:
    driven, gate = Driven(), threading.Event()
    taken = [driven.tasks.try_submit(f"{n}", gate.wait, driven.heard.append, "alice") for n in range(MAX_WAITING)]
    assert taken.count(True) == MAX_WAITING_OF_ONE
    assert driven.tasks.try_submit("bob's", lambda: "bob's", driven.heard.append, "bob")
    driven.turn_until(lambda: driven.heard == ["bob's"])
    gate.set()
    driven.turn_until(lambda: len(driven.heard) == MAX_WAITING_OF_ONE + 1)


def test_an_offer_is_refused_when_too_much_waits_and_taken_again_later() -> None:
    driven, gate = Driven(waiting=3), threading.Event()
    for _ in range(3):
        assert driven.tasks.try_submit("a", gate.wait, driven.heard.append)
    assert not driven.tasks.try_submit("b", lambda: "no", driven.heard.append)
    gate.set()
    driven.turn_until(lambda: len(driven.heard) == 3)
    assert driven.tasks.try_submit("b", lambda: "yes", driven.heard.append)
    driven.turn_until(lambda: "yes" in driven.heard)


def test_a_bug_in_the_work_ends_the_loop_and_not_a_thread_in_silence() -> None:
    driven = Driven()
    driven.submit("a", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        driven.turn_until(lambda: False)


def test_after_the_end_nothing_is_told_and_nobody_is_woken() -> None:
    driven, gate, done = Driven(), threading.Event(), threading.Event()
    driven.submit("a", gate.wait)
    driven.tasks.close()
    driven.submit("a", done.set)
    gate.set()
    assert done.wait(PATIENCE_S)
    driven.tasks.deliver()
    assert driven.heard == []
    assert not driven.woken.acquire(blocking=False)


def test_of_many_values_the_newest_is_worked_on_and_those_that_came_while_it_hung_are_passed_over() -> None:
    driven, gate = Driven(), threading.Event()

    def work(value: int) -> int:
        assert gate.wait(PATIENCE_S)
        return value

    newest: LatestTask[int] = LatestTask(driven.tasks, "health", work, driven.heard.append)
    for value in range(2000):
        newest.submit(value)
    assert driven.tasks._waiting == 1
    gate.set()
    driven.turn_until(lambda: len(driven.heard) == 2)
    assert driven.heard == [0, 1999]
    newest.submit(7)
    driven.turn_until(lambda: len(driven.heard) == 3)
    assert driven.heard[-1] == 7
