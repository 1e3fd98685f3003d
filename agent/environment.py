"""The variables of a worker, purely. From scratch: nothing of the daemon's own environment is in them.

Later ones win: what every worker gets, what the operator has set for this server (`worker_environment`), what the job has
set, what the cluster says, and what the job's determinism pins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..protocol.messages import StartWorker
from ..protocol.model import Determinism, Gpu, GpuKind, Processes, ResumeFrom
from ..protocol.variables import EAGER_FROM_BYTES, GANG, JOINERS_ENVIRONMENT, NCCL_ENVIRONMENT, REPEATABLE
from . import cuda_devices
from .accounts import Account
from .firstline._elasticd_seeds import SEED
from .logfiles import directory_name

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FIRST_LINE = str(Path(__file__).with_name("firstline"))  # a directory with a `sitecustomize`, which seeds

# Worker-runtime 3, D2: on CPUs the same kernels on all servers, whatever these set. The tests show that bits differ without them.
PINNED = {
    **REPEATABLE,
    "OMP_NUM_THREADS": "1",  # sums are split by threads
    "MKL_NUM_THREADS": "1",  # the same; where it is set it goes before OMP_NUM_THREADS
    "ATEN_CPU_CAPABILITY": "default",  # torch's own kernels, random numbers too: longer vectors add in another order
    "MKL_CBWR": "COMPATIBLE",  # matrix products: the one code path that every x86 processor has, whoever made it
    "ONEDNN_MAX_CPU_ISA": "SSE41",  # convolutions and some activations
    "OPENBLAS_NUM_THREADS": "1",  # NumPy's matrix products in the data pipeline
    "OPENBLAS_CORETYPE": "Nehalem",  # the same, as on the smallest processor that torch runs on
}


@dataclass(frozen=True)
class Surroundings:
    """What all workers of a server are told."""

    agent_address: str  # of the workers' socket
    address: str  # IP address of the server
    checkpoints: Path
    gpus: tuple[Gpu, ...]
    variables: Mapping[str, str] = field(default_factory=dict)  # the operator's, for all workers of this server
    cpus: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # near a GPU, by its index
    interface: str = ""  # of the network, that has `address` (looked up again at each start); "": none has

    def checkpoints_of(self, start: StartWorker, account: Account) -> Path:
        """Of a worker's job. Raises PeerError if its name is none."""
        return self.checkpoints_for(account) / directory_name(start.job, start.uid)

    def checkpoints_for(self, account: Account) -> Path:
        """Of all jobs of an account: where several accounts write, each has a directory that is closed to the others."""
        return self.checkpoints if account.own else self.checkpoints / account.name

    def agent_address_for(self, account: Account) -> str:
        """Of the socket for an account's workers."""
        return self.agent_address if account.own else f"{self.agent_address}-{account.uid}"

    def cpus_of(self, start: StartWorker) -> tuple[int, ...]:
        """Near all GPUs of a process; empty: of one of them that is not known."""
        near = [self.cpus.get(index, ()) for index in start.gpus or (start.gpu,)]
        return tuple(sorted({cpu for each in near for cpu in each})) if all(near) else ()

    def gpu(self, index: int) -> Gpu | None:
        return next((gpu for gpu in self.gpus if gpu.index == index), None)


def common_environment(around: Surroundings, account: Account, scratch: str = "/tmp") -> dict[str, str]:
    """What every worker of an account gets on this server, unless its job says otherwise."""
    names = {"USER": account.name, "LOGNAME": account.name} if account.name else {}
    return {
        "PATH": DEFAULT_PATH,
        "HOME": account.home,
        **names,
        "LANG": "C.UTF-8",
        "TMPDIR": scratch,
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",  # the order of sets, the same on all servers; a warm process has it for all that it forks
        "THP_MEM_ALLOC_ENABLE": "1",  # torch asks for large pages: memory used for the first time costs a fifth
        **_network(around.interface),
        **around.variables,
    }


def _network(interface: str) -> dict[str, str]:
    """Where training talks: NCCL, and Gloo where a script starts it by itself. Left alone, they choose any network."""
    return {"NCCL_SOCKET_IFNAME": f"={interface}", "GLOO_SOCKET_IFNAME": interface} if interface else {}


def visible_gpus(start: StartWorker) -> tuple[int, ...]:
    """The GPUs that a process sees. One of a gang that is not expected to call `elastic.join()` sees all of its job's on this
    server, as under torchrun: scripts choose theirs by LOCAL_RANK."""
    if start.gpus:
        return start.gpus
    if start.rendezvous is not None and not start.spec.expected_to_join:
        return start.rendezvous.local
    return (start.gpu,)


def _shown(start: StartWorker, around: Surroundings) -> tuple[int, ...]:
    """Those of the same that CUDA shows a process. Raises ValueError where one process is to use several and cannot."""
    wanted, own = visible_gpus(start), around.gpu(start.gpu)
    found = [gpu for index in wanted if (gpu := around.gpu(index)) is not None]
    if own is None or len(found) < len(wanted):
        return wanted
    shown = cuda_devices.shown(own, found)
    if start.spec.processes is Processes.PER_SERVER and len(shown) < len(wanted):
        raise ValueError(
            f"CUDA shows a process one part of a divided GPU (MIG), and the job's launcher has {len(wanted)} GPUs here, parts "
            "among them: submit the script itself with `processes: per-gpu`, or ask for whole GPUs with `type`"
        )
    return tuple(gpu.index for gpu in shown)


def _meeting(start: StartWorker, shown: Sequence[int]) -> dict[str, str]:
    """How the processes of a gang find each other, in the words of torch.distributed; the job's own variables go before these.
    shown: the GPUs that this process sees."""
    found = start.rendezvous
    if found is None:
        return {}
    made = {"MASTER_ADDR": found.address, "MASTER_PORT": str(found.port)}
    if start.spec.processes is Processes.PER_SERVER:
        nodes, node = found.servers, found.server
        torchrun = {
            "PET_NNODES": str(nodes),
            "PET_NODE_RANK": str(node),
            "PET_NPROC_PER_NODE": str(len(shown)),
            "PET_MASTER_ADDR": found.address,
            "PET_MASTER_PORT": str(found.port),
            "PET_RDZV_ID": start.worker.rpartition(".")[0],
            "PET_RDZV_ENDPOINT": f"{found.address}:{found.port}",
        }
        return {**made, **torchrun, "NODE_RANK": str(node), "NNODES": str(nodes)}
    own = shown.index(start.gpu)
    alone = len(shown) == 1
    node = found.process if alone else found.server
    return {
        **made,
        "RANK": str(found.process),
        "WORLD_SIZE": str(found.processes),
        "LOCAL_RANK": str(own),
        "LOCAL_WORLD_SIZE": str(len(shown)),
        "NODE_RANK": str(node),
        "GROUP_RANK": str(node),
        "NNODES": str(found.processes if alone else found.servers),
    }


def _equal_from_the_first_line(start: StartWorker, paths: str) -> dict[str, str]:
    """The seed of what a script draws before it joins: all workers of a job have one, in every attempt, and each job another.
    paths: the PYTHONPATH that the worker has otherwise. Processes of a gang that does not join draw as they like."""
    if not start.spec.expected_to_join:
        return {}
    seeds = start.spec.resume.seeds if start.spec.resume is not None else ""
    digest = hashlib.blake2b((seeds or f"{start.job} {start.uid}").encode(), digest_size=8).digest()
    return {
        SEED: str(int.from_bytes(digest, "big") >> 1),
        "PYTHONPATH": f"{FIRST_LINE}:{paths}" if paths else FIRST_LINE,
    }


def without_first_line(environment: Mapping[str, str]) -> dict[str, str]:
    """As the variables would be without the directory that seeds: in what it imports, a worker does not differ from others."""
    paths = environment.get("PYTHONPATH", "")
    if paths == FIRST_LINE:
        return {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    return {**environment, **({"PYTHONPATH": rest} if (rest := paths.removeprefix(f"{FIRST_LINE}:")) != paths else {})}


def _before_cuda(start: StartWorker, gpu: Gpu) -> Mapping[str, str]:
    """What CUDA and NCCL read once, when they start. Scripts that do not join have the library's own answer to a lost peer:
    without its watchdog they would wait for ever."""
    joins = start.rendezvous is None or start.spec.expected_to_join
    if not joins or gpu.kind is not GpuKind.CUDA:
        return {}
    awaited = start.generation > 1 and gpu.memory_bytes >= EAGER_FROM_BYTES
    return {**NCCL_ENVIRONMENT, **(JOINERS_ENVIRONMENT if awaited else {})}


def environment(start: StartWorker, gpu: Gpu, around: Surroundings, account: Account, scratch: str) -> dict[str, str]:
    """All variables of a worker. `scratch`: its directory for temporary files. Raises PeerError, and ValueError where CUDA cannot
    show one process all of its GPUs."""
    spec = start.spec
    shown = _shown(start, around)
    seen = [each for index in shown if (each := around.gpu(index)) is not None]
    cuda = gpu.kind is GpuKind.CUDA
    meeting = _meeting(start, shown)
    repeatable = {} if spec.determinism is Determinism.NONE else REPEATABLE
    made = {
        **repeatable,
        **_before_cuda(start, gpu),
        **common_environment(around, account, scratch),
        **(cuda_devices.ORDER if cuda else {}),
        **meeting,
        "TORCHELASTIC_ERROR_FILE": f"{scratch}/elasticd-error.json",
        **spec.env,
        "ELASTICD_JOB": start.job,
        "ELASTICD_WORKER": start.worker,
        "ELASTICD_AGENT": around.agent_address_for(account),
        "ELASTICD_ADDRESS": around.address,
        "ELASTICD_GPU_KIND": gpu.kind.value,
        "ELASTICD_VIRTUAL_WORKERS": str(spec.virtual_workers),
        "ELASTICD_DETERMINISM": spec.determinism.value,
        "ELASTICD_COMPARE_EVERY": str(spec.compare_every),
        "ELASTICD_ON_DIVERGENCE": spec.on_divergence.value,
        "ELASTICD_CHECKPOINT_DIRECTORY": str(around.checkpoints_of(start, account)),
        "ELASTICD_CHECKPOINT_EVERY_S": repr(spec.checkpoint.every_s),
        "ELASTICD_CHECKPOINT_KEEP": str(spec.checkpoint.keep),
        "ELASTICD_PAUSE_TIMEOUT_S": repr(spec.pause_timeout_s),
        "CUDA_VISIBLE_DEVICES": cuda_devices.listed(seen) if cuda else "",
    }
    made |= _equal_from_the_first_line(start, made.get("PYTHONPATH", ""))
    gang = [f"{name}={value}" for name, value in meeting.items() if name not in spec.env]
    if gang:
        made[GANG] = " ".join(gang)
    if spec.processes is Processes.PER_SERVER:
        made["ELASTICD_PER_SERVER"] = "1"
    else:
        made["ELASTICD_KEY"] = start.key  # a launcher's processes cannot join, and all that they start would have it
    if len(seen) > 1:
        made["ELASTICD_GPU_INDEX"] = str(shown.index(start.gpu))
    if spec.max_steps is not None:
        made["ELASTICD_MAX_STEPS"] = str(spec.max_steps)
    if spec.step_timeout_s is not None:
        made["ELASTICD_STEP_TIMEOUT_S"] = repr(spec.step_timeout_s)
    if start.checkpoint_step is not None:
        made["ELASTICD_CHECKPOINT_STEP"] = str(start.checkpoint_step)
    if spec.resume is not None:
        made |= _resumed_from(spec.resume, around.checkpoints_for(account))
    if spec.determinism is Determinism.HETEROGENEOUS:
        made |= PINNED
    return made


def _resumed_from(resume: ResumeFrom, checkpoints: Path) -> dict[str, str]:
    """`checkpoints`: of all jobs of its account. Raises PeerError if it names no job."""
    directory = resume.directory or str(checkpoints / directory_name(resume.job, resume.uid))
    return {"ELASTICD_RESUME_FROM": directory, **({"ELASTICD_RESUME_ANY_CODE": "1"} if resume.any_code else {})}
