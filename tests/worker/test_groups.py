"""Device groups of a communicator, without a device: Gloo groups with the interface of NCCL's."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from elasticd.protocol import exits
from elasticd.protocol.errors import OperatorError
from elasticd.protocol.variables import NCCL_ENVIRONMENT
from elasticd.worker.communication import groups as g
from elasticd.worker.communication.communicator import Communicator, CommunicatorBroken, RendezvousCancelled

from . import communicator_world as world

WITHIN_S = 120.0  # on a loaded machine


def eventually(condition: Callable[[], bool]) -> None:
    """Poll until `condition`, which concerns other threads."""
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def device_of(c: Communicator) -> tuple[world.DeviceGroup, world.DeviceGroup]:
    return c._groups.device, c._groups.device_transfer


def test_on_a_device_a_result_may_be_used_at_once_by_what_is_ordered_after_it() -> None:
    def run(c: Communicator) -> None:
        group = device_of(c)[0]
        group.running.clear()
        tensor = torch.ones(3)
        work = c.all_reduce(tensor)
        assert c.poll(work)
        assert not work.is_completed()
        assert group.ordered == 1
        timer = threading.Timer(0.02, group.running.set)
        timer.start()
        c.wait(work)
        assert work.is_completed()
        assert tensor.tolist() == [2.0] * 3

    world.run_ranks(2, run, "device")


class Marks:
    """Events of a device, which completes them on request."""

    def __init__(self) -> None:
        self.made = 0
        self.reached = threading.Event()

    def new(self) -> Marks:
        self.made += 1
        return self

    def query(self) -> bool:
        return self.reached.is_set()


def test_a_workers_own_part_is_computed_when_the_device_has_come_to_its_end_not_when_it_is_issued() -> None:
    def run(c: Communicator) -> list[str]:
        marks, story = Marks(), []
        c._new_mark = marks.new
        device_of(c)[0].running.clear()
        c.part_begins()
        work = c.all_reduce(torch.ones(3))
        c.part_issued(lambda: story.append("computed"))
        threading.Timer(0.02, marks.reached.set).start()
        threading.Timer(0.2, device_of(c)[0].running.set).start()
        assert story == []
        c.wait(work)
        assert marks.made == 1
        return story

    assert world.run_ranks(2, run, "device") == [["computed"]] * 2


def test_what_is_ordered_after_others_does_not_belong_to_a_workers_own_part() -> None:
    """Otherwise a worker with a hanging peer would seem to hang, too."""

    def run(c: Communicator) -> int:
        marks = Marks()
        c._new_mark = marks.new
        device_of(c)[0].running.clear()
        c.part_begins()
        work = c.all_reduce(torch.ones(3))
        assert c.poll(work)
        before = marks.made
        c.part_issued(lambda: None)
        device_of(c)[0].running.set()
        c.wait(work)
        c.part_begins()
        assert marks.made == before
        return before

    assert world.run_ranks(2, run, "device") == [1, 1]


def test_without_a_device_a_part_that_is_issued_is_computed() -> None:
    story: list[str] = []
    Communicator.alone().part_issued(lambda: story.append("computed"))
    assert story == ["computed"]


def test_control_words_stay_on_the_host_while_the_device_is_busy() -> None:
    def run(c: Communicator) -> int:
        for group in device_of(c):
            group.running.clear()
        c.all_reduce(torch.ones(3))
        word = torch.tensor([c.rank])
        c.wait(c.all_reduce_max(word))
        device_of(c)[0].running.set()
        return int(word)

    assert world.run_ranks(2, run, "device") == [1, 1]


def test_a_kernel_that_ends_because_it_was_aborted_is_no_result() -> None:
    def run(c: Communicator) -> None:
        for group in device_of(c):
            group.running.clear()
        work = c.all_reduce(torch.ones(3))
        assert c.poll(work)
        threading.Timer(0.02, c.abort).start()
        with pytest.raises(CommunicatorBroken, match="abandoned"):
            c.wait(work)
        eventually(work.is_completed)
        with pytest.raises(CommunicatorBroken, match="abandoned"):
            c.poll(work)

    world.run_ranks(2, run, "device")


def test_both_device_groups_are_aborted_at_the_same_time_and_once() -> None:
    def run(c: Communicator) -> None:
        groups = device_of(c)
        for group in groups:
            group.abort_lasts.clear()
        for _ in range(3):
            threading.Thread(target=c.abort).start()
        eventually(lambda: all(group.aborted for group in groups))  # though neither has completed
        for group in groups:
            group.abort_lasts.set()
        assert [group.aborted for group in groups] == [1, 1]

    world.run_ranks(2, run, "device")


STUCK = """
import threading
from elasticd.worker.communication.communicator import Communicator
from elasticd.worker.communication.groups import Groups

class Stuck:
    def abort(self):
        threading.Event().wait()

communicator = Communicator(0, 2, Groups(None, None, Stuck(), Stuck()), 30.0, (), abort_within_s=0.1)
communicator.abort()
threading.Event().wait(WITHIN_S)
"""


def test_an_abort_that_does_not_return_ends_its_process() -> None:
    """As in nccl #1777: the library's threads wait for a peer, and the aborting thread waits for them."""
    done = subprocess.run(
        [sys.executable, "-c", STUCK.replace("WITHIN_S", str(WITHIN_S))], capture_output=True, text=True, check=False
    )
    assert done.returncode == exits.HUNG
    assert "the library has not ended this worker's collectives within 0 s of an abort" in done.stderr


def test_a_group_that_is_not_used_any_more_and_cannot_be_destroyed_is_left_alone() -> None:
    hangs = threading.Event()

    class Stuck:
        def abort(self) -> None:
            hangs.wait(WITHIN_S)

    groups = g.Groups(None, None, Stuck(), Stuck())  # type: ignore[arg-type]
    assert not groups.abort_device(within_s=0.1)
    hangs.set()
    assert groups.abort_device(within_s=WITHIN_S)


def test_what_is_in_flight_owns_its_tensors_until_the_abort_has_ended_it() -> None:
    def run(c: Communicator) -> None:
        group = device_of(c)[0]
        group.running.clear()
        tensor = torch.ones(3)
        memory = weakref.ref(tensor)
        group.abort_lasts.clear()
        c.all_reduce(tensor)
        del tensor
        c.abort()
        c.retire()
        gc.collect()
        assert memory() is not None
        group.abort_lasts.set()
        eventually(lambda: (gc.collect(), memory() is None)[1])

    world.run_ranks(2, run, "device")


def test_works_that_are_completed_are_not_kept() -> None:
    def run(c: Communicator) -> int:
        for _ in range(20):
            c.wait(c.all_reduce(torch.ones(3)))
        return len(c._in_flight)

    assert max(world.run_ranks(2, run, "device")) == 1


@pytest.mark.parametrize(
    ("gpus", "trouble"),
    [
        (["a", "b", "c"], ""),
        (["a"], ""),
        (["a", "b", "c", "b"], "ranks 1 and 3 share GPU b: NCCL wants a GPU for each worker of a job"),
    ],
)
def test_two_workers_on_one_gpu_are_found(gpus: list[str], trouble: str) -> None:
    assert g.shared_gpu(gpus) == trouble


def test_all_ranks_are_told_that_two_share_a_gpu() -> None:
    with world.RendezvousServer() as server, ThreadPoolExecutor(3) as pool:

        def rank_main(rank: int) -> str:
            with pytest.raises(OperatorError) as caught:
                world.build("device", server.store(f"w{rank}"), rank, 3, gpu="same" if rank else "other")
            return str(caught.value)

        said = list(pool.map(rank_main, range(3)))
    assert said == ["ranks 1 and 2 share GPU same: NCCL wants a GPU for each worker of a job"] * 3


@pytest.mark.parametrize(
    ("layers", "network"),
    [
        (["", "", ""], ""),
        (["InfiniBand", "InfiniBand", "InfiniBand"], ""),
        (["InfiniBand", "Ethernet,InfiniBand", "InfiniBand"], ""),
        (["InfiniBand", "", "InfiniBand"], g.SOCKETS),
        (["InfiniBand", "Ethernet", "InfiniBand"], g.SOCKETS),
    ],
)
def test_workers_whose_servers_adapters_do_not_go_together_all_take_sockets(layers: list[str], network: str) -> None:
    """NCCL would hang, as each of its processes chooses by itself (nccl #234)."""
    with world.RendezvousServer() as server, ThreadPoolExecutor(3) as pool:

        def rank_main(rank: int) -> set[str]:
            made = world.build("device", server.store(f"w{rank}"), rank, 3, layers=layers[rank])
            networks = {group.network for group in device_of(made)}
            made.retire()
            return networks

        assert list(pool.map(rank_main, range(3))) == [{network}] * 3


def test_connecting_that_is_given_up_is_left_behind_and_what_it_makes_is_destroyed() -> None:
    made: list[world.DeviceGroup] = []
    begun, go_on = threading.Event(), threading.Event()

    def make(
        store: object, rank: int, size: int, timeout: timedelta, device: torch.device, network: str
    ) -> dist.ProcessGroup:
        begun.set()
        go_on.wait(WITHIN_S)  # as the library does for a member that never arrives
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        made.append(world.DeviceGroup(dist.ProcessGroupGloo(dist.HashStore(), 0, 1, options)))
        return made[-1]

    with world.RendezvousServer() as server:
        store = server.store("w0")

        def cancel() -> None:
            begun.wait(WITHIN_S)
            store.cancel()

        threading.Thread(target=cancel).start()
        device = torch.device("cpu")
        with pytest.raises(RendezvousCancelled):
            g.add_device_groups(g.Groups(None, None), store, 0, 1, timedelta(seconds=9), device, "gpu", make)
        store.close()
        go_on.set()
        eventually(lambda: [group.aborted for group in made] == [1, 1])


def test_an_error_while_connecting_is_raised_where_it_is_waited_for() -> None:
    def fail() -> None:
        raise RuntimeError("no route")

    with pytest.raises(RuntimeError, match="no route"):
        g.Detached(fail, lambda made: None).result(lambda: False)


def test_connecting_ends_in_time_when_a_member_is_lost_on_the_way() -> None:
    never = threading.Event()
    with pytest.raises(TimeoutError, match=r"not connected within 0\.1 s"):
        g.Detached(lambda: never.wait(WITHIN_S), lambda made: None).result(lambda: False, within_s=0.05)
    never.set()


def test_the_environment_is_completed_but_an_operator_has_the_last_word() -> None:
    environ = {"NCCL_RUNTIME_CONNECT": "1", "HOME": "/"}
    g.shield(environ)
    assert environ == {**NCCL_ENVIRONMENT, "NCCL_RUNTIME_CONNECT": "1", "HOME": "/"}
