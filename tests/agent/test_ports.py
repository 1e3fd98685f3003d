"""Ports that an agent reserves for gangs."""

from __future__ import annotations

import socket
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from elasticd.agent.ports import Ports
from elasticd.protocol.model import Gpu, GpuKind

SLOTS = tuple(Gpu(index=i, kind=GpuKind.CPU, name="CPU slot") for i in range(3))


def test_each_gpu_has_a_port_of_its_own_that_stays_the_same() -> None:
    ports = Ports()
    kept = [gpu.port for gpu in ports.keep(SLOTS)]
    assert len(set(kept)) == 3
    assert 0 not in kept
    assert [gpu.port for gpu in ports.keep(SLOTS)] == kept
    ports.close()


def test_torch_s_store_can_listen_there_once_and_others_get_the_port_from_nobody() -> None:
    ports = Ports()
    first, second, _ = (gpu.port for gpu in ports.keep(SLOTS))
    for _ in range(2):  # one gang after the other
        store = TCPStore("127.0.0.1", first, 1, True, timedelta(seconds=30), wait_for_workers=False)
        store.set("a", "b")
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", first))
        del store
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", second))
    ports.close()


def test_two_agents_of_one_machine_keep_different_ports() -> None:
    agents = [Ports() for _ in range(20)]
    kept = [gpu.port for each in agents for gpu in each.keep(SLOTS)]
    assert len(set(kept)) == len(kept)
    for each in agents:
        each.close()
