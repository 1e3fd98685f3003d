"""Environment variables of workers, and the effect of the pinned ones on results."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from elasticd.agent.accounts import Account, myself
from elasticd.agent.environment import FIRST_LINE, Surroundings, environment, without_first_line
from elasticd.agent.topology import interface_of
from elasticd.protocol.errors import UserError
from elasticd.protocol.messages import Rendezvous, StartWorker
from elasticd.protocol.model import Determinism, Gpu, GpuKind, GpuRange, JobId, JobSpec, Processes, WorkerId
from elasticd.protocol.variables import JOINERS_ENVIRONMENT, NCCL_ENVIRONMENT, PINNED
from elasticd.worker.environment import read_cluster

SLOT = Gpu(index=0, kind=GpuKind.CPU, name="CPU slot")
CARD = Gpu(index=3, kind=GpuKind.CUDA, name="card", uuid="GPU-1")

UID = "ab" * 8
OTHER_JOBS = (("digits-2", 0, 1, UID), ("digits-1", 0, 1, "cd" * 8))
USER = Account("u", 1000, 1000, (), "/home/u")


def made(
    determinism: Determinism = Determinism.ELASTIC,
    server: Mapping[str, str] | None = None,
    job: Mapping[str, str] | None = None,
    gpu: Gpu = SLOT,
    checkpoint_step: int | None = None,
    step_timeout_s: float | None = None,
    generation: int = 1,
) -> dict[str, str]:
    around = Surroundings(
        agent_address="ipc:///a",
        address="10.0.0.1",
        checkpoints=Path("/c"),
        gpus=(SLOT, CARD),
        variables=server or {},
        interface="eth0",
    )
    spec = JobSpec(
        name="digits",
        command=("python", "train.py"),
        gpus=GpuRange(min=1, max=2),
        virtual_workers=2,
        workdir="/",
        env=dict(job or {}),
        determinism=determinism,
        step_timeout_s=step_timeout_s,
    )
    start = StartWorker(
        job=JobId("digits-1"),
        worker=WorkerId("digits-1.0"),
        gpu=gpu.index,
        spec=spec,
        generation=generation,
        checkpoint_step=checkpoint_step,
    )
    return environment(start, gpu, around, USER, "/scratch")


def test_the_job_goes_before_the_server_and_the_cluster_before_both() -> None:
    server = {"NCCL_SOCKET_IFNAME": "eth1", "OMP_NUM_THREADS": "4", "LANG": "C"}
    got = made(server=server, job={"OMP_NUM_THREADS": "8", "ELASTICD_JOB": "forged", "CUDA_VISIBLE_DEVICES": "all"})
    assert (got["NCCL_SOCKET_IFNAME"], got["OMP_NUM_THREADS"], got["LANG"]) == ("eth1", "8", "C")
    assert (got["ELASTICD_JOB"], got["CUDA_VISIBLE_DEVICES"]) == ("digits-1", "")
    assert made(gpu=CARD)["CUDA_VISIBLE_DEVICES"] == "GPU-1"


def test_all_workers_of_a_job_begin_with_one_seed_and_each_job_with_another() -> None:
    def start(job: str, worker: int, generation: int, uid: str, restarts: int | None = None) -> dict[str, str]:
        spec = JobSpec(name="digits", command=("python", "train.py"), gpus=GpuRange(min=1, max=1), virtual_workers=2,
                       workdir="/", restarts=restarts, env={"PYTHONPATH": "/lib"})  # fmt: skip
        around = Surroundings(agent_address="ipc:///a", address="10.0.0.1", checkpoints=Path("/c"), gpus=(SLOT,))
        order = StartWorker(job=JobId(job), worker=WorkerId(f"{job}.{worker}"), gpu=0, spec=spec,
                            generation=generation, uid=uid)  # fmt: skip
        return environment(order, SLOT, around, USER, "/scratch")

    first, later = start("digits-1", 0, 1, UID), start("digits-1", 3, 9, UID)
    assert first["ELASTICD_SEED"] == later["ELASTICD_SEED"]
    assert len({first["ELASTICD_SEED"], *(start(*each)["ELASTICD_SEED"] for each in OTHER_JOBS)}) == 3
    assert first["PYTHONPATH"] == f"{FIRST_LINE}:/lib"
    assert without_first_line(first)["PYTHONPATH"] == "/lib"
    assert "PYTHONPATH" not in without_first_line(made())
    gang = start("digits-1", 0, 1, UID, restarts=0)
    assert ("ELASTICD_SEED" in gang, gang["PYTHONPATH"], gang["PYTHONHASHSEED"]) == (False, "/lib", "0")


def test_the_hash_seed_is_one_for_all_jobs_unless_a_job_or_a_server_says_another() -> None:
    assert made()["PYTHONHASHSEED"] == "0"
    assert made(server={"PYTHONHASHSEED": "3"})["PYTHONHASHSEED"] == "3"
    assert made(server={"PYTHONHASHSEED": "3"}, job={"PYTHONHASHSEED": "4"})["PYTHONHASHSEED"] == "4"


@pytest.mark.parametrize("determinism", Determinism)
@pytest.mark.parametrize("generation", [1, 2])
def test_nvswitches_add_nothing_where_bits_count(determinism: Determinism, generation: int) -> None:
    got = made(determinism, gpu=CARD, generation=generation)
    assert got.get("NCCL_NVLS_ENABLE") == (None if determinism is Determinism.NONE else "0")


@pytest.mark.parametrize("determinism", Determinism)
def test_the_workspace_of_cublas_is_fixed_unless_the_job_wants_speed_alone(determinism: Determinism) -> None:
    assert ("CUBLAS_WORKSPACE_CONFIG" in made(determinism)) == (determinism is not Determinism.NONE)
    for ours in ({"server": {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}}, {"job": {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}}):
        expected = ":4096:8" if determinism is Determinism.HETEROGENEOUS else ":16:8"
        assert made(determinism, **ours)["CUBLAS_WORKSPACE_CONFIG"] == expected


def test_what_cuda_and_nccl_read_once_is_there_before_they_start_and_others_values_win() -> None:
    assert NCCL_ENVIRONMENT.items() <= made(gpu=CARD).items()
    assert not NCCL_ENVIRONMENT.keys() & made(gpu=SLOT).keys()
    for ours in ({"server": {"NCCL_RUNTIME_CONNECT": "1"}}, {"job": {"NCCL_RUNTIME_CONNECT": "1"}}):
        expected = {**NCCL_ENVIRONMENT, "NCCL_RUNTIME_CONNECT": "1"}
        assert expected.items() <= made(gpu=CARD, **ours).items()


def test_a_worker_that_joins_others_loads_all_kernels_before_where_the_gpu_has_room_for_them() -> None:
    large = replace(CARD, memory_bytes=80 << 30)
    assert JOINERS_ENVIRONMENT.items() <= made(gpu=large, generation=2).items()
    for few in (made(gpu=large), made(gpu=replace(CARD, memory_bytes=16 << 30), generation=2), made(generation=2)):
        assert not JOINERS_ENVIRONMENT.keys() & few.keys()
    assert made(gpu=large, generation=2, job={"CUDA_MODULE_LOADING": "LAZY"})["CUDA_MODULE_LOADING"] == "LAZY"


def test_a_worker_is_told_its_jobs_limits() -> None:
    got = made()
    assert "ELASTICD_STEP_TIMEOUT_S" not in got
    assert got["ELASTICD_PAUSE_TIMEOUT_S"] == "3600.0"
    assert made(step_timeout_s=90.0)["ELASTICD_STEP_TIMEOUT_S"] == "90.0"


def test_what_is_pinned_is_pinned_whatever_server_and_job_say() -> None:
    contrary = dict.fromkeys(PINNED, "otherwise")
    assert PINNED.items() <= made(Determinism.HETEROGENEOUS, contrary, contrary).items()
    assert not PINNED.items() & made(Determinism.ELASTIC, contrary, contrary).items()


def test_a_worker_is_told_the_checkpoint_that_there_must_be_and_no_job_can_say_it_instead() -> None:
    assert "ELASTICD_CHECKPOINT_STEP" not in made()
    told = made(job={"ELASTICD_CHECKPOINT_STEP": "7"}, checkpoint_step=50)
    assert told["ELASTICD_CHECKPOINT_STEP"] == "50"


OPERATIONS = """
import hashlib, json, numpy, torch
from torch.nn import functional as F
random = numpy.random.default_rng(1)
def data(*shape):  # not from torch, whose normal numbers depend on the instruction set
    return torch.from_numpy(random.standard_normal(shape, dtype="f4"))
def digest(tensor):
    return hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).hexdigest()
weight = data(32, 16, 3, 3).requires_grad_()
image = F.conv2d(data(8, 16, 28, 28), weight)
(image * image).sum().backward()
a, b = random.standard_normal((2, 300, 300), dtype="f4")
print(json.dumps({
    "conv2d": digest(image), "conv2d backward": digest(weight.grad), "matmul": digest(data(300, 500) @ data(500, 400)),
    "layer_norm": digest(F.layer_norm(data(512, 768), (768,))), "gelu": digest(F.gelu(data(100_000))),
    "softmax": digest(F.softmax(data(512, 1001), -1)), "sum": digest(data(1_000_000).sum()),
    "randn": digest(torch.randn(1000, generator=torch.Generator().manual_seed(1))),
    "inverse": digest(torch.linalg.inv(data(60, 60))),
    "numpy": digest(torch.from_numpy(a @ b)),
}))
"""

LARGE = {
    "OMP_NUM_THREADS": "2",
    "MKL_NUM_THREADS": "2",
    "OPENBLAS_NUM_THREADS": "2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
}
SMALL = {
    "OMP_NUM_THREADS": "1",
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OPENBLAS_CORETYPE": "Nehalem",
}


def computed(determinism: Determinism, server: Mapping[str, str]) -> dict[str, str]:
    """The results of a worker on a server with these variables."""
    command = [sys.executable, "-c", OPERATIONS]
    return json.loads(subprocess.run(command, env=made(determinism, server), capture_output=True, check=True).stdout)


@pytest.mark.cluster
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the variables name instruction sets of x86")
def test_on_servers_that_compute_differently_only_a_heterogeneous_job_gets_the_same_bits() -> None:
    large, small = (computed(Determinism.ELASTIC, server) for server in (LARGE, SMALL))
    assert [name for name in large if large[name] == small[name]] == []
    assert computed(Determinism.HETEROGENEOUS, LARGE) == computed(Determinism.HETEROGENEOUS, SMALL)


def test_training_talks_over_the_interface_that_has_the_servers_address_unless_the_operator_names_another() -> None:
    got = made()
    assert (got["NCCL_SOCKET_IFNAME"], got["GLOO_SOCKET_IFNAME"]) == ("=eth0", "eth0")
    assert made(server={"NCCL_SOCKET_IFNAME": "ib0"})["NCCL_SOCKET_IFNAME"] == "ib0"


def test_the_interface_of_an_address_is_found() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.77") == interface_of("no address") == ""


# --------------------------------------------------------------------------------------------------------------------- gangs


def of_gang(processes: Processes = Processes.PER_GPU, restarts: int | None = 0, gpus: tuple[int, ...] = ()) -> Any:
    """Environment of the first process on the second of two servers, where the job has GPUs 1 and 2."""
    spec = JobSpec(
        name="run",
        command=("python", "train.py"),
        gpus=GpuRange(min=4, max=4),
        virtual_workers=4,
        workdir="/tmp",
        processes=processes,
        restarts=restarts,
    )
    meeting = Rendezvous(
        process=2 if not gpus else 1,
        processes=4 if not gpus else 2,
        server=1,
        servers=2,
        address="10.0.0.1",
        port=4711,
        local=(1, 2),
    )
    return StartWorker(
        job=JobId("run-1"), worker=WorkerId("run-1.2"), gpu=1, spec=spec, generation=1, rendezvous=meeting, gpus=gpus
    )


def variables(start: Any) -> dict[str, str]:
    gpus = tuple(Gpu(index=i, kind=GpuKind.CUDA, name="A100", uuid=f"GPU-{i}") for i in range(4))
    around = Surroundings(agent_address="ipc://a", address="10.0.0.2", checkpoints=Path("/tmp/c"), gpus=gpus)
    return environment(start, gpus[start.gpu], around, myself(), "/tmp")


def test_a_process_of_a_gang_finds_the_others_as_under_torchrun() -> None:
    made = variables(of_gang())
    wanted = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "1"}
    assert {name: made[name] for name in wanted} == wanted
    assert (made["MASTER_ADDR"], made["MASTER_PORT"]) == ("10.0.0.1", "4711")
    assert made["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"


def test_a_process_that_is_expected_to_join_sees_its_own_gpu_alone() -> None:
    made = variables(of_gang(restarts=None))
    assert (made["CUDA_VISIBLE_DEVICES"], made["LOCAL_RANK"], made["RANK"]) == ("GPU-1", "0", "2")


def in_parts(start: Any, *uuids: str) -> dict[str, str]:
    gpus = tuple(Gpu(index=i, kind=GpuKind.CUDA, name="A100", uuid=uuid) for i, uuid in enumerate(uuids))
    around = Surroundings(agent_address="ipc://a", address="10.0.0.2", checkpoints=Path("/tmp/c"), gpus=gpus)
    return environment(start, gpus[start.gpu], around, myself(), "/tmp")


def test_a_process_of_a_gang_sees_its_own_part_of_a_divided_gpu_alone() -> None:
    """CUDA would use the first entry of the list, whatever LOCAL_RANK is (pytorch #102715)."""
    for start, own in ((of_gang(), "MIG-1"), (msgspec.structs.replace(of_gang(), gpu=2), "GPU-2")):
        made = in_parts(start, "MIG-0", "MIG-1", "GPU-2")
        wanted = {
            "CUDA_VISIBLE_DEVICES": own,
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "RANK": "2",
            "WORLD_SIZE": "4",
        }
        assert {name: made[name] for name in wanted} == wanted
        assert "ELASTICD_GPU_INDEX" not in made


def test_a_launcher_that_cannot_see_all_parts_of_divided_gpus_is_refused_with_what_to_write() -> None:
    start = of_gang(Processes.PER_SERVER, gpus=(1, 2))
    with pytest.raises(ValueError, match=r"one part of a divided GPU .* 2 GPUs here.* `processes: per-gpu`"):
        in_parts(start, "MIG-0", "MIG-1", "GPU-2")
    assert in_parts(of_gang(Processes.PER_SERVER, gpus=(1,)), "MIG-0", "MIG-1")["CUDA_VISIBLE_DEVICES"] == "MIG-1"


def test_the_gpus_of_a_process_have_entries_of_one_kind_in_the_order_of_the_job() -> None:
    """CUDA stops reading at an entry of another kind (pytorch #90543)."""
    assert in_parts(of_gang(), "GPU-0", "GPU-1", "")["CUDA_VISIBLE_DEVICES"] == "1,2"
    backwards = of_gang(Processes.PER_SERVER, gpus=(2, 1))
    made = in_parts(backwards, "GPU-0", "GPU-1", "GPU-2")
    assert (made["CUDA_VISIBLE_DEVICES"], made["ELASTICD_GPU_INDEX"]) == ("GPU-2,GPU-1", "1")


def test_cuda_counts_gpus_as_everybody_else_does_unless_the_operator_or_the_job_says_otherwise() -> None:
    assert made(gpu=CARD)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "CUDA_DEVICE_ORDER" not in made(gpu=SLOT)
    assert made(gpu=CARD, job={"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


def test_torchrun_is_told_where_its_fellows_are() -> None:
    made = variables(of_gang(Processes.PER_SERVER, gpus=(1, 2)))
    assert "ELASTICD_KEY" not in made, "none of its processes can join"
    assert "ELASTICD_KEY" in variables(of_gang())
    assert (made["PET_NNODES"], made["PET_NODE_RANK"], made["PET_NPROC_PER_NODE"]) == ("2", "1", "2")
    assert (made["PET_MASTER_ADDR"], made["PET_MASTER_PORT"]) == ("10.0.0.1", "4711")
    assert made["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"
    assert "RANK" not in made
    with pytest.raises(UserError, match="one process for each GPU"):
        read_cluster(made)


def test_a_job_that_has_joined_gets_no_such_variables() -> None:
    made = variables(msgspec.structs.replace(of_gang(), rendezvous=None))
    assert "RANK" not in made
    assert made["CUDA_VISIBLE_DEVICES"] == "GPU-1"


def test_a_script_that_does_not_join_keeps_the_watchdog_that_ends_it_when_a_peer_is_lost() -> None:
    assert not NCCL_ENVIRONMENT.keys() & variables(of_gang()).keys()
    assert not NCCL_ENVIRONMENT.keys() & variables(of_gang(Processes.PER_SERVER, gpus=(1, 2))).keys()
    assert NCCL_ENVIRONMENT.items() <= variables(of_gang(restarts=None)).items()
