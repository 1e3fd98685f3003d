"""Findings of `elasticctl doctor` about GPUs: with the stand-in for the driver's library, broken in each way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticd.ctl.doctor import drivers, targets
from elasticd.ctl.doctor.checks import Finding, Outcome
from elasticd.ctl.doctor.targets import Machine, Subject, Target

Make = Callable[..., Any]
ELASTICCTL = str(Path(sys.executable).with_name("elasticctl"))


@pytest.fixture
def look(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """`look("nvml", server)`: the check's findings for a described server."""

    def run(name: str, server: Any, *arguments: str, **options: object) -> dict[str, str]:
        file = tmp_path / "agent.yaml"
        file.write_text(yaml.safe_dump({"server": "s1", "state_directory": str(tmp_path / "s"), **options}))
        environment = {
            **(os.environ if server is None else server.environment),
            "ELASTICCTL_DIR": str(tmp_path / "none"),
        }
        line = [ELASTICCTL, "doctor", str(file), "--json", "--only", name, *arguments]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120)
        (found,) = [each for each in json.loads(done.stdout)["checks"] if each["subject"] == "server"]
        assert done.returncode == (found["outcome"] == "failure")
        return dict(found)

    return run


@pytest.mark.cluster
def test_gpus_that_answer_are_counted_with_their_driver(standin: Make, look: Callable[..., dict[str, str]]) -> None:
    found = look("nvml", standin("a100"))
    assert found["outcome"] == "ok"
    assert found["found"].startswith("8x A100-SXM4-40GB (stand-in), driver 550.54.15")
    assert look("persistence", standin("v100"))["outcome"] == "ok"


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("line", "said", "remedy"),
    [
        ("init 18", "of different versions: it was updated and not loaded anew", "restart this server"),
        ("init 9", "the NVIDIA driver is not loaded", "modprobe nvidia"),
        ("init 4", "may not use the GPUs' device files", "0666"),
        ("gpu 2 error 15", "GPU 2 does not answer: a GPU has fallen off the bus", "restart this server"),
        ("gpu 1 fails nvmlDeviceGetUUID 999", "GPU 1 does not answer", "nvidia-smi"),
        ("gpu 0 fails nvmlDeviceGetMemoryInfo 16", "GPU 0 does not answer: a GPU needs a reset", "--gpu-reset"),
    ],
)
def test_what_is_wrong_with_driver_or_gpu_is_translated(
    standin: Make, look: Callable[..., dict[str, str]], line: str, said: str, remedy: str
) -> None:
    server = standin("a100")
    server.say(line)
    found = look("nvml", server)
    assert found["outcome"] == "failure"
    assert said in found["found"]
    assert remedy in found["remedy"]


def test_a_driver_that_hangs_is_a_finding(standin: Make, tmp_path: Path) -> None:
    server = standin("a100")
    server.say("gpu 0 slow 60000")
    program = f"""
import dataclasses, sys
from elasticd.ctl.doctor import command, drivers, targets
from elasticd.ctl.doctor.checks import Subject
check = dataclasses.replace(next(c for c in drivers.CHECKS.checks if c.name == "nvml"), limit_s=2.0)
machine = targets.Machine.here()
from pathlib import Path
Path("{tmp_path}/agent.yaml").write_text("server: s1")
daemon = targets._daemon(Path("{tmp_path}/agent.yaml"), "agent", machine)
target = targets.Target(Subject.SERVER, machine, sys.executable, daemon=daemon)
from elasticd.ctl.doctor.crowd import Crowd
(result,) = command.examined([(target, check)], lambda: Crowd(1, 1))
import json
print(json.dumps([result.finding.outcome.value, result.finding.found]))
"""
    outcome, found = server.run(program)
    assert (outcome, "no end within 2 s" in found) == ("failure", True)


@pytest.mark.cluster
def test_a_library_that_is_not_there_is_told(look: Callable[..., dict[str, str]]) -> None:
    found = look("nvml", None)
    assert found["outcome"] == "failure"
    assert "libnvidia-ml.so.1 is not there" in found["found"]
    assert "cannot open shared object file" in look("nvml", None, nvml_library="/nowhere/libnvidia-ml.so")["found"]
    assert look("nvml", None, cpu_slots=2)["outcome"] == "not applicable"


def machine(tmp_path: Path, *gpus: str, version: str = "", held: str = "") -> Machine:
    """A machine with these NVIDIA devices on its PCI bus."""
    sys_, proc, dev = tmp_path / "sys", tmp_path / "proc", tmp_path / "dev"
    for address in gpus:
        device = sys_ / "bus/pci/devices" / address
        device.mkdir(parents=True, exist_ok=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
        if held:
            (sys_ / "drivers" / held).mkdir(parents=True, exist_ok=True)
            (device / "driver").unlink(missing_ok=True)
            (device / "driver").symlink_to(sys_ / "drivers" / held)
    (proc / "driver/nvidia").mkdir(parents=True, exist_ok=True)
    if version:
        (proc / "driver/nvidia/version").write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Fri\n")
    dev.mkdir(exist_ok=True)
    return Machine({}, 0, "here", proc=proc, sys=sys_, dev=dev)


def at(tmp_path: Path, where: Machine, **options: object) -> Target:
    file = tmp_path / "agent.yaml"
    file.write_text(yaml.safe_dump({"server": "s1", **options}))
    daemon = targets._daemon(file, "agent", Machine.here())
    return Target(Subject.SERVER, where, sys.executable, daemon=daemon)


def test_gpus_without_a_driver_and_missing_device_files_are_told(tmp_path: Path) -> None:
    def look(where: Machine) -> Finding:
        return drivers.driver(at(tmp_path, where))

    assert "no NVIDIA GPU, and no driver" in look(machine(tmp_path)).found
    held = look(machine(tmp_path, "0000:01:00.0", "0000:02:00.0", held="nouveau"))
    assert (held.outcome, held.found) == (
        Outcome.FAILURE, "2 NVIDIA GPUs are here, and their driver is not loaded, nouveau holds them"
    )  # fmt: skip
    loaded = machine(tmp_path, "0000:01:00.0", version="550.54.15")
    assert "device files are missing" in look(loaded).found
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0"):
        (loaded.dev / name).write_text("")
        (loaded.dev / name).chmod(0o660)
    assert look(loaded).outcome is Outcome.WARNING
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0"):
        (loaded.dev / name).chmod(0o666)
    assert look(loaded).found == "NVIDIA 550.54.15, 2 GPUs on the bus"


def interpreter(tmp_path: Path, **told: object) -> str:
    """A Python interpreter that reports these facts about itself."""
    path = tmp_path / "python"
    found = {"version": "3.11.2", "elasticctl": "0.1.0", "torch": "2.4.0", "gloo": True, "nccl": True, **told}
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(found)}\nEND\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"cuda": ""}, "built for CPUs, and the server has GPUs"),
        ({"cuda": "13.0", "available": True}, "built for CUDA 13.0, and the driver knows CUDA 12.4 at most"),
        ({"cuda": "12.1", "available": False}, "the driver answers, and torch sees no GPU"),
        ({"cuda": "12.1", "available": True, "nccl": False}, "has no NCCL"),
        (
            {"cuda": "12.1", "available": True, "nccl_version": "2.28.5"},
            "NCCL 2.28.5 fails where a communicator is aborted",
        ),
        ({"cuda": "12.1", "available": True, "gloo": False}, "has no Gloo"),
        (
            {"cuda": "12.1", "available": True, "architectures": ["sm_90"]},
            "has no code for GPU 0 (compute capability 8.0)",
        ),
        ({"elasticctl": "", "elasticctl_error": "ModuleNotFoundError"}, "cannot load elasticctl"),
        ({"torch": "", "torch_error": "OSError: libcudart.so.12"}, "cannot load torch: OSError: libcudart.so.12"),
    ],
)
def test_a_torch_that_does_not_fit_is_told(
    standin: Make, look: Callable[..., dict[str, str]], tmp_path: Path, told: dict[str, object], said: str
) -> None:
    found = look("torch", standin("a100"), "--python", interpreter(tmp_path, **told))
    assert found["outcome"] == "failure"
    assert said in found["found"]


@pytest.mark.cluster
def test_a_torch_that_fits_is_ok_and_a_missing_one_a_warning(
    standin: Make, look: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    fits = interpreter(tmp_path, cuda="12.1", available=True, architectures=["sm_80"], nccl_version="2.20.5")
    found = look("torch", standin("a100"), "--python", fits)
    assert (found["outcome"], "CUDA 12.1, NCCL 2.20.5" in found["found"]) == ("ok", True)
    bare = interpreter(tmp_path, torch="", torch_error="ModuleNotFoundError: No module named 'torch'")
    assert look("torch", standin("a100"), "--python", bare)["outcome"] == "warning"


@pytest.mark.parametrize(
    ("built", "capability", "runs"),
    [
        (["sm_80"], (8, 6), True),
        (["sm_86"], (8, 0), False),
        (["sm_70", "sm_80"], (9, 0), False),
        (["sm_80", "compute_80"], (9, 0), True),
        (["sm_90a"], (9, 0), True),
        (["sm_120"], (12, 0), True),
    ],
)
def test_which_gpus_a_build_of_torch_serves(built: list[str], capability: tuple[int, int], runs: bool) -> None:
    assert drivers.runs_on(built, *capability) is runs


def test_versions_of_nccl_that_fail_after_an_abort_are_known() -> None:
    versions = ["2.26.2", "2.28.2", "2.28.3", "2.28.8", "2.28.9", "2.29.1", ""]
    assert [each for each in versions if drivers.aborts_badly(each)] == ["2.28.3", "2.28.8"]


def test_variables_that_hurt_are_told(tmp_path: Path) -> None:
    def look(**variables: str) -> Finding:
        return drivers.nccl_variables(at(tmp_path, Machine.here(), worker_environment=variables))

    assert look().outcome is Outcome.OK
    assert look(NCCL_SOCKET_IFNAME="^docker").outcome is Outcome.OK
    assert "there is no interface eth77" in look(NCCL_SOCKET_IFNAME="=eth77").found
    assert "over loopback no other server is reached" in look(GLOO_SOCKET_IFNAME="lo").found
    assert "GPUs do not talk to each other directly" in look(NCCL_P2P_DISABLE="1").found
    assert "results depend on the number of GPUs" in look(NCCL_NVLS_ENABLE="1").found
    assert look(NCCL_NVLS_ENABLE="0").outcome is Outcome.OK
    assert "the agent sets it for each worker" in look(CUDA_VISIBLE_DEVICES="0").found


def test_infiniband_beside_a_tunnel_is_a_failure_and_in_the_open_to_be_used(tmp_path: Path) -> None:
    (tmp_path / "sys/class/net/lo").mkdir(parents=True)
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    machine = replace(Machine.here(), sys=tmp_path / "sys")

    def look(kind: str, **variables: str) -> Finding:
        (tmp_path / "sys/class/net/lo/type").write_text(f"{kind}\n")
        return drivers.nccl_variables(at(tmp_path, machine, worker_environment=variables, address="127.0.0.1"))

    tunnel, card = "65534", "1"
    assert "in the tunnel lo, and NCCL uses the InfiniBand adapters beside it" in look(tunnel).found
    assert look(tunnel).outcome is look(tunnel, NCCL_IB_DISABLE="0").outcome is Outcome.FAILURE
    assert look(tunnel, NCCL_IB_DISABLE="1", NCCL_NET="Socket").outcome is Outcome.OK
    assert look(card).outcome is Outcome.OK
    assert "the InfiniBand adapters are not used" in look(card, NCCL_IB_DISABLE="1").found
