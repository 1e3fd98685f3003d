"""State from holders to joiners: what arrives is equal, in whatever order a plan has it sent, and nobody hangs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from elasticd.protocol.errors import PeerError
from elasticd.worker.communicator import Communicator, CommunicatorBroken
from elasticd.worker.replication import (
    receive_trailer,
    send_trailer,
    start_receiving,
    start_sending,
)
from elasticd.worker.state import TrainingState

_spec = importlib.util.spec_from_file_location("communicator_world", Path(__file__).with_name("communicator_world.py"))
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _module
_spec.loader.exec_module(_module)
run_ranks = _module.run_ranks

CPU = torch.device("cpu")


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
            pending = start_sending(c, range(1, size), header, state.tensors(), mutable=buffers)
            kept = [buffer.clone() for buffer in buffers]
            for buffer in buffers:
                buffer.zero_()  # as the next forward pass would change them
            pending.wait()
            for buffer, value in zip(buffers, kept, strict=True):
                buffer.copy_(value)
            for target in range(1, size):
                send_trailer(c, target, {"epoch": 7})
            return {}
        incoming = start_receiving(c, 0, CPU)
        assert incoming.header["counters"] == {"applied": 2}
        with torch.no_grad():
            for own, new in zip(state.adopt(incoming.header), incoming.wait(), strict=True):
                own.copy_(new)
        state.finish(incoming.header)
        return receive_trailer(c, 0)

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
            return start_sending(c, [1], {"tensors": described}, tensors).wait()
        return start_receiving(c, 0, CPU).wait()

    for received, tensor in zip(run_ranks(2, run)[1], tensors, strict=True):
        assert received.dtype == tensor.dtype
        assert torch.equal(received, tensor)


def test_a_receiver_whose_sender_is_given_up_gets_an_error() -> None:
    def run(c: Communicator) -> str:
        if c.rank == 1:
            c.wait(c.receive(torch.zeros(1), 0, 99))  # until the other one is through
            return ""
        c.wait(c.send(torch.zeros(1), 1, 99))
        c.abort()
        with pytest.raises(CommunicatorBroken):
            start_receiving(c, 1, CPU)
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
            receive_trailer(c, 0)
        with pytest.raises(PeerError, match="of -1 bytes"):
            receive_trailer(c, 0)
        return "refused"

    assert run_ranks(2, run) == ["", "refused"]
