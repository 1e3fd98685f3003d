"""Environment variables of a worker, built from scratch: none of the agent's own are passed on. Pure.

Later sources take precedence: defaults, the operator's `worker_environment` of this server, the job's variables, the cluster's,
and the variables that the job's determinism fixes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ..protocol.messages import StartWorker
from ..protocol.model import Determinism, Gpu, GpuKind, Processes, ResumeFrom
from ..protocol.variables import EAGER_FROM_BYTES, GANG, JOINERS_ENVIRONMENT, NCCL_ENVIRONMENT, PINNED, REPEATABLE
from . import cuda_devices
from .accounts import Account
from .firstline._elasticd_seeds import SEED
from .logfiles import directory_name

IMAGES_OWN = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
)  # defaults of a plain worker that are the image's matter in a container
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FIRST_LINE = str(Path(__file__).with_name("firstline"))  # a directory with a `sitecustomize` that seeds generators


@dataclass(frozen=True)
class Surroundings:
    """Facts and settings of a server that go into the environment of all its workers."""

    agent_address: str  # of the workers' socket
    address: str  # IP address of the server
    checkpoints: Path
    gpus: tuple[Gpu, ...]
    variables: Mapping[str, str] = field(default_factory=dict)  # set by the operator for all workers of this server
    cpus: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # near a GPU, by its index
    interface: str = ""  # network interface with `address` (looked up again at each start); "": none

    def checkpoints_of(self, start: StartWorker, account: Account) -> Path:
        """Return the checkpoint directory of a worker's job. Raises PeerError if the job's name is invalid."""
        return self.checkpoints_for(account) / directory_name(start.job, start.uid)

    def checkpoints_for(self, account: Account) -> Path:
        """Return the directory for all jobs of an account: each account has its own, closed to other accounts."""
        return self.checkpoints if account.own else self.checkpoints / account.name

    def agent_address_for(self, account: Account) -> str:
        """Return the address of the socket for an account's workers."""
        return self.agent_address if account.own else f"{self.agent_address}-{account.uid}"

    def cpus_of(self, start: StartWorker) -> tuple[int, ...]:
        """Return the CPUs near all GPUs of a process; () if they are unknown for one of its GPUs."""
        near = [self.cpus.get(index, ()) for index in start.gpus or (start.gpu,)]
        return tuple(sorted({cpu for each in near for cpu in each})) if all(near) else ()

    def gpu(self, index: int) -> Gpu | None:
        return next((gpu for gpu in self.gpus if gpu.index == index), None)


def common_environment(around: Surroundings, account: Account, scratch: str = "/tmp") -> dict[str, str]:
    """Return the defaults for every worker of an account on this server, which the job may override."""
    names = {"USER": account.name, "LOGNAME": account.name} if account.name else {}
    return {
        "PATH": DEFAULT_PATH,
        "HOME": account.home,
        **names,
        "LANG": "C.UTF-8",
        "TMPDIR": scratch,
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",  # the same order of sets on all servers; forked workers inherit it from their warm process
        "THP_MEM_ALLOC_ENABLE": "1",  # huge pages in torch: the first touch of memory costs a fifth of the time
        **_network(around.interface),
        **around.variables,
    }


def without_images_own(made: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return a worker's variables without those that an image has itself, unless they were `given`."""
    return {name: value for name, value in made.items() if name not in IMAGES_OWN or name in given}


def _network(interface: str) -> dict[str, str]:
    """Pin NCCL, and Gloo where a script starts it itself, to the training network. By default they may choose any network."""
    return {"NCCL_SOCKET_IFNAME": f"={interface}", "GLOO_SOCKET_IFNAME": interface} if interface else {}


def visible_gpus(start: StartWorker) -> tuple[int, ...]:
    """Return the GPUs that a process sees. One of a gang that is not expected to call `elastic.join()` sees all of its job's on
    this server, as under torchrun: scripts choose their GPU by LOCAL_RANK."""
    if start.gpus:
        return start.gpus
    if start.rendezvous is not None and not start.spec.expected_to_join:
        return start.rendezvous.local
    return (start.gpu,)


def _shown(start: StartWorker, around: Surroundings) -> tuple[int, ...]:
    """Return those of the same GPUs that CUDA can show to one process. Raises ValueError where it cannot show all it needs."""
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
    """Return the rendezvous variables of torch.distributed for a process of a gang. The job's own variables take precedence.

    shown: the GPUs that this process sees.
    """
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
    """Return the seed for random numbers drawn before `elastic.join()`: equal for all workers and attempts of a job, different
    between jobs. paths: the worker's PYTHONPATH otherwise. Processes of a gang that does not join are not seeded."""
    if not start.spec.expected_to_join:
        return {}
    seeds = start.spec.resume.seeds if start.spec.resume is not None else ""
    digest = hashlib.blake2b((seeds or f"{start.job} {start.uid}").encode(), digest_size=8).digest()
    seed = {SEED: str(int.from_bytes(digest, "big") >> 1)}
    if start.spec.image:  # `container_init` adds the directory in the image
        return seed
    return {**seed, "PYTHONPATH": f"{FIRST_LINE}:{paths}" if paths else FIRST_LINE}


def without_first_line(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without the seeding directory, so that a seeded worker can use the same warm process as others."""
    paths = environment.get("PYTHONPATH", "")
    if paths == FIRST_LINE:
        return {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    return {**environment, **({"PYTHONPATH": rest} if (rest := paths.removeprefix(f"{FIRST_LINE}:")) != paths else {})}


def _before_cuda(start: StartWorker, gpu: Gpu) -> Mapping[str, str]:
    """Return the variables that CUDA and NCCL read once, at start. Scripts that do not join keep NCCL's own watchdog: without
    it they would wait forever for a lost peer."""
    joins = start.rendezvous is None or start.spec.expected_to_join
    if not joins or gpu.kind is not GpuKind.CUDA:
        return {}
    awaited = start.generation > 1 and gpu.memory_bytes >= EAGER_FROM_BYTES
    return {**NCCL_ENVIRONMENT, **(JOINERS_ENVIRONMENT if awaited else {})}


def environment(start: StartWorker, gpu: Gpu, around: Surroundings, account: Account, scratch: str) -> dict[str, str]:
    """Return all variables of a worker. scratch: its directory for temporary files. Raises PeerError for an invalid name, and
    ValueError where CUDA cannot show one process all of its GPUs."""
    spec = start.spec
    shown = _shown(start, around)
    seen = [each for index in shown if (each := around.gpu(index)) is not None]
    cuda = gpu.kind is GpuKind.CUDA
    meeting = _meeting(start, shown)
    repeatable = {} if spec.determinism is Determinism.NONE else REPEATABLE
    common = common_environment(around, account, scratch)
    if spec.image:
        common = without_images_own(common, around.variables)
    made = {
        **repeatable,
        **_before_cuda(start, gpu),
        **common,
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
        "ELASTICD_SHARDING": spec.sharding.value,
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
        made["ELASTICD_KEY"] = start.key  # not for a launcher: its processes cannot join, but would all inherit the key
    if len(seen) > 1:
        made["ELASTICD_GPU_INDEX"] = str(shown.index(start.gpu))
    if spec.max_steps is not None:
        made["ELASTICD_MAX_STEPS"] = str(spec.max_steps)
    if spec.scaling is not None:
        made["ELASTICD_SCALING"] = msgspec.json.encode(spec.scaling).decode()
    if spec.step_timeout_s is not None:
        made["ELASTICD_STEP_TIMEOUT_S"] = repr(spec.step_timeout_s)
    if start.checkpoint_step is not None:
        made["ELASTICD_CHECKPOINT_STEP"] = str(start.checkpoint_step)
    if spec.resume is not None:
        made |= _resumed_from(spec.resume, around.checkpoints_for(account))
    if spec.determinism is Determinism.HETEROGENEOUS:
        made |= PINNED
    return made


def beside(start: StartWorker, gpu: Gpu, around: Surroundings, account: Account, scratch: str) -> dict[str, str]:
    """Return the variables of a command that runs beside a worker: the worker's, without those by which a process speaks as the
    worker, joins its group or writes its records. Raises as `environment` does."""
    made = without_first_line(environment(start, gpu, around, account, scratch))
    private = {*_meeting(start, _shown(start, around)), "TORCHELASTIC_ERROR_FILE"} - set(start.spec.env)
    return {name: value for name, value in made.items() if name not in private and not name.startswith("ELASTICD_")}


def _resumed_from(resume: ResumeFrom, checkpoints: Path) -> dict[str, str]:
    """Return the variables that name the checkpoint to resume from. checkpoints: of all jobs of the account. Raises PeerError
    if the job's name is invalid."""
    directory = resume.directory or str(checkpoints / directory_name(resume.job, resume.uid))
    return {"ELASTICD_RESUME_FROM": directory, **({"ELASTICD_RESUME_ANY_CODE": "1"} if resume.any_code else {})}
