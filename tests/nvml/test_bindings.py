"""NVIDIA's own bindings over the stand-in for the driver's library: their readings of each described server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from elasticd.ctl.standins import library

COMMON = """
import json, sys, pynvml as n
n.nvmlInit()
H = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
def tried(call, *arguments):
    try:
        return call(*arguments)
    except n.NVMLError as error:
        return type(error).__name__
"""

LOOK = (
    COMMON
    + """
def links(h):
    ends = {}
    for i in range(n.NVML_NVLINK_MAX_LINKS):
        if tried(n.nvmlDeviceGetNvLinkState, h, i) != 1:
            continue
        kind = n.nvmlDeviceGetNvLinkRemoteDeviceType(h, i)
        end = "switch" if kind == 2 else pci[n.nvmlDeviceGetNvLinkRemotePciInfo(h, i).busId]
        ends[end] = ends.get(end, 0) + 1
    return ends
pci = {n.nvmlDeviceGetPciInfo(h).busId: i for i, h in enumerate(H)}
print(json.dumps({
    "names": [n.nvmlDeviceGetName(h) for h in H],
    "uuids": len({n.nvmlDeviceGetUUID(h) for h in H}),
    "gib": [round(n.nvmlDeviceGetMemoryInfo(h).total / 2**30) for h in H],
    "levels": [[n.nvmlDeviceGetTopologyCommonAncestor(a, b) for b in H] for a in H],
    "links": [links(h) for h in H],
    "p2p": n.nvmlDeviceGetP2PStatus(H[0], H[1], n.NVML_P2P_CAPS_INDEX_NVLINK),
    "speed": n.nvmlDeviceGetFieldValues(H[0], [n.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON])[0].value.uiVal,
    "pcie": [n.nvmlDeviceGetMaxPcieLinkGeneration(H[0]), n.nvmlDeviceGetMaxPcieLinkWidth(H[0])],
    "cpus": [hex(sum(w << 64 * k for k, w in enumerate(n.nvmlDeviceGetCpuAffinity(h, 4)))) for h in H],
    "ecc": tried(n.nvmlDeviceGetTotalEccErrors, H[0], 1, 0),
    "mig": tried(n.nvmlDeviceGetMigMode, H[0]),
}))
"""
)

Make = Callable[..., Any]


def test_eight_a100_reach_each_other_over_nvswitches(standin: Make) -> None:
    told = standin("a100").run(LOOK)
    assert told["names"] == ["A100-SXM4-40GB (stand-in)"] * 8
    assert (told["uuids"], told["gib"][0], told["pcie"], told["speed"]) == (8, 40, [4, 16], 25000)
    assert told["links"] == [{"switch": 12}] * 8
    assert told["levels"][0] == [0, 10, 50, 50, 50, 50, 50, 50]
    assert told["cpus"][0] == hex(0xFFFF << 48 | 0xFFFF << 176)
    assert (told["p2p"], told["ecc"], told["mig"]) == (0, 0, [0, 0])


def test_the_nvlinks_of_eight_v100_are_a_mesh_that_both_ends_see(standin: Make) -> None:
    told = standin("v100").run(LOOK)
    assert told["links"][0] == {"1": 1, "2": 1, "3": 2, "4": 2}
    assert all(sum(links.values()) == 6 for links in told["links"])
    assert all(told["links"][b][str(a)] == count for a in range(8) for b in map(int, told["links"][a])
               for count in [told["links"][a][str(b)]])  # fmt: skip
    assert told["levels"][0] == [0, 10, 30, 30, 50, 50, 50, 50]


def test_gtx_1080_have_neither_nvlink_nor_p2p_nor_ecc_nor_mig(standin: Make) -> None:
    told = standin("gtx1080").run(LOOK)
    assert told["links"] == [{}] * 4
    assert told["levels"][0] == [0, 30, 50, 50]
    assert told["p2p"] == 1
    assert told["ecc"] == told["mig"] == "NVMLError_NotSupported"


def test_a_server_with_several_types_tells_each(standin: Make) -> None:
    told = standin("mixed").run(LOOK)
    assert [name.removesuffix(" (stand-in)") for name in told["names"]] == [
        "V100-PCIE-32GB",
        "V100-PCIE-32GB",
        "RTX 3090",
        "T4",
    ]
    assert told["levels"][2] == [10, 10, 0, 50]


def test_the_instances_of_a_divided_gpu_have_names_memory_and_uuids_of_their_own(standin: Make) -> None:
    told = standin("a100-mig").run(
        COMMON
        + """
found = []
for i in range(n.nvmlDeviceGetMaxMigDeviceCount(H[0])):
    m = tried(n.nvmlDeviceGetMigDeviceHandleByIndex, H[0], i)
    if m == "NVMLError_NotFound":
        break
    parent = n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(m)
    found.append([n.nvmlDeviceGetName(m), n.nvmlDeviceGetUUID(m)[:4], n.nvmlDeviceGetMemoryInfo(m).total >> 20,
                  n.nvmlDeviceGetUUID(parent) == n.nvmlDeviceGetUUID(H[0]), n.nvmlDeviceGetGpuInstanceId(m)])
print(json.dumps([found, n.nvmlDeviceGetMigMode(H[0]), n.nvmlDeviceGetMigMode(H[1])]))
"""
    )
    name = "A100-PCIE-40GB (stand-in) MIG"
    assert told == [
        [
            [f"{name} 3g.20gb", "MIG-", 19968, True, 2],
            [f"{name} 2g.10gb", "MIG-", 9856, True, 3],
            [f"{name} 1g.5gb", "MIG-", 4864, True, 9],
            [f"{name} 1g.5gb", "MIG-", 4864, True, 10],
        ],
        [1, 1],
        [0, 0],
    ]


def test_what_changes_in_the_file_is_seen_by_a_process_that_has_the_library_loaded(standin: Make) -> None:
    server = standin("v100")
    told = server.run(
        COMMON
        + """
def look():
    return [n.nvmlDeviceGetTemperature(H[1], 0), n.nvmlDeviceGetCurrentClocksEventReasons(H[1]),
            n.nvmlDeviceGetTotalEccErrors(H[1], n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, n.NVML_VOLATILE_ECC),
            n.nvmlDeviceGetUtilizationRates(H[1]).gpu, n.nvmlDeviceGetMemoryInfo(H[1]).used,
            [[p.pid, p.usedGpuMemory] for p in n.nvmlDeviceGetComputeRunningProcesses(H[1])]]
before = look()
with open(sys.argv[1], "a") as file:
    file.write("gpu 1 temperature 91\\ngpu 1 throttle 40\\ngpu 1 ecc 3 1\\ngpu 1 util 97\\ngpu 1 used 5000\\n")
    file.write("gpu 1 process 4242 1000\\ngpu 1 process 4243 2000\\n")
print(json.dumps([before, look()]))
""",
        str(server.file),
    )
    assert told == [[40, 0, 0, 0, 0, []], [91, 0x40, 1, 97, 5000, [[4242, 1000], [4243, 2000]]]]


def test_an_event_set_tells_of_each_xid_once_and_only_of_those_after_it_was_made(standin: Make) -> None:
    server = standin("a100", "gpu 3 xid 13")
    told = server.run(
        COMMON
        + """
events = n.nvmlEventSetCreate()
for h in H:
    n.nvmlDeviceRegisterEvents(h, n.nvmlEventTypeXidCriticalError, events)
def wait():
    try:
        e = n.nvmlEventSetWait_v2(events, 30)
        return [n.nvmlDeviceGetIndex(e.device), e.eventType, e.eventData]
    except n.NVMLError_Timeout:
        return "timeout"
first = wait()
with open(sys.argv[1], "a") as file:
    file.write("gpu 3 xid 63\\ngpu 1 event 1 0\\ngpu 5 xid 94\\ngpu 3 xid 63\\n")
print(json.dumps([first, wait(), wait(), wait(), wait()]))
""",
        str(server.file),
    )
    assert told == ["timeout", [3, 8, 63], [5, 8, 94], [3, 8, 63], "timeout"]


def test_a_gpu_that_falls_off_the_bus_answers_with_errors_and_after_a_restart_is_not_counted(standin: Make) -> None:
    server = standin("gtx1080")
    told = server.run(
        COMMON
        + """
with open(sys.argv[1], "a") as file:
    file.write("gpu 1 xid 79\\ngpu 1 error 15\\n")
lost = [tried(n.nvmlDeviceGetUtilizationRates, H[1]), tried(n.nvmlDeviceGetHandleByIndex, 1), n.nvmlDeviceGetCount()]
uuid = n.nvmlDeviceGetUUID(H[2])
with open(sys.argv[1], "a") as file:
    file.write("gpu 1 gone\\n")
print(json.dumps([lost, n.nvmlDeviceGetCount(), n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(1)) == uuid]))
""",
        str(server.file),
    )
    assert told == [["NVMLError_GpuIsLost", "NVMLError_GpuIsLost", 4], 3, True]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("init 9", "NVMLError_DriverNotLoaded"),
        ("init 18", "NVMLError_LibRmVersionMismatch"),
        ("gpu 9 util 3", "NVMLError_Unknown"),
    ],
)
def test_a_driver_that_does_not_start_says_why(standin: Make, line: str, error: str) -> None:
    code = "import pynvml\ntry:\n    pynvml.nvmlInit()\nexcept pynvml.NVMLError as e:\n    print('\"%s\"' % type(e).__name__)"
    assert standin("gtx1080", line).run(code) == error


def test_a_line_that_is_not_understood_is_named(standin: Make) -> None:
    server = standin(None, "gpus 1", "gpu 0 colour blue")
    done = subprocess.run(
        [sys.executable, "-c", COMMON], env=server.environment, capture_output=True, text=True, check=False
    )
    assert f"{server.file}:2: not understood: gpu 0 colour blue" in done.stderr


@pytest.mark.parametrize("model", library.models())
def test_every_description_says_that_its_gpus_are_stand_ins(standin: Make, model: str) -> None:
    told = standin(model).run(COMMON + "print(json.dumps([n.nvmlDeviceGetName(h) for h in H]))")
    assert told
    assert all(name.endswith("(stand-in)") for name in told)
