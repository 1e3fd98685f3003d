"""Places of GPUs: readings of driver and kernel for pairs of GPUs, and the server's tree computed from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elasticd.agent.topology import cpu, path_level, places
from elasticd.protocol.model import Gpu, GpuAddress, GpuPlace, ServerId
from elasticd.protocol.topology import Link, Spot, link

LOOK = """
import json, logging, msgspec, sys
from pathlib import Path
from elasticd.agent.topology import discover
logging.basicConfig(level="INFO")
print(json.dumps(msgspec.to_builtins(discover(Path(sys.argv[1]), 1.0, root=Path(sys.argv[1]) / "nothing").gpus)))
"""

ONE_SWITCH, SWITCHES, BRIDGE, NODE, SYSTEM = 10, 20, 30, 40, 50  # NVML's levels
Play = Callable[[Iterable[str]], tuple[Gpu, ...]]


@pytest.fixture
def play(standin: Callable[..., Any], tmp_path: Path) -> Play:
    """GPUs that a process finds on a described server."""

    def run(lines: Iterable[str]) -> tuple[Gpu, ...]:
        return msgspec.convert(standin(None, *lines).run(LOOK, str(tmp_path)), tuple[Gpu, ...])

    return run


def tree(near: int, within: int) -> list[str]:
    """Eight GPUs on two sockets; two at a time share `near`, the four of a socket `within`."""
    lines = ["gpus 8"]
    for a in range(8):
        bridge = f"pci0000:{a // 2 if within == NODE else a // 4 * 8:02x}"
        switch = f"0000:00:{a // 2:02x}.0/0000:1{a // 2}:00.0/"
        below = f"0000:2{a // 2}:{a % 2}.0/" + ("" if near == ONE_SWITCH else f"0000:3{a}:00.0/0000:4{a}:01.0/")
        lines += [f"gpu {a} node {a // 4}", f"gpu {a} path {bridge}/{switch}{below}0000:a{a}:00.0"]
    return lines


def plain(gpus: int) -> list[str]:
    return [f"gpus {gpus}", "gpu * node 0"]


NO_LEVELS = "gpu * fails nvmlDeviceGetTopologyCommonAncestor 3"
NO_KINDS = "gpu * fails nvmlDeviceGetNvLinkRemoteDeviceType 3"

DGX_1 = (
    *((0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2)),
    *((2, 6, 1), (3, 7, 1), (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2)),
)


def of(found: Iterable[Gpu]) -> list[GpuPlace]:
    return [gpu.place for gpu in found]


def between(found: tuple[Gpu, ...], a: int, b: int) -> Link:
    def spot(index: int) -> Spot:
        return Spot(GpuAddress(server=ServerId("s"), index=index), next(g.place for g in found if g.index == index))

    return link(spot(a), spot(b))


# ------------------------------------------------------------------------------------------------------------------- places


def test_a_server_with_switches_and_two_sockets(play: Play) -> None:
    found = play(tree(ONE_SWITCH, BRIDGE))
    assert of(found) == [GpuPlace(socket=i // 4 * 4, switch=i // 2 * 2) for i in range(8)]
    assert [between(found, 0, other) for other in (1, 2, 4)] == [Link.SWITCH, Link.BRIDGE, Link.SOCKET]


def test_several_switches_and_host_bridges_of_one_node_are_within_elans_levels(play: Play) -> None:
    found = play(tree(SWITCHES, NODE))
    assert [between(found, 0, other) for other in (1, 2, 4)] == [Link.SWITCH, Link.BRIDGE, Link.SOCKET]


def test_dgx_1_nvlink_reaches_four_others(play: Play) -> None:
    found = play([*tree(ONE_SWITCH, BRIDGE), *(f"gpu {a} nvlink {b} {links}" for a, b, links in DGX_1)])
    assert found[0].place == GpuPlace(socket=0, switch=0, nvlinks=(1, 2, 3, 4))
    assert found[6].place == GpuPlace(socket=4, switch=6, nvlinks=(2, 4, 5, 7))
    assert [between(found, 0, other) for other in (4, 5)] == [Link.NVLINK, Link.SOCKET]


def test_dgx_a100_nvswitches_reach_everyone(play: Play) -> None:
    found = play([*tree(SWITCHES, NODE), "gpu * nvswitch 12"])
    assert [gpu.place.nvlinks for gpu in found] == [tuple(j for j in range(8) if j != i) for i in range(8)]


def test_an_nvlink_that_is_off_leads_nowhere_and_hides_none_behind_it(play: Play) -> None:
    found = play([*plain(3), "gpu 0 nvlink 1 2", "gpu 0 nvoff 1", "gpu 2 nvoff 1"])
    assert [gpu.place.nvlinks for gpu in found] == [(1,), (0,), ()]


def test_the_nvlink_to_a_lost_gpu_is_not_told(play: Play) -> None:
    found = play([*plain(3), "gpu 0 nvlink 1 2", "gpu 0 nvlink 2 1", "gpu 1 error 15"])
    assert [gpu.place.nvlinks for gpu in found] == [(2,), (), (0,)]


def test_gpus_that_only_tell_their_numa_node_have_a_socket_and_no_switch(play: Play) -> None:
    found = play([*tree(ONE_SWITCH, BRIDGE), NO_LEVELS])
    assert of(found) == [GpuPlace(socket=i // 4) for i in range(8)]


def test_a_driver_that_tells_nothing_is_no_error(play: Play) -> None:
    found = play(
        [
            *tree(ONE_SWITCH, BRIDGE),
            "gpu 0 nvswitch 2",
            NO_LEVELS,
            NO_KINDS,
            "gpu * fails nvmlDeviceGetMemoryAffinity 3",
            "gpu * fails nvmlDeviceGetNvLinkState 3",
        ]
    )
    assert of(found) == [GpuPlace()] * 8


def test_direct_nvlinks_are_told_even_if_the_kind_of_their_ends_is_not(play: Play) -> None:
    found = play([*plain(2), "gpu 0 nvlink 1 1", NO_KINDS])
    assert [gpu.place.nvlinks for gpu in found] == [(1,), (0,)]


def test_a_gpu_of_which_some_pairs_are_unknown_shares_what_is_known() -> None:
    levels = {(0, 1): ONE_SWITCH, (0, 2): SYSTEM}  # the level of 1 and 2 is unknown
    assert places((0, 1, 2, 3), levels, {0: 0, 1: 0, 2: 1}, {}) == {
        0: GpuPlace(socket=0, switch=0),
        1: GpuPlace(socket=0, switch=0),
        2: GpuPlace(socket=1, switch=2),
        3: GpuPlace(),
    }


@pytest.mark.parametrize(
    ("a", "b", "level"),
    [
        ("pci/port/up/down1", "pci/port/up/down2", ONE_SWITCH),
        ("pci/port/up/down1/up2/down3", "pci/port/up/down2", SWITCHES),
        ("pci/port1", "pci/port2", BRIDGE),
        ("pci1/port", "pci2/port", NODE),
        ("pci1/port", "", None),
    ],
)
def test_paths_tell_what_two_devices_share_where_the_driver_does_not(a: str, b: str, level: int | None) -> None:
    above = [tuple(path.split("/")) if path else () for path in (a, b)]
    assert path_level(above[0], above[1], 0, 0) == level


# ---------------------------------------------------------------------------------------------------------------- CPU slots


def nodes(directory: Path, *names: str) -> Path:
    for name in names:
        (directory / "devices/system/node" / name).mkdir(parents=True)
    return directory


def test_cpu_slots_of_a_server_with_one_numa_node_are_on_it(tmp_path: Path) -> None:
    where = nodes(tmp_path, "node0", "power")
    assert of(cpu(2, where)) == [GpuPlace(socket=0)] * 2


@pytest.mark.parametrize("names", [(), ("node0", "node1")])
def test_cpu_slots_are_nowhere_if_there_is_a_choice_or_nothing_is_told(tmp_path: Path, names: tuple[str, ...]) -> None:
    assert of(cpu(2, nodes(tmp_path, *names))) == [GpuPlace()] * 2


# ----------------------------------------------------------------------------------------------------------- mixed versions


def test_an_older_agent_says_nothing_of_places_and_is_understood() -> None:
    old: dict[str, Any] = {"index": 0, "kind": "cuda", "name": "x", "uuid": "", "memory_bytes": 0}
    assert msgspec.convert(old, Gpu).place == GpuPlace()
