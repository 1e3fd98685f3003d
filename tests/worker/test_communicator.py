"""Communicators over real Gloo: their operations, and that no rank ever hangs in one."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticd.worker.communication.communicator import Communicator, CommunicatorBroken, RendezvousCancelled

from ..forked import Scripts
from .communicator_world import RendezvousServer, run_ranks


def run_processes(scripts: Scripts, scenario: str, size: int, lasting: int) -> list[dict[str, Any]]:
    """Run a scenario of communicator_ranks.py. Returns its ranks' documents, once all but the `lasting` ones have ended."""
    with RendezvousServer() as server:
        script = Path(__file__).with_name("communicator_ranks.py")
        done = scripts.run(script, scenario, str(size), server.address, str(lasting))
    assert done.returncode == 0, f"not all ranks have ended in time; they said {done.stdout}{done.stderr}"
    return sorted(map(json.loads, done.stdout.splitlines()), key=lambda document: int(document["rank"]))


LANES = pytest.mark.parametrize("lane", ["host", "device"])


@LANES
def test_collectives_of_three(lane: str) -> None:
    def run(c: Communicator) -> tuple[list[float], int, list[float], list[float], list[float]]:
        total, most = torch.tensor([float(c.rank), 1.0]), torch.tensor([c.rank * 2])
        copy = torch.tensor([float(c.rank)])
        gathered = torch.empty(3)
        # rank 0 keeps nothing, gives one row to 1 and two to 2; the others give nothing
        rows = torch.tensor([[1.0], [2.0], [3.0]]) if c.rank == 0 else torch.empty(0, 1)
        got = torch.zeros(c.rank, 1)
        works = [
            c.all_reduce(total),
            c.all_reduce_max(most),
            c.broadcast(copy, 1),
            c.all_gather(gathered, torch.tensor([float(c.rank)])),
            c.all_to_all(got, rows, [c.rank, 0, 0], [0, 1, 2] if c.rank == 0 else [0, 0, 0]),
        ]
        for work in works:
            c.wait(work)
        return total.tolist(), int(most), copy.tolist(), gathered.tolist(), got.view(-1).tolist()

    for rank, (total, most, copy, gathered, got) in enumerate(run_ranks(3, run, lane)):
        assert (total, most, copy, gathered) == ([3.0, 3.0], 4, [1.0], [0.0, 1.0, 2.0])
        assert got == [[], [1.0], [2.0, 3.0]][rank]


@LANES
@pytest.mark.parametrize(
    "dtype", [torch.complex64, torch.int16, torch.float8_e4m3fn, torch.bool, torch.bfloat16, torch.float16], ids=str
)
def test_what_is_only_moved_may_be_of_any_type(lane: str, dtype: torch.dtype) -> None:
    def values(rank: int) -> torch.Tensor:
        return torch.tensor([[rank, 1], [0, rank]], dtype=torch.float32).to(dtype)

    def run(c: Communicator) -> None:
        mine, theirs = values(c.rank), values(1 - c.rank)
        gathered, got = torch.empty(4, 2, dtype=dtype), torch.empty(3, 2, dtype=dtype)
        copy = mine.clone()
        rows = torch.cat([mine, mine[:1]])  # two for rank 0, one for rank 1
        own, other = (2, 2) if c.rank == 0 else (1, 1)
        got = torch.empty(own + other, 2, dtype=dtype)
        for work in (
            c.broadcast(copy, 1),
            c.all_gather(gathered, mine),
            c.all_to_all(got, rows, [own, own], [2, 1]),
        ):
            c.wait(work)
        want = [values(0), values(1)] if c.rank == 0 else [values(0)[:1], values(1)[:1]]
        assert copy.view(torch.uint8).tolist() == values(1).view(torch.uint8).tolist()
        assert gathered.view(torch.uint8).tolist() == torch.cat([values(0), values(1)]).view(torch.uint8).tolist()
        assert got.view(torch.uint8).tolist() == torch.cat(want).view(torch.uint8).tolist()
        assert theirs.shape == mine.shape

    run_ranks(2, run, lane)


@LANES
def test_sums_of_complex_numbers(lane: str) -> None:
    def run(c: Communicator) -> list[complex]:
        tensor = torch.tensor([1 + 2j, c.rank * 1j])
        c.wait(c.all_reduce(tensor))
        return tensor.tolist()

    assert run_ranks(2, run, lane) == [[2 + 4j, 1j]] * 2


def test_state_travels_while_collectives_run_and_messages_are_told_apart_by_tag() -> None:
    def run(c: Communicator) -> list[Any]:
        first, second = torch.arange(300_000.0), torch.tensor([True, False])
        scalar = torch.tensor(7, dtype=torch.int64)
        if c.rank == 0:
            transfers = [c.send(first, 1, 2), c.send(second, 1, 3), c.send(scalar, 1, 4)]
        else:
            first, second, scalar = torch.empty_like(first), torch.empty_like(second), torch.empty_like(scalar)
            transfers = [c.receive(scalar, 0, 4), c.receive(second, 0, 3), c.receive(first, 0, 2)]
        for _ in range(20):
            tensor = torch.ones(10_000)
            c.wait(c.all_reduce(tensor))
            assert tensor[0] == 2.0
        for work in transfers:
            c.wait(work)
        return [float(first.sum()), second.tolist(), int(scalar)]

    sent, received = run_ranks(2, run)
    assert received == sent


def test_alone_needs_nobody() -> None:
    c = Communicator.alone()
    tensor, out = torch.ones(3), torch.empty(3)
    for work in (c.all_reduce(tensor), c.all_reduce_max(tensor), c.broadcast(tensor, 0), c.all_gather(out, tensor)):
        c.wait(work)
    assert torch.equal(out, torch.ones(3))
    c.retire()


def test_an_abort_ends_a_wait_at_once_and_for_ever() -> None:
    def run(c: Communicator) -> str:
        if c.rank == 1:
            return ""
        work = c.receive(torch.empty(1), 1, 1)
        timer = threading.Timer(0.05, c.abort)
        timer.start()
        with pytest.raises(CommunicatorBroken, match="abandoned"):
            c.wait(work)
        with pytest.raises(CommunicatorBroken, match="abandoned"):
            c.all_reduce(torch.ones(1))
        return "aborted"

    assert run_ranks(2, run) == ["aborted", ""]


@pytest.mark.parametrize("side", ["member", "leader"])
def test_building_is_given_up_when_it_is_cancelled(side: str) -> None:
    with RendezvousServer() as server:
        store = server.store("w0", timeout_s=60.0)
        timer = threading.Timer(0.1, store.cancel if side == "member" else lambda: server.cancel("1/1"))
        timer.start()
        with pytest.raises(RendezvousCancelled):
            Communicator.build("gloo", store, 0, 2, "127.0.0.1", 60.0)  # the other one never arrives
        timer.join()


def test_building_fails_in_time_when_a_member_never_comes() -> None:
    with RendezvousServer() as server, pytest.raises(CommunicatorBroken, match="cannot connect rank 0 of 2"):
        Communicator.build("gloo", server.store("w0", timeout_s=0.2), 0, 2, "127.0.0.1", 60.0)


def test_many_generations_are_built_beside_each_other_and_retired() -> None:
    with RendezvousServer() as server:
        results: dict[int, list[float]] = {0: [], 1: []}

        def rank_main(rank: int) -> None:
            previous = Communicator.alone()
            for generation in range(20):
                store = server.store(f"w{rank}", scope=f"{generation}/1")
                following = Communicator.build("gloo", store, rank, 2, "127.0.0.1", 30.0)
                previous.retire()
                previous = following
                tensor = torch.ones(1)
                following.wait(following.all_reduce(tensor))
                results[rank].append(float(tensor))
            previous.retire()

        threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == {0: [2.0] * 20, 1: [2.0] * 20}


@pytest.mark.parametrize(("scenario", "lasting"), [("killed", 0), ("stopped", 1)])
def test_survivors_of_a_lost_rank_get_an_error_in_time_and_end_without_hanging(
    scripts: Scripts, scenario: str, lasting: int
) -> None:
    survivors = run_processes(scripts, scenario, 4, lasting)
    assert [survivor["rank"] for survivor in survivors] == [0, 2, 3]
    for survivor in survivors:
        assert survivor["error"] != "none"
        assert survivor["again"] == "broken"


def test_a_process_ends_although_its_communicator_is_stuck(scripts: Scripts) -> None:
    assert [rank["rank"] for rank in run_processes(scripts, "exit_without_retiring", 3, 1)] == [1, 2]
