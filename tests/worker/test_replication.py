"""State transfer from holders to joiners: received states are equal under every plan, and no rank hangs."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from elasticd.protocol.errors import PeerError
from elasticd.worker.communication.communicator import Communicator, CommunicatorBroken
from elasticd.worker.state.replication import (
    NOTICE_TAG,
    PIECE_BYTES,
    SMALL_BYTES,
    TENSOR_TAG,
    Replication,
    Transfer,
)
from elasticd.worker.state.training_state import TrainingState, describe

from ..forked import Scripts
from .communicator_world import RendezvousServer, run_ranks

CPU = torch.device("cpu")


def to(communicator: Communicator, *targets: int) -> Replication:
    """Transfers from this rank to each of `targets`."""
    return Replication(communicator, tuple(Transfer(communicator.rank, target) for target in targets))


def coming(communicator: Communicator, source: int) -> Replication:
    """The transfer from `source` to this rank."""
    return Replication(communicator, (Transfer(source, communicator.rank),))


def make_state(optimizer: str, seed: int) -> TrainingState:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    if optimizer == "adam":
        return TrainingState(model, [torch.optim.Adam(model.parameters(), lr=0.01)])
    return TrainingState(model, [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)])


def step(state: TrainingState, seed: int) -> None:
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(seed))
    state.optimizers[0].zero_grad()
    state.model(x).square().mean().backward()
    state.optimizers[0].step()


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("size", [2, 3])
def test_joiners_have_equal_bits_and_keep_them(optimizer: str, size: int) -> None:
    states = [make_state(optimizer, seed) for seed in range(size)]
    for number in range(3):
        step(states[0], number)

    def run(c: Communicator) -> dict[str, Any]:
        state = states[c.rank]
        if c.rank == 0:
            buffers = list(state.model.buffers())
            header = state.header({"applied": 2})
            pending = to(c, *range(1, size)).give(header, state.tensors(), mutable=buffers)
            kept = [buffer.clone() for buffer in buffers]
            for buffer in buffers:
                buffer.zero_()  # as the next forward pass would change them
            pending.wait()
            for buffer, value in zip(buffers, kept, strict=True):
                buffer.copy_(value)
            for target in range(1, size):
                to(c, target).send_trailer({"epoch": 7})
            return {}
        incoming = coming(c, 0).take(CPU)
        assert incoming.header["counters"] == {"applied": 2}
        with torch.no_grad():
            for own, new in zip(state.adopt(incoming.header), incoming.wait(), strict=True):
                own.copy_(new)
        state.finish(incoming.header)
        return coming(c, 0).receive_trailer()

    assert run_ranks(size, run) == [{}, *[{"epoch": 7}] * (size - 1)]
    for number in range(3, 6):
        for state in states:
            step(state, number)
    for state in states[1:]:
        assert state.header({}) == states[0].header({})
        assert all(torch.equal(a, b) for a, b in zip(state.tensors(), states[0].tensors(), strict=True))


def test_empty_scalar_boolean_and_strided_tensors_arrive() -> None:
    tensors = [
        torch.empty(0, 3),
        torch.tensor(3.5, dtype=torch.float64),
        torch.tensor([True, False]),
        torch.arange(6).view(2, 3).t(),
        torch.ones(2, dtype=torch.bfloat16),
    ]
    described = [["t", str(tensor.dtype).removeprefix("torch."), list(tensor.shape), "host"] for tensor in tensors]

    def run(c: Communicator) -> list[torch.Tensor]:
        if c.rank == 0:
            return to(c, 1).give({"tensors": described}, tensors).wait()
        return coming(c, 0).take(CPU).wait()

    for received, tensor in zip(run_ranks(2, run)[1], tensors, strict=True):
        assert received.dtype == tensor.dtype
        assert torch.equal(received, tensor)


def test_a_receiver_whose_sender_is_given_up_gets_an_error() -> None:
    def run(c: Communicator) -> str:
        if c.rank == 1:
            c.wait(c.receive(torch.zeros(1), 0, 99))  # until the other rank has finished
            with contextlib.suppress(CommunicatorBroken):
                c.wait(c.send(torch.zeros(1), 0, 98))
            return ""
        c.wait(c.send(torch.zeros(1), 1, 99))
        c.wait(c.receive(torch.zeros(1), 1, 98))  # unread data is lost when connections are closed
        c.abort()
        with pytest.raises(CommunicatorBroken):
            coming(c, 1).take(CPU)
        return "broken"

    assert run_ranks(2, run) == ["broken", ""]


def test_what_is_no_document_is_the_peers_fault() -> None:
    def run(c: Communicator) -> str:
        if c.rank == 0:
            for work in (c.send(torch.tensor([2]), 1, 3), c.send(torch.tensor([0xC1, 0], dtype=torch.uint8), 1, 4)):
                c.wait(work)
            c.wait(c.send(torch.tensor([-1]), 1, 3))
            return ""
        with pytest.raises(PeerError, match="not a document"):
            coming(c, 0).receive_trailer()
        with pytest.raises(PeerError, match="of -1 bytes"):
            coming(c, 0).receive_trailer()
        return "refused"

    assert run_ranks(2, run) == ["", "refused"]


# ------------------------------------------------------------------------------------------------------------------- plans


def described(tensors: list[torch.Tensor]) -> dict[str, Any]:
    return {"tensors": [describe(str(number), tensor) for number, tensor in enumerate(tensors)]}


def test_a_joiner_passes_pieces_on_before_it_has_them_all() -> None:
    """The holder withholds the second tensor until the last rank of the chain has the first."""
    tensors = [torch.arange(SMALL_BYTES * 1.0), torch.arange(SMALL_BYTES * 2.0)]
    passed_on = threading.Event()

    def run(c: Communicator) -> list[torch.Tensor]:
        replication = Replication(c, (Transfer(0, 1), Transfer(1, 2, 1)))
        if c.rank == 0:
            send_header = to(c, 1).give(described(tensors), [torch.empty(0)])  # and no tensor
            send_header.wait()
            c.wait(c.send(tensors[0], 1, TENSOR_TAG))
            assert passed_on.wait(20.0)
            c.wait(c.send(tensors[1], 1, TENSOR_TAG + 1))
            return tensors
        if c.rank == 1:
            received = replication.take(CPU).wait()
            replication.sent()
            return received
        header = coming(c, 1).take(CPU)
        first, _ = header.pending._works
        c.wait(first)
        passed_on.set()
        return header.wait()

    for received in run_ranks(3, run):
        assert all(torch.equal(a, b) for a, b in zip(received, tensors, strict=True))


def test_a_state_comes_to_its_places_however_those_lie_in_memory() -> None:
    """A large tensor that is received in place, one with another layout, and a small one that travels with others."""
    tensors = [torch.randn(SMALL_BYTES), torch.randn(300, 200), torch.randn(7)]
    places = [torch.zeros(SMALL_BYTES, requires_grad=True), torch.zeros(200, 300).t(), torch.zeros(7)]

    def run(c: Communicator) -> list[torch.Tensor]:
        replication = Replication(c, (Transfer(0, 1),))
        if c.rank == 0:
            replication.give(described(tensors), tensors).wait()
            return tensors
        incoming = replication.take(CPU, lambda header: places)
        received = incoming.wait()
        assert all(a is b for a, b in zip(received, places, strict=True))
        return received

    run_ranks(2, run)
    assert all(torch.equal(place, tensor) for place, tensor in zip(places, tensors, strict=True))
    assert places[0].requires_grad


def test_headers_reach_those_whose_turn_has_not_come() -> None:
    """2 comes after 1, which gets its tensors only after 2 has confirmed the header."""
    tensors = [torch.ones(3)]
    here = threading.Event()

    def run(c: Communicator) -> list[torch.Tensor]:
        plan = (Transfer(0, 1), Transfer(3, 2, 1, after=(0,)))
        if c.rank == 0:
            to(c, 1).give(described(tensors), [torch.empty(0)]).wait()
            assert here.wait(20.0)
            c.wait(c.send(tensors[0], 1, TENSOR_TAG))
            return tensors
        replication = Replication(c, plan)
        if c.rank == 3:
            replication.give(described(tensors), tensors)
            replication.sent()
            return tensors
        incoming = replication.take(CPU)
        if c.rank == 2:
            here.set()
        received = incoming.wait()
        replication.sent()
        return received

    assert all(torch.equal(received[0], tensors[0]) for received in run_ranks(4, run))


class Log:
    """A communicator of rank 3 that records started operations; the test completes them."""

    rank = 3

    def __init__(self) -> None:
        self.entries: list[tuple[str, int, int]] = []
        self._received: dict[int, threading.Event] = {}

    def send(self, tensor: torch.Tensor, rank: int, tag: int) -> threading.Event:
        self.entries.append(("send", rank, tag))
        sent = threading.Event()
        sent.set()
        return sent

    def receive(self, tensor: torch.Tensor, rank: int, tag: int) -> threading.Event:
        self.entries.append(("receive", rank, tag))
        return self._received.setdefault(tag, threading.Event())

    def complete(self, rank: int, tag: int) -> None:
        self.entries.append(("completed", rank, tag))
        self._received[tag].set()

    def wait(self, work: Any) -> None:
        assert work.wait(20.0)


def test_a_source_sends_nothing_but_the_header_until_it_is_told_that_its_turn_has_come() -> None:
    log = Log()
    replication = Replication(log, (Transfer(0, 1), Transfer(3, 2, 1, after=(0,))))  # type: ignore[arg-type]
    replication.give(described([torch.ones(1)]), [torch.ones(1)])
    header, notice = [("send", 2, 1), ("send", 2, 2)], ("receive", 1, NOTICE_TAG)
    assert log.entries == [*header, notice]
    log.complete(1, NOTICE_TAG)
    replication.sent()
    assert log.entries == [*header, notice, ("completed", 1, NOTICE_TAG), ("send", 2, TENSOR_TAG)]


def test_a_source_that_has_sent_what_comes_before_needs_no_notice() -> None:
    log = Log()
    replication = Replication(log, (Transfer(3, 1), Transfer(3, 2, 1, after=(0,))))  # type: ignore[arg-type]
    replication.give(described([torch.ones(1)]), [torch.ones(1)])
    replication.sent()
    headers = [("send", target, tag) for target in (1, 2) for tag in (1, 2)]
    assert log.entries == [*headers, ("send", 1, TENSOR_TAG), ("send", 2, TENSOR_TAG)]


def test_a_trailer_is_passed_on_as_it_is() -> None:
    def run(c: Communicator) -> dict[str, Any]:
        replication = Replication(c, (Transfer(0, 1), Transfer(1, 2, 1)))
        if replication.source is None:
            replication.give({"tensors": []}, [])
            replication.sent()
            replication.send_trailer({"epoch": 4})
            return {}
        replication.take(CPU).wait()
        replication.sent()
        return replication.receive_trailer()

    assert run_ranks(3, run) == [{}, {"epoch": 4}, {"epoch": 4}]


def test_who_has_nobody_to_send_to_sends_nothing_and_copies_nothing() -> None:
    replication = Replication(Communicator.alone(), ())
    assert replication.give({}, [torch.ones(1)], []).wait() == []
    assert (replication.source, replication.targets) == (None, ())


def test_small_tensors_travel_together_and_great_ones_from_where_they_are() -> None:
    log = Log()
    replication = Replication(log, (Transfer(3, 1),))  # type: ignore[arg-type]
    great = torch.ones(SMALL_BYTES)
    tensors = [torch.ones(3), great, torch.tensor(True), torch.empty(0), torch.ones(2, dtype=torch.float64)]
    payload = replication.give(described(tensors), tensors).wait()
    assert [entry[2] for entry in log.entries] == [1, 2, TENSOR_TAG, TENSOR_TAG + 1]
    assert payload[1].data_ptr() == great.data_ptr()
    assert len({payload[position].untyped_storage().data_ptr() for position in (0, 2, 4)}) == 1
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(payload, tensors, strict=True))


def test_tensors_greater_than_a_piece_arrive() -> None:
    tensors = [torch.arange(PIECE_BYTES // 2 + 3, dtype=torch.int32), torch.tensor(True)]

    def run(c: Communicator) -> list[torch.Tensor]:
        if c.rank == 0:
            return to(c, 1).give(described(tensors), tensors).wait()
        return coming(c, 0).take(CPU).wait()

    assert all(torch.equal(a, b) for a, b in zip(run_ranks(2, run)[1], tensors, strict=True))


# ------------------------------------------------------------------------------------------------- ranks that are processes


Said = dict[str, list[dict[str, Any]]]
WHOLE = ["chain:-1", "tree:-1", "told:-1"]
KILLED = [f"{plan}:{victim}" for plan in ("chain", "told") for victim in (0, 1, 2)]


@pytest.fixture(scope="module")
def said(scripts: Scripts, request: pytest.FixtureRequest) -> Said:
    """For each selected case the documents of replication_ranks.py's ranks, in rank order; all but the victims have ended."""
    selected = {item.name for item in request.session.items}
    cases = [case for case in (*WHOLE, *KILLED) if any(f"[{case}]" in name for name in selected)]
    with RendezvousServer() as server:
        done = scripts.run(Path(__file__).with_name("replication_ranks.py"), server.address, *cases)
        assert done.returncode == 0, f"not all have ended in time; they said {done.stdout}{done.stderr}"
    found: Said = {case: [] for case in cases}
    for document in sorted(map(json.loads, done.stdout.splitlines()), key=lambda document: int(document["rank"])):
        found[document["case"]].append(document)
    return found


@pytest.mark.cluster
@pytest.mark.parametrize("case", WHOLE)
def test_one_holder_serves_three_joiners_some_through_others(said: Said, case: str) -> None:
    holder, *joiners = said[case]
    assert len(joiners) == 3
    for joiner in joiners:
        assert joiner["digest"] == holder["digest"]
        assert (joiner["step"], joiner["epoch"], joiner["threads"]) == (7, 3, [])


@pytest.mark.parametrize("case", KILLED)
def test_a_source_killed_in_the_middle_leaves_nobody_hanging(said: Said, case: str) -> None:
    victim = int(case.partition(":")[2])
    assert [document["rank"] for document in said[case]] == [rank for rank in range(4) if rank != victim]
    for document in said[case]:
        assert document["error"]
        assert document["threads"] == []
