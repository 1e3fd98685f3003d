"""`elasticctl topology` for described servers, on a terminal of 80 columns and as JSON."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from elasticd.ctl import topology
from elasticd.ctl.standins import library, sysfs
from elasticd.protocol.messages import ServerState, ServerView
from elasticd.protocol.model import Gpu, GpuKind, JobId, Server, ServerId, Wiring
from elasticd.protocol.wiring import near, to_network

LOOK = """
import json, msgspec, sys
from pathlib import Path
from elasticd.agent.topology import discover
here = Path(sys.argv[1])
found = discover(here, 1.0, root=here / "sys")
print(json.dumps(msgspec.to_builtins([found.gpus, found.wiring])))
"""

See = Callable[..., ServerView]


@pytest.fixture
def see(standin: Callable[..., Any], tmp_path: Path) -> See:
    """The controller's view of a described server."""

    def make(model: str, *lines: str, **changes: Any) -> ServerView:
        described = standin(model, *lines)
        sysfs.write(described.file.read_text(), tmp_path / "sys")
        gpus, wiring = msgspec.convert(described.run(LOOK, str(tmp_path)), tuple[tuple[Gpu, ...], Wiring])
        server = Server(server=ServerId("s1"), address="10.0.0.1", gpus=gpus, wiring=wiring, **changes)
        return ServerView(
            server=server, alive=True, last_heard_s=0.0, used={0: JobId("digits-1")}, state=ServerState.ALIVE
        )

    return make


def drawn(*views: ServerView) -> str:
    screen = Console(file=io.StringIO(), width=80, highlight=False)
    for tree in topology.racks(views):
        screen.print(tree)
    assert isinstance(screen.file, io.StringIO)
    return "\n".join(line.rstrip() for line in screen.file.getvalue().splitlines())


def test_the_tree_of_an_a100_server(see: See) -> None:
    assert drawn(see("a100")).startswith("""\
server s1  8 x A100-SXM4-40GB (stand-in), 40 GiB
├── NUMA node 3  CPUs 48-63,176-191
│   └── host bridge 0000:00  L2
│       └── PCIe switch 0000:01:00.0  L1
│           ├── GPU 0  0000:07:00.0  31.5 GB/s  digits-1
│           ├── GPU 1  0000:0f:00.0  31.5 GB/s
│           ├── NIC ib0  0000:0c:00.0  25 GB/s
│           └── NIC ib1  0000:12:00.0  25 GB/s
├── NUMA node 1  CPUs 16-31,144-159
""")


def test_what_lies_between_the_gpus_of_a_v100_server(see: See) -> None:
    assert list(topology.between_lines(see("v100").server)) == [
        "",
        "           0    1    2    3    4    5    6    7  near",
        "GPU 0      -  NV1  NV1  NV2  NV2   L3   L3   L3  ib0",
        "GPU 1    NV1    -  NV2  NV1   L3  NV2   L3   L3  ib0",
        "GPU 2    NV1  NV2    -  NV2   L3   L3  NV1   L3  ib1",
        "GPU 3    NV2  NV1  NV2    -   L3   L3   L3  NV1  ib1",
        "GPU 4    NV2   L3   L3   L3    -  NV1  NV1  NV2  ib2",
        "GPU 5     L3  NV2   L3   L3  NV1    -  NV2  NV1  ib2",
        "GPU 6     L3   L3  NV1   L3  NV1  NV2    -  NV2  ib3",
        "GPU 7     L3   L3   L3  NV1  NV2  NV1  NV2    -  ib3",
        "",
        "NV  NVLink, with how many links                    25.8 GB/s to 51.6 GB/s",
        "L3  between sockets (NUMA nodes)                   speed not told",
        "L4  to other servers, by the nearest network card  12.5 GB/s",
        "P2P works between 0-1, 0-2, 0-3, 0-4, 1-2, 1-3, 1-5, 2-3 and 8 more pairs",
        "Speeds: in one direction, as driver and kernel tell them; not measured.",
    ]


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("a100", "P2P works between all GPUs"),
        ("gtx1080", "P2P does not work here: transfers pass through the host's memory"),
        ("mixed", "P2P works between 0-1"),
    ],
)
def test_who_reaches_whose_memory_is_told(see: See, model: str, told: str) -> None:
    assert told in list(topology.between_lines(see(model).server))


def test_gpus_of_several_types_are_told_one_by_one(see: See) -> None:
    text = drawn(see("mixed"))
    assert "server s1  4 GPUs of 3 types" in text
    assert "GPU 2  RTX 3090 (stand-in)  23.7 GiB  15.8 GB/s" in text


def test_parts_of_one_gpu_are_shown_as_such(see: See) -> None:
    lines = list(topology.between_lines(see("a100-mig").server))
    assert lines[2] == "GPU 0      -  MIG  MIG  MIG   L3  eth0"
    assert "MIG parts of one GPU" in lines


@pytest.mark.parametrize("model", library.models())
def test_nothing_is_wider_than_eighty_columns(see: See, model: str) -> None:
    view = see(model)
    lines = [*drawn(view).splitlines(), *topology.between_lines(view.server)]
    assert max(map(len, lines)) <= 80
    assert sum("GPU " in line and "──" in line for line in lines) == len(view.server.gpus)


def test_servers_stand_in_their_racks(see: See) -> None:
    view = see("gtx1080", rack="r7")
    other = msgspec.structs.replace(view, server=msgspec.structs.replace(view.server, server=ServerId("s2"), rack=""))
    lines = drawn(view, other).splitlines()
    assert lines[0].startswith("server s2")
    at = lines.index("rack r7  L4 between its servers")
    assert lines[at + 1].startswith("└── server s1")


def test_cpu_slots_are_one_line() -> None:
    slots = tuple(Gpu(index=i, kind=GpuKind.CPU, name="CPU slot") for i in range(4))
    server = Server(server=ServerId("s1"), address="", gpus=slots)
    view = ServerView(server=server, alive=True, last_heard_s=0.0, used={}, state=ServerState.ALIVE)
    assert drawn(view).splitlines() == ["server s1  4 x CPU slot", "└── 4 CPU slots  not bound to processors"]
    assert list(topology.between_lines(server)) == []


def test_a_gpu_that_does_not_answer_is_shown_without_a_place(see: See) -> None:
    see("gtx1080")
    text = drawn(see("gtx1080", "gpu 3 error 15"))
    assert "GPU 3  does not answer, or does not tell its place" in text


def test_the_nearest_network_cards(see: See) -> None:
    server = see("a100").server
    assert [nic.name for nic in near(server, 5)] == ["ib4", "ib5"]
    assert to_network(server, 5) == 25e9


def test_programs_are_told_everything(see: See) -> None:
    told = topology.document(see("v100"))
    assert told["gpus"][3]["near_nics"] == ["ib1"]
    assert told["nics"][1]["near_gpus"] == [2, 3]
    assert (told["gpus"][0]["pci"], told["gpus"][0]["job"]) == ("0000:06:00.0", "digits-1")
    assert told["links"][2] == {"gpus": [0, 3], "level": "NV", "nvlinks": 2, "bytes_per_s": 51562000000.0}
    assert told["links"][4] == {"gpus": [0, 5], "level": "L3", "nvlinks": 0, "bytes_per_s": 0.0}
    assert told["tree"]["parts"][0]["kind"] == "socket"
