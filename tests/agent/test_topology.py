"""What a server offers, read through a library that stands in for the driver's and plays a described server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elasticd.agent.topology import cpu, places
from elasticd.protocol.model import Gpu, GpuAddress, GpuPlace, ServerId
from elasticd.protocol.topology import Link, Spot, link

PROBE = """
import json, logging, msgspec
from elasticd.agent.topology import discover
logging.basicConfig(level="INFO")
print(json.dumps(msgspec.to_builtins(discover(None))))
"""

ONE_SWITCH, SWITCHES, BRIDGE, NODE, SYSTEM = 10, 20, 30, 40, 50  # NVML's levels
Play = Callable[[Iterable[str]], tuple[tuple[Gpu, ...], str]]

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to build the stand-in with")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the stand-in."""
    directory = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("fake_nvml.c")
    target = directory / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(target), str(source)], check=True)
    return directory


@pytest.fixture
def play(library: Path, tmp_path: Path) -> Play:
    """Describe a server: what GPUs does a process find there, and what does it log?"""

    def run(lines: Iterable[str]) -> tuple[tuple[Gpu, ...], str]:
        description = tmp_path / "server"
        description.write_text("".join(f"{line}\n" for line in lines))
        environment = os.environ | {"LD_LIBRARY_PATH": str(library), "NVML_SERVER": str(description)}
        done = subprocess.run(
            [sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=True
        )
        return msgspec.convert(json.loads(done.stdout), tuple[Gpu, ...]), done.stderr

    return run


def tree(near: int, within: int) -> list[str]:
    """Eight GPUs on two sockets; two at a time share `near`, the four of a socket `within`."""
    lines = [f"gpu {a} {a // 4}" for a in range(8)]
    for a in range(8):
        lines += [
            f"level {a} {b} {near if a // 2 == b // 2 else within if a // 4 == b // 4 else SYSTEM}" for b in range(a)
        ]
    return lines


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


# ------------------------------------------------------------------------------------------------------------ what is found


def test_gpus_are_found_with_index_name_uuid_memory_and_place(play: Play) -> None:
    found, _ = play(["gpu 0 0", "gpu 1 0", f"level 0 1 {ONE_SWITCH}"])
    assert msgspec.to_builtins(found) == tuple(
        {
            "index": i,
            "kind": "cuda",
            "name": "NVIDIA Stub 40GB",
            "uuid": f"GPU-0000000{i}",
            "memory_bytes": 40 << 30,
            "place": {"socket": 0, "switch": 0, "nvlinks": ()},
        }
        for i in range(2)
    )


def test_a_gpu_that_answers_with_an_error_is_left_out_and_the_log_says_why(play: Play) -> None:
    found, log = play([*tree(ONE_SWITCH, BRIDGE), "lost 1"])
    assert [gpu.index for gpu in found] == [0, 2, 3, 4, 5, 6, 7]
    assert "GPU 1 is left out: GPU is lost" in log
    assert between(found, 2, 3) is Link.SWITCH
    assert between(found, 0, 4) is Link.SOCKET


def test_without_a_loaded_driver_there_are_cpu_slots_and_the_log_says_so_once(play: Play) -> None:
    found, log = play(["init 9"])
    assert {gpu.kind.value for gpu in found} == {"cpu"}
    assert log.count("CPU slots") == 1


# ------------------------------------------------------------------------------------------------------------------- places


def test_a_server_with_switches_and_two_sockets(play: Play) -> None:
    found, _ = play(tree(ONE_SWITCH, BRIDGE))
    assert of(found) == [GpuPlace(socket=i // 4 * 4, switch=i // 2 * 2) for i in range(8)]
    assert [between(found, 0, other) for other in (1, 2, 4)] == [Link.SWITCH, Link.BRIDGE, Link.SOCKET]


def test_several_switches_and_host_bridges_of_one_node_are_within_elans_levels(play: Play) -> None:
    found, _ = play(tree(SWITCHES, NODE))
    assert [between(found, 0, other) for other in (1, 2, 4)] == [Link.SWITCH, Link.BRIDGE, Link.SOCKET]


def test_dgx_1_nvlink_reaches_four_others(play: Play) -> None:
    found, _ = play([*tree(ONE_SWITCH, BRIDGE), *(f"nvlink {a} {b} {links}" for a, b, links in DGX_1)])
    assert found[0].place == GpuPlace(socket=0, switch=0, nvlinks=(1, 2, 3, 4))
    assert found[6].place == GpuPlace(socket=4, switch=6, nvlinks=(2, 4, 5, 7))
    assert [between(found, 0, other) for other in (4, 5)] == [Link.NVLINK, Link.SOCKET]


def test_dgx_a100_nvswitches_reach_everyone(play: Play) -> None:
    found, _ = play([*tree(SWITCHES, NODE), *(f"nvswitch {a} 12" for a in range(8))])
    assert [gpu.place.nvlinks for gpu in found] == [tuple(j for j in range(8) if j != i) for i in range(8)]


def test_an_nvlink_that_is_off_leads_nowhere_and_hides_none_behind_it(play: Play) -> None:
    found, _ = play(["gpu 0 0", "gpu 1 0", "gpu 2 0", "nvlink 0 1 2", "off 0", "off 2"])
    assert [gpu.place.nvlinks for gpu in found] == [(1,), (0,), ()]


def test_the_nvlink_to_a_lost_gpu_is_not_told(play: Play) -> None:
    found, _ = play(["gpu 0 0", "gpu 1 0", "gpu 2 0", "nvlink 0 1 2", "nvlink 0 2 1", "lost 1"])
    assert [gpu.place.nvlinks for gpu in found] == [(2,), (0,)]


def test_gpus_that_only_tell_their_numa_node_have_a_socket_and_no_switch(play: Play) -> None:
    found, log = play([*tree(ONE_SWITCH, BRIDGE), "mute levels"])
    assert of(found) == [GpuPlace(socket=i // 4) for i in range(8)]
    assert "NVML does not tell what GPUs 0 and 1 share: Not Supported" in log


def test_a_driver_that_tells_nothing_is_no_error(play: Play) -> None:
    found, _ = play(
        [*tree(ONE_SWITCH, BRIDGE), "nvswitch 0 2", "mute levels", "mute nodes", "mute links", "mute kinds"]
    )
    assert of(found) == [GpuPlace()] * 8


def test_direct_nvlinks_are_told_even_if_the_kind_of_their_ends_is_not(play: Play) -> None:
    found, _ = play(["gpu 0 0", "gpu 1 0", "nvlink 0 1 1", "mute kinds"])
    assert [gpu.place.nvlinks for gpu in found] == [(1,), (0,)]


def test_a_gpu_of_which_some_pairs_are_unknown_shares_what_is_known() -> None:
    levels = {(0, 1): ONE_SWITCH, (0, 2): SYSTEM}  # of 1 and 2 nothing is known
    assert places((0, 1, 2, 3), levels, {0: 0, 1: 0, 2: 1}, {}) == {
        0: GpuPlace(socket=0, switch=0),
        1: GpuPlace(socket=0, switch=0),
        2: GpuPlace(socket=1, switch=2),
        3: GpuPlace(),
    }


# ---------------------------------------------------------------------------------------------------------------- CPU slots


def nodes(directory: Path, *names: str) -> Path:
    for name in names:
        (directory / name).mkdir()
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
