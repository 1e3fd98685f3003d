"""The check of a GPU just before a worker starts on it."""

from __future__ import annotations

import threading
import time

from elasticd.agent.checks import Checks
from elasticd.agent.events import ProcessFailed, StopSignal
from elasticd.agent.health import CheckFailed
from elasticd.agent.task_queues import TaskQueues
from elasticd.protocol.messages import StartWorker
from elasticd.protocol.model import Fault

from .agent_stories import FIRST, SECOND, start


class Bench:
    """Checks with results set by the test."""

    def __init__(self, answer: CheckFailed | None = None, hangs: bool = False) -> None:
        self.done = threading.Event()
        self.go_on = threading.Event()
        if not hangs:
            self.go_on.set()
        self.begun: list[StartWorker] = []
        self.failed: list[tuple[ProcessFailed, CheckFailed]] = []
        self.tasks = TaskQueues(self.done.set)

        def check(order: StartWorker) -> CheckFailed | None:
            self.go_on.wait(300)
            return answer

        self.checks = Checks(
            self.tasks, check, self.begun.append, lambda failed, seen: self.failed.append((failed, seen))
        )

    def deliver(self) -> None:
        assert self.done.wait(300), "the check came to no end"
        self.done.clear()
        time.sleep(0.01)
        self.tasks.deliver()


def test_a_worker_starts_when_its_gpu_is_fit() -> None:
    bench = Bench()
    bench.checks.ask(0.0, start(FIRST))
    bench.deliver()
    assert [order.worker for order in bench.begun] == [FIRST]
    assert (bench.failed, bench.checks.deadline()) == ([], None)


def test_a_gpu_that_is_not_fit_is_the_servers_fault_and_a_trouble_of_that_gpu() -> None:
    bench = Bench(CheckFailed(1, "memory-held", "only 1 of 100 MiB are free"))
    bench.checks.ask(0.0, start(FIRST, gpu=1))
    bench.deliver()
    ((failed, seen),) = bench.failed
    assert failed == ProcessFailed(FIRST, "cannot be started: GPU 1: only 1 of 100 MiB are free", Fault.SERVER)
    assert seen == CheckFailed(1, "memory-held", "only 1 of 100 MiB are free")
    assert not bench.begun


def test_a_driver_that_does_not_answer_holds_a_start_up_for_five_seconds_at_most() -> None:
    bench = Bench(hangs=True)
    bench.checks.ask(100.0, start(FIRST))
    assert bench.checks.deadline() == 105.0
    bench.checks.pass_time(104.9)
    assert not bench.failed
    bench.checks.pass_time(105.0)
    ((failed, seen),) = bench.failed
    assert "has not answered within 5 s" in failed.reason
    assert seen.code == "check-hangs"
    bench.go_on.set()
    bench.deliver()
    assert not bench.begun, "what comes too late starts nothing"


def test_a_worker_that_is_stopped_meanwhile_does_not_start() -> None:
    bench = Bench(hangs=True)
    bench.checks.ask(0.0, start(FIRST))
    stopped = bench.checks.stop(FIRST, StopSignal.TERMINATE)
    assert stopped is not None
    assert stopped.fault is Fault.STOPPED
    assert bench.checks.stop(SECOND, StopSignal.KILL) is None
    bench.go_on.set()
    bench.deliver()
    assert not bench.begun
