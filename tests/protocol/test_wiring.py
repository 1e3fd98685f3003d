"""A server as a tree, and the links between its GPUs."""

from __future__ import annotations

from elasticd.protocol.model import Gpu, GpuKind, GpuPlace, GpuWiring, Nic, NvLinks, Server, ServerId, Wiring
from elasticd.protocol.topology import Link
from elasticd.protocol.wiring import Kind, Part, between, near, speeds, to_network, tree

TOP = ("pci0000:00", "0000:00:01.0", "0000:01:00.0")  # host bridge, root port, upstream port of a switch
BELOW = (*TOP, "0000:02:00.0", "0000:03:00.0")  # of a switch below it


def gpu(index: int, **place: object) -> Gpu:
    return Gpu(index=index, kind=GpuKind.CUDA, name="x", uuid=f"GPU-{index}", place=GpuPlace(**place))  # type: ignore[arg-type]


def server(gpus: tuple[Gpu, ...], *wiring: GpuWiring, nics: tuple[Nic, ...] = ()) -> Server:
    return Server(server=ServerId("s"), address="", gpus=gpus, wiring=Wiring(gpus=wiring, nics=nics))


def shape(part: Part) -> object:
    return (part.kind.value, part.name, [shape(each) for each in part.parts])


def test_a_switch_below_another_hangs_on_it() -> None:
    one = GpuWiring(index=0, node=0, above=(*BELOW, "0000:04:00.0"))
    other = GpuWiring(index=1, node=0, above=(*TOP, "0000:02:01.0"))
    upper = tree(server((gpu(0), gpu(1)), one, other)).parts[0].parts[0].parts[0]
    assert shape(upper) == (
        "PCIe switch",
        "0000:01:00.0",
        [("PCIe switch", "0000:03:00.0", [("GPU", "0", [])]), ("GPU", "1", [])],
    )


def test_what_tells_no_place_hangs_on_the_server() -> None:
    top = tree(server((gpu(0), gpu(1)), GpuWiring(index=0, node=1)))
    assert [(part.kind, part.name) for part in top.parts] == [(Kind.SOCKET, "1"), (Kind.GPU, "1")]


def test_the_slower_plug_counts() -> None:
    wirings = (GpuWiring(index=0, pcie_bytes_per_s=8e9), GpuWiring(index=1, pcie_bytes_per_s=16e9))
    way = between(server((gpu(0, switch=0), gpu(1, switch=0)), *wirings), gpu(0, switch=0), gpu(1, switch=0))
    assert (way.level, way.bytes_per_s, way.label) == (Link.SWITCH, 8e9, "L1")


def test_direct_nvlinks_go_before_those_through_switches() -> None:
    first, second = gpu(0, nvlinks=(1,)), gpu(1, nvlinks=(0,))
    direct = GpuWiring(
        index=0, nvlinks=(NvLinks(count=12, bytes_per_s=300e9), NvLinks(count=2, peer=1, bytes_per_s=50e9))
    )
    back = GpuWiring(index=1, nvlinks=(NvLinks(count=2, peer=0, bytes_per_s=50e9),))
    way = between(server((first, second), direct, back), first, second)
    assert (way.label, way.bytes_per_s) == ("NV2", 50e9)


def test_what_is_not_told_is_not_guessed() -> None:
    found = server((gpu(0), gpu(1)), GpuWiring(index=0), GpuWiring(index=1), nics=(Nic(name="eth0"),))
    assert between(found, *found.gpus).label == "?"
    assert near(found, 0) == ()
    assert to_network(found, 0) == 0.0
    assert speeds(found) == {Link.NETWORK: (0.0, 0.0)}


def test_the_nearest_card_is_at_the_same_switch_then_at_the_same_bridge_then_in_the_same_node() -> None:
    cards = {
        "switch": Nic(name="switch", node=0, above=(*TOP, "0000:02:05.0")),
        "bridge": Nic(name="bridge", node=0, above=("pci0000:00", "0000:00:09.0")),
        "node": Nic(name="node", node=0, above=("pci0000:40", "0000:40:01.0")),
        "far": Nic(name="far", node=1, above=("pci0000:80", "0000:80:01.0")),
    }
    wiring = GpuWiring(index=0, node=0, above=(*TOP, "0000:02:00.0"))
    for nearest, there in (
        (["switch"], ["far", "node", "bridge", "switch"]),
        (["bridge", "node"], ["far", "node", "bridge"]),
        (["far"], ["far"]),
    ):
        found = server((gpu(0),), wiring, nics=tuple(cards[name] for name in sorted(there)))
        assert [nic.name for nic in near(found, 0)] == nearest


def test_a_card_is_no_faster_than_the_gpus_plug() -> None:
    wiring = GpuWiring(index=0, node=0, pcie_bytes_per_s=8e9)
    found = server((gpu(0),), wiring, nics=(Nic(name="ib0", node=0, bytes_per_s=25e9),))
    assert to_network(found, 0) == 8e9
