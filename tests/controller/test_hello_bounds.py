"""Impossible statements about the server and its workers in an agent's hello: the hello is dropped as a whole."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from elasticd.controller.inbound.statuses import hello_fault
from elasticd.protocol.messages import AgentHello, LocalWorker
from elasticd.protocol.model import Gpu, GpuKind, GpuPlace, JobId, Server, ServerId, WorkerId

GPU = Gpu(index=0, kind=GpuKind.CUDA, name="A100", port=29_500, place=GpuPlace(socket=0, switch=0, nvlinks=(1,)))
WORKER = LocalWorker(worker=WorkerId("digits-1.1"), job=JobId("digits-1"), uid="1", gpu=0, gpus=(0, 1))


def hello(gpu: Gpu = GPU, local: LocalWorker = WORKER) -> AgentHello:
    server = Server(server=ServerId("s1"), address="127.0.0.1", gpus=(gpu,))
    return AgentHello(server=server, incarnation="1", workers=(), starting=(), exited=(), processes=(local,))


def test_a_hello_of_a_sound_server_is_taken_in() -> None:
    assert hello_fault(hello()) == ""
    assert hello_fault(hello(replace(GPU, place=GpuPlace(), port=0), replace(WORKER, gpus=()))) == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"port": -1}, "a port"),
        ({"port": 70_000}, "a port"),
        ({"place": GpuPlace(socket=-1)}, "where a GPU sits"),
        ({"place": GpuPlace(switch=2**60)}, "where a GPU sits"),
        ({"place": GpuPlace(nvlinks=(2**60,))}, "where a GPU sits"),
        ({"place": GpuPlace(rack="x" * 1000)}, "where a GPU sits"),
    ],
)
def test_a_gpu_that_cannot_be_is_refused(changes: dict[str, Any], said: str) -> None:
    assert said in hello_fault(hello(replace(GPU, **changes)))


@pytest.mark.parametrize("gpus", [(0, 0), tuple(range(2000))])
def test_a_worker_with_gpus_that_cannot_be_is_refused(gpus: tuple[int, ...]) -> None:
    assert "a worker has more GPUs" in hello_fault(hello(local=replace(WORKER, gpus=gpus)))
