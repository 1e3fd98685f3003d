"""NVIDIA's own bindings over the stand-in: events of a described server become troubles while it is watched."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Watches the server, appends the lines to its description, and prints the troubles as soon as all these codes are among them.
WATCH = """
import json, os, sys, threading, time
from pathlib import Path
from elasticd.agent import monitoring, topology
from elasticd.agent.health import GpusRead, Health, Rules
state, wanted, lines = Path(sys.argv[1]), set(sys.argv[2].split(",")), sys.argv[3:]
inventory = topology.discover(state, 0.0)
woken = threading.Event()
hangs = any(" slow " in line for line in lines)
monitoring.HANGS_S = 2.0 if hangs else 120.0  # else a machine that does much else would be a driver that hangs
watch = monitoring.Watch(inventory.gpus, inventory.wiring, None, {"state": state}, 0, 0.1,
                       monitoring.Owned(lambda: (os.getpid(),), lambda: ()), woken.set)
for looker in watch._asking:
    looker._patience_s = 3.0 if hangs else 120.0
health = Health(Rules(lasting_s=0.0, probation_s=30.0))
watch.start()
said, seen, began = False, set(), time.monotonic()
while time.monotonic() < began + 300:
    woken.wait(0.05)
    woken.clear()
    for one in watch.deliver():
        health.handle(time.time(), one)
        if isinstance(one, GpusRead) and not said:
            said = True
            time.sleep(0.3)
            for line in lines:
                if line == "WAIT":
                    for _ in range(20):
                        time.sleep(0.1)
                        for one in watch.deliver():
                            health.handle(time.time(), one)
                    continue
                with open(os.environ["NVML_SERVER"], "a") as file:
                    file.write(line.replace("PID", str(os.getpid())).replace("INIT", "1") + "\\n")
    found = {f"{one.gpu}:{one.code}": [one.severity.value, one.text] for one in health.troubles()}
    if wanted <= set(found) or (said and not lines):
        break
print(json.dumps(found), flush=True)
os._exit(0)
"""


@pytest.fixture
def watched(standin: Callable[..., Any], tmp_path: Path) -> Callable[..., dict[str, list[str]]]:
    def watch(wanted: str, *lines: str, model: str = "a100") -> dict[str, list[str]]:
        state = tmp_path / "state"
        state.mkdir(exist_ok=True)
        found = standin(model).run(WATCH, str(state), wanted, *lines)
        assert isinstance(found, dict)
        return found

    return watch


@pytest.mark.parametrize(
    ("line", "code", "severity"),
    [
        ("gpu 3 xid 79", "3:xid-79", "stop"),
        ("gpu 0 xid 31", "0:xid-31", "note"),
        ("gpu 2 ecc 0 5", "2:ecc-uncorrected", "stop"),
        ("gpu 1 remapped 0 1 1 0", "1:ecc-pending", "no-new-work"),
        ("gpu 1 remapped 0 1 0 1", "1:remap-failed", "move-away"),
        ("gpu 4 throttle 48", "4:throttled", "note"),
        ("gpu 5 error 15", "5:gpu-lost", "stop"),
        ("gpu 7 gone", "7:gpu-lost", "stop"),
        ("gpu 6 used 40000000000", "6:memory-held", "no-new-work"),
        ("gpu 6 process INIT 40000000000", "6:foreign-process", "no-new-work"),
        ("gpu 0 slow 4000", "None:driver-hangs", "no-new-work"),
    ],
)
def test_what_happens_to_a_gpu_is_a_trouble_of_it_and_of_no_other(
    watched: Callable[..., Any], line: str, code: str, severity: str
) -> None:
    found = watched(code, line)
    assert found[code][0] == severity, found
    assert {each.partition(":")[0] for each in found} == {code.partition(":")[0]}


def test_a_gpu_that_does_not_tell_its_memory_is_well(watched: Callable[..., Any]) -> None:
    unified = ("gpu * fails nvmlDeviceGetMemoryInfo 3", "gpu * fails nvmlDeviceGetMemoryInfo_v2 3")
    found = watched("3:ecc-uncorrected", *unified, "gpu 3 ecc 0 5")
    assert set(found) == {"3:ecc-uncorrected"}


def test_an_xid_of_a_gpu_that_has_fallen_off_the_bus_is_told_of_that_gpu(watched: Callable[..., Any]) -> None:
    found = watched("3:xid-79,3:gpu-lost", "gpu 3 xid 79", "gpu 3 error 15")
    assert set(found) == {"3:xid-79", "3:gpu-lost"}


def test_errors_of_all_gpus_at_once_are_all_told(watched: Callable[..., Any]) -> None:
    found = watched(",".join(f"{gpu}:xid-31" for gpu in range(8)), "gpu * xid 31")
    assert len(found) == 8


def test_a_gpu_that_is_back_is_listened_to_again(watched: Callable[..., Any]) -> None:
    found = watched("2:gpu-lost,2:xid-62", "gpu 2 error 15", "WAIT", "gpu 2 error 0", "WAIT", "gpu 2 xid 62")
    assert found["2:xid-62"][0] == "move-away"


def test_a_gpu_behind_one_that_is_gone_keeps_its_number(watched: Callable[..., Any]) -> None:
    found = watched("2:gpu-lost,5:xid-119", "gpu 2 gone", "gpu 5 xid 119")
    assert set(found) == {"2:gpu-lost", "5:xid-119"}


def test_our_own_processes_are_not_foreign(watched: Callable[..., Any]) -> None:
    found = watched("1:xid-13", "gpu 0 process PID 1000000", "gpu 1 xid 13")
    assert set(found) == {"1:xid-13"}


def test_the_instances_of_a_divided_gpu_share_what_happens_to_it(watched: Callable[..., Any]) -> None:
    found = watched("0:xid-48,1:xid-48", "gpu 0 xid 48", model="a100-mig")
    assert all(key.endswith(":xid-48") for key in found)
    assert len(found) > 1


CHECK = """
import json, os, sys, time
from pathlib import Path
from elasticd.agent import monitoring, topology
state, number, trusted = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(",")
inventory = topology.discover(state, 0.0)
driver = monitoring.Driver(inventory.gpus, inventory.wiring, None, monitoring.Owned(lambda: (os.getpid(),), lambda: ()))
began = time.monotonic()
found = driver.check((7, number), trusted, 0.8)
print(json.dumps([found and [found.code, found.gpu], time.monotonic() - began]), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("gpu 0 temperature 40", None),
        ("gpu 0 error 15", "gpu-lost"),
        ("gpu 0 used 30000000000", "memory-held"),
        (f"gpu 0 process {os.getppid()} 1000", "foreign-process"),
        ("gpu 1 used 30000000000", None),
    ],
)
def test_before_a_worker_starts_its_gpu_is_looked_at(
    standin: Callable[..., Any], tmp_path: Path, line: str, code: str | None
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    server = standin("a100")
    server.run(CHECK, str(state), "0", "")  # the numbers of the GPUs are recorded while all are well
    server.say(line)
    found, took_s = server.run(CHECK, str(state), "0", "")
    assert found == (None if code is None else [code, 0])
    assert took_s < 120, "what the driver does not answer is not waited for"
    if code not in (None, "gpu-lost"):
        found, _ = server.run(CHECK, str(state), "0", code)
        assert found is None, "an operator trusts it"


USE = """
import json, os, sys, time
from pathlib import Path
from elasticd.agent import monitoring, topology
inventory = topology.discover(Path(sys.argv[1]), 0.0)
driver = monitoring.Driver(inventory.gpus, inventory.wiring, None, monitoring.Owned(lambda: (os.getpid(),), lambda: ()))
found = []
for line in sys.argv[2:]:
    with open(os.environ["NVML_SERVER"], "a") as file:
        file.write(line + "\\n")
    time.sleep(0.3)
    found.append({number: [use.busy, use.used_bytes] for number, use in driver.use((0, 1)).items()})
print(json.dumps(found), flush=True)
os._exit(0)
"""


def used(standin: Callable[..., Any], tmp_path: Path, *lines: str, model: str = "a100") -> list[dict[str, list[Any]]]:
    state = tmp_path / "state"
    state.mkdir()
    found = standin(model).run(USE, str(state), *lines)
    assert isinstance(found, list)
    return found


def test_the_use_of_gpus_is_the_mean_of_the_driver_s_own_samples(standin: Callable[..., Any], tmp_path: Path) -> None:
    lines = ("gpu 0 util 100", "gpu 0 util 40", "gpu 1 used 5000")
    first, second, third = used(standin, tmp_path, *lines)
    assert first == {"0": [1.0, 0], "1": [0.0, 0]}
    assert second["0"] == [0.4, 0], "since the question before"
    assert third == {"0": [0.4, 0], "1": [0.0, 5000]}


def test_without_samples_the_last_value_counts_and_without_that_the_use_is_unknown(
    standin: Callable[..., Any], tmp_path: Path
) -> None:
    lines = ("gpu * fails nvmlDeviceGetSamples 3", "gpu 1 fails nvmlDeviceGetUtilizationRates 3", "gpu 0 util 70")
    assert used(standin, tmp_path, *lines)[-1] == {"0": [0.7, 0], "1": [None, 0]}


def test_the_use_of_mig_instances_is_unknown(standin: Callable[..., Any], tmp_path: Path) -> None:
    (found,) = used(standin, tmp_path, "gpu 0 util 70", model="a100-mig")
    assert found == {}


def test_a_gpu_that_has_fallen_off_the_bus_has_no_use(standin: Callable[..., Any], tmp_path: Path) -> None:
    before, after = used(standin, tmp_path, "gpu 1 util 50", "gpu 1 error 15")
    assert before["1"] == [0.5, 0]
    assert set(after) == {"0"}
