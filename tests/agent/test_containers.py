"""Containers of workers: what a server needs for them, and podman's command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elasticd.agent.accounts import Account
from elasticd.agent.cgroups import Mounted
from elasticd.agent.containers import Containers
from elasticd.agent.environment import Surroundings, environment
from elasticd.protocol.messages import StartWorker
from elasticd.protocol.model import Gpu, GpuKind, GpuRange, JobId, JobSpec, ResumeFrom, WorkerId

GPU = Gpu(index=0, kind=GpuKind.CUDA, name="NVIDIA A100", uuid="GPU-7d5c")
SLOT = Gpu(index=0, kind=GpuKind.CPU, name="CPU slot")
UNIFIED = Mounted(unified=Path("/sys/fs/cgroup"), unified_controllers=True)
HYBRID = Mounted(unified=Path("/sys/fs/cgroup/unified"), old=(("memory", Path("/sys/fs/cgroup/memory")),))
ALICE = Account("alice", 1001, 1001, (), "/home/alice")
ROOT = Account("root", 0, 0, (), "/root")
AROUND = Surroundings("ipc:///run/agent/workers", "10.0.0.1", Path("/srv/checkpoints"), (GPU,), {"NCCL_DEBUG": "INFO"})


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory with all programs that containers need."""
    for name in ("podman", "crun", "runc", "newuidmap"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def start(command: tuple[str, ...] = ("python", "train.py"), **changes: object) -> StartWorker:
    spec = JobSpec(name="job", command=command, gpus=GpuRange(min=1, max=2), virtual_workers=2, workdir="/home/alice/run",
                   image="nvcr.io/nvidia/pytorch:24.01-py3", **changes)  # type: ignore[arg-type] # fmt: skip
    return StartWorker(job=JobId("job-1"), uid="0123456789abcdef", worker=WorkerId("job-1.0"), gpu=0, generation=1, spec=spec,
                       key="secret", account="alice")  # fmt: skip


def orders(means: Containers, order: StartWorker, account: Account = ALICE, cgroups: tuple[str, ...] = ()) -> dict:
    gpus = (GPU,) if means.cdi else (SLOT,)
    made = environment(order, GPU, AROUND, account, "/srv/s/abc")
    return means.orders(order, gpus, account, AROUND, made, Path("/srv/s/abc"), cgroups, 0o022)


def test_a_user_chooses_nothing_of_the_command_line_but_the_image() -> None:
    means = Containers(UNIFIED, ("/data:ro",), cdi=())
    order = start(("python", "--privileged", "-v", "/etc:/etc"), env={"PODMAN_USERNS": "host", "PATH": "/x"})
    found = orders(means, order)
    plain = orders(means, start())
    assert found["flags"] == plain["flags"]
    assert found["environment"] == plain["environment"] == {"HOME": "/home/alice", "USER": "alice", "PATH": means.path}
    assert {"--cap-drop=all", "--security-opt=no-new-privileges", "--network=host", "--user=0:0"} <= {*found["flags"]}
    mounts = [flag for flag in found["flags"] if flag.startswith("--mount=type=bind")]
    paths = {flag.split("src=")[1].split(",")[0] for flag in mounts}
    own = {"/home/alice/run", "/srv/s/abc", "/run/agent", "/tmp", "/dev/shm"}
    assert paths - own == {"/data", next(path for path in paths if path.startswith("/srv/checkpoints/alice/job-1"))}
    assert next(flag for flag in mounts if "/data" in flag).endswith(",ro")


def test_the_jobs_key_and_variables_are_for_the_container_alone() -> None:
    found = orders(Containers(UNIFIED, cdi=()), start(env={"TOKEN": "hidden"}))
    inside = found.pop("inside")
    assert (inside["environment"]["ELASTICD_KEY"], inside["environment"]["TOKEN"]) == ("secret", "hidden")
    assert "secret" not in json.dumps(found)
    assert "hidden" not in json.dumps(found)


def test_variables_of_the_image_count_unless_the_job_sets_them() -> None:
    made = orders(Containers(UNIFIED, cdi=()), start())["inside"]["environment"]
    assert not {"PATH", "HOME", "USER", "PYTHONPATH"} & made.keys()
    assert made["NCCL_DEBUG"] == "INFO"
    assert (
        orders(Containers(UNIFIED, cdi=()), start(env={"PATH": "/opt/bin"}))["inside"]["environment"]["PATH"]
        == "/opt/bin"
    )


@pytest.mark.parametrize(
    ("mounted", "account", "wanted"),
    [
        (UNIFIED, ALICE, ["--pid=host", "--cgroups=no-conmon", "--group-add=keep-groups"]),
        (UNIFIED, ROOT, ["--cgroups=disabled"]),
        (HYBRID, ALICE, ["--pid=host", "--cgroups=no-conmon"]),
        (HYBRID, ROOT, ["--pid=host", "--cgroups=no-conmon", "--cgroup-parent=/groups/elasticctl-1/w"]),
    ],
)
def test_a_container_stays_in_the_workers_control_group(mounted: Mounted, account: Account, wanted: list[str]) -> None:
    flags = orders(Containers(mounted, cdi=()), start(), account, ("/groups/elasticctl-1/w",))["flags"]
    about = [flag for flag in flags if flag.startswith(("--pid", "--cgroup", "--group"))]
    assert about == wanted


def test_gpus_come_by_the_uuids_of_a_cdi_file(tmp_path: Path, programs: Path) -> None:
    means = Containers(UNIFIED, cdi=(tmp_path / "cdi",), path=str(programs))
    assert "names GPU 0 by its UUID" in means.unavailable([GPU], False)
    with pytest.raises(OSError, match="names all of its GPUs"):
        orders(means, start())
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi" / "other.yaml").write_text("kind: [")
    (tmp_path / "cdi" / "nvidia.yaml").write_text("kind: nvidia.com/gpu\ndevices:\n- name: '0'\n- name: GPU-7d5c\n")
    assert means.unavailable([GPU], False) == ""
    assert "--device=nvidia.com/gpu=GPU-7d5c" in orders(means, start())["flags"]
    assert means.unavailable([SLOT], False) == ""


def test_a_server_says_what_it_lacks(programs: Path) -> None:
    def why(mounted: Mounted, others: bool = True) -> str:
        return Containers(mounted, cdi=(), path=str(programs)).unavailable([SLOT], others)

    assert why(UNIFIED) == "" or "the agent runs with NoNewPrivileges" in why(UNIFIED)
    (programs / "newuidmap").unlink()
    assert "newuidmap is not installed" in why(UNIFIED)
    (programs / "runc").unlink()
    assert "runc is not installed, which podman needs with control groups of version 1" in why(HYBRID)
    (programs / "podman").unlink()
    assert why(UNIFIED) == "podman is not installed"


def test_a_directory_whose_name_podman_would_split_is_not_mounted() -> None:
    resume = ResumeFrom(directory="/home/alice/a,rw")
    with pytest.raises(ValueError, match="cannot be mounted in a container"):
        orders(Containers(UNIFIED, cdi=()), start(resume=resume))


def test_image_stores_of_the_machine_are_used_as_well(tmp_path: Path) -> None:
    storage = tmp_path / "storage.conf"
    storage.write_text('[storage.options]\nadditionalimagestores = ["/shared/images", "relative"]\n')
    assert orders(Containers(UNIFIED, cdi=(), storage=storage), start())["stores"] == ",/shared/images"
    storage.write_text("[[")
    assert orders(Containers(UNIFIED, cdi=(), storage=storage), start())["stores"] == ""
