"""GPUs of the members in a roster."""

from __future__ import annotations

import msgspec

from elasticd.controller.jobs.generations import gpu_place
from elasticd.protocol.model import Gpu, GpuAddress, GpuKind, GpuPlace, Member, Roster, Server, ServerId, WorkerId

S = ServerId("s")
SECOND = GpuPlace(socket=1, switch=3, nvlinks=(0,))
# the GPU with index 1 is broken, so its agent leaves it out
SERVER = Server(
    server=S,
    address="10.0.0.1",
    gpus=(Gpu(index=0, kind=GpuKind.CUDA, name="x"), Gpu(index=2, kind=GpuKind.CUDA, name="x", place=SECOND)),
)


def test_a_gpus_place_is_what_its_agent_has_told() -> None:
    assert gpu_place(SERVER, GpuAddress(server=S, index=2)) == SECOND


def test_a_gpu_of_which_nothing_is_told_is_nowhere() -> None:
    assert gpu_place(SERVER, GpuAddress(server=S, index=1)) == GpuPlace()
    assert gpu_place(None, GpuAddress(server=S, index=2)) == GpuPlace()


def test_a_gpus_place_has_the_rack_of_its_server() -> None:
    racked = msgspec.structs.replace(SERVER, rack="r1")
    assert gpu_place(racked, GpuAddress(server=S, index=2)) == msgspec.structs.replace(SECOND, rack="r1")
    assert gpu_place(racked, GpuAddress(server=S, index=1)) == GpuPlace(rack="r1")


def test_a_roster_carries_places_and_is_understood_without_them() -> None:
    member = Member(worker=WorkerId("w.0"), gpu=GpuAddress(server=S, index=2), place=SECOND)
    roster = Roster(generation=1, members=(member,), leader=member.worker)
    encoded = msgspec.msgpack.encode(roster)
    assert msgspec.msgpack.decode(encoded, type=Roster) == roster
    document = msgspec.msgpack.decode(encoded)
    del document["members"][0]["place"]  # as sent by an older controller
    assert msgspec.convert(document, Roster).members[0].place == GpuPlace()
