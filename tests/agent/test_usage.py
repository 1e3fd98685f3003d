"""What workers use: sums, peaks and idle times from samples; processes by /proc and by control groups; reports of the agent."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from elasticd.agent import cgroups
from elasticd.agent.events import ProcessExited, UseSampled
from elasticd.agent.monitoring import Driver, Owned
from elasticd.agent.usage import Counted, Present, Reading, Sampler, Uses, descendants, processes, shared_memory_of
from elasticd.protocol.messages import Acknowledged, AgentHeartbeat, WorkerExit, WorkerUse
from elasticd.protocol.model import Use, Wiring, WorkerId

from .agent_stories import FIRST, Driven, sent

NAME = ("uid", WorkerId("digits-1.0"))


def one(uses: Uses, now: float, reading: Reading) -> WorkerUse:
    (found,) = uses.take(now, {NAME: reading})
    return found


def test_use_is_summed_from_the_second_sample_on_and_peaks_from_the_first() -> None:
    uses = Uses()
    first = one(uses, 0.0, Reading(2, 1.0, 100.0, memory_bytes=5, gpu_memory_bytes=7))
    assert (first.use, first.idle_s) == (Use(memory_bytes=5, gpu_memory_bytes=7), None)
    one(uses, 10.0, Reading(2, 1.5, 130.0, memory_bytes=9, gpu_memory_bytes=6))
    last = one(uses, 20.0, Reading(2, 0.5, 150.0, memory_bytes=2, gpu_memory_bytes=3))
    assert last.use == Use(gpu_s=40.0, busy_gpu_s=20.0, cpu_s=50.0, wall_s=20.0, memory_bytes=9, gpu_memory_bytes=7)
    assert (last.use.busy, last.use.cores, last.idle_s) == (0.5, 2.5, 0.0)


def test_idle_time_runs_while_nothing_computes_and_begins_anew_afterwards() -> None:
    uses = Uses()
    found = [one(uses, 10.0 * at, Reading(1, busy)).idle_s for at, busy in enumerate((0.0, 0.0, 0.001, 0.2, 0.0))]
    assert found == [None, 10.0, 20.0, 0.0, 10.0]


def test_what_is_unknown_is_neither_busy_nor_idle() -> None:
    uses = Uses()
    for at in range(3):
        told = one(uses, 10.0 * at, Reading(1, None, 5.0 * at))
    assert (told.idle_s, told.use.busy, told.use.cores) == (None, None, 0.5)


def test_cpu_slots_are_busy_as_far_as_cores_compute_for_them() -> None:
    uses = Uses()
    found = [
        one(uses, 10.0 * at, Reading(2, None, cpu_s, slots=True)) for at, cpu_s in enumerate((0.0, 90.0, 95.0, 95.1))
    ]
    assert found[-1].use.busy_gpu_s == pytest.approx(20.0 + 5.0 + 0.1)
    assert [each.idle_s for each in found] == [None, 0.0, 0.0, 10.0]


def test_time_in_which_the_agent_was_stopped_and_counters_that_go_back_are_left_out() -> None:
    uses = Uses()
    one(uses, 0.0, Reading(1, 0.0, 50.0))
    one(uses, 10.0, Reading(1, 0.0, 40.0))
    told = one(uses, 1000.0, Reading(1, 0.0, 900.0))
    assert (told.use.gpu_s, told.use.cpu_s, told.idle_s) == (10.0, 0.0, None)


def test_workers_that_have_ended_are_forgotten() -> None:
    uses = Uses()
    for at in range(2):
        one(uses, 10.0 * at, Reading(1, 1.0))
    assert uses.take(20.0, {}) == ()
    assert one(uses, 30.0, Reading(1, 1.0)).use == Use()


def test_a_family_is_all_below_its_root_and_not_the_root() -> None:
    def process(pid: int, parent: int) -> Counted:
        return Counted(pid, parent, 1.0, 1)

    found = descendants(
        (1, 5, 9), [process(3, 2), process(2, 1), process(4, 2), process(1, 0), process(5, 0), process(6, 5)]
    )
    assert {root: sorted(each.pid for each in below) for root, below in found.items()} == {1: [2, 3, 4], 5: [6]}


def test_processes_of_children_that_run_and_have_ended_are_counted() -> None:
    code = (
        "import os, sys, time\n"
        "def burn():\n    until = time.process_time() + 0.3\n    while time.process_time() < until: pass\n"
        "if os.fork() == 0: burn(); os._exit(0)\n"
        "os.wait()\n"
        "if os.fork() == 0: burn(); print(flush=True); time.sleep(60)\n"
        "kept = bytearray(64 << 20); kept[::4096] = b'x' * len(kept[::4096])\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            give_up_at = time.monotonic() + 60
            while True:
                below = descendants((os.getpid(),), processes())[os.getpid()]
                family = [each for each in below if each.pid == child.pid or each.parent == child.pid]
                if shared_memory_of(family) >= 64 << 20 or time.monotonic() > give_up_at:
                    break
                time.sleep(0.1)
            assert len(family) == 2
            assert sum(each.cpu_s for each in family) >= 0.55
            assert 64 << 20 <= shared_memory_of(family) < 200 << 20
        finally:
            for each in processes():
                if each.parent == child.pid:
                    os.kill(each.pid, 9)
            child.kill()


def test_control_groups_of_both_versions_are_read(tmp_path: Path) -> None:
    two = tmp_path / "two"
    two.mkdir()
    (two / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (two / "memory.stat").write_text("anon 100\nfile 5000\nshmem 20\n")
    assert cgroups.used((str(two),)) == (2.5, 120)
    old = [tmp_path / name for name in ("cpu", "memory")]
    for path in old:
        path.mkdir()
    (old[0] / "cpuacct.usage").write_text("3000000000\n")
    (old[1] / "memory.stat").write_text("cache 77\ntotal_cache 88\ntotal_rss 300\ntotal_swap 5\n")
    assert cgroups.used(tuple(map(str, old))) == (3.0, 305)
    assert cgroups.used((str(tmp_path / "none"),)) == (None, None)
    assert cgroups.used(()) == (None, None)


def test_a_server_of_cpu_slots_is_sampled_by_its_processes() -> None:
    code = "import time\nprint(flush=True)\nwhile True: pass"
    outer = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {code!r}])"
    with subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE) as shim:
        driver = Driver((), Wiring(), None, Owned(tuple, tuple))
        present = Present(WorkerId("digits-1.0"), "uid", (0,), (shim.pid,))
        sampler = Sampler(lambda: (present,), lambda: True, driver, 1.0, lambda: None)
        try:
            assert shim.stdout is not None
            shim.stdout.readline()
            sampler.start()
            give_up_at, found = time.monotonic() + 60, ()
            while time.monotonic() < give_up_at and not (found and found[0].use.busy_gpu_s > 0 and not found[0].idle_s):
                time.sleep(0.1)  # on a crowded machine a sample may see too little computing to count
                found = sampler.deliver() or found
            assert found[0].worker == "digits-1.0"
            assert found[0].use.busy_gpu_s > 0
            assert found[0].use.memory_bytes > 1 << 20
            assert found[0].idle_s == 0.0
        finally:
            sampler.close()
            for each in processes():
                if each.parent == shim.pid:
                    os.kill(each.pid, 9)
            shim.kill()


# --------------------------------------------------------------------------------------------------------------- reports


def sampled(gpu_s: float, uid: str = "") -> UseSampled:
    return UseSampled((WorkerUse(worker=FIRST, uid=uid, use=Use(gpu_s=gpu_s), idle_s=0.0),))


def heartbeats(agent: Any) -> list[AgentHeartbeat]:
    found: list[AgentHeartbeat] = sent(agent.pass_time(1.0), AgentHeartbeat)
    agent.told(Acknowledged(incarnation="c1", sent=0))
    return found


def test_each_third_sample_travels_with_a_heartbeat_and_an_end_tells_the_last_one() -> None:
    agent = Driven(adopted=(FIRST,))
    told: list[float] = []
    for at in range(1, 8):
        assert agent.hear(sampled(float(at))) == []
        told += [each.use.gpu_s for beat in heartbeats(agent) for each in beat.use]
    assert told == [3.0, 6.0]
    (ended,) = sent(agent.hear(ProcessExited(FIRST, 0, "")), WorkerExit)
    assert ended.use == Use(gpu_s=7.0)


def test_the_use_of_another_job_s_worker_of_the_same_name_is_not_reported() -> None:
    agent = Driven(adopted=(FIRST,))
    for at in range(4):
        agent.hear(sampled(float(at), uid="another"))
    assert not any(beat.use for beat in heartbeats(agent))
    (ended,) = sent(agent.hear(ProcessExited(FIRST, 0, "")), WorkerExit)
    assert ended.use is None
