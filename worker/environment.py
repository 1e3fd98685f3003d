"""Settings that the agent passes to a worker in its environment; read once, when the training script joins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from ..protocol.errors import OperatorError, UserError
from ..protocol.limits import COMPARE_EVERY
from ..protocol.model import Determinism, GpuKind, JobId, OnDivergence, Scaling, Sharding, WorkerId
from ..protocol.times import PAUSE_TIMEOUT_S
from ..protocol.variables import SUBMITTED_FROM
from .code import ANY
from .events import Limits, WorkerConfig


@dataclass(frozen=True)
class ClusterEnvironment:
    """A worker's place in a cluster, as `agent.environment` sets it."""

    job: JobId
    worker: WorkerId
    agent_address: str
    address: str  # IP address at which other workers reach this one
    gpu_kind: GpuKind
    virtual_workers: int
    determinism: Determinism
    checkpoint_directory: str
    checkpoint_every_s: float
    checkpoint_keep: int
    max_steps: int | None
    key: str = field(default="", repr=False)  # secret key (Z85) of the job, which all its workers share
    checkpoint_step: int | None = None  # the first holder must find a checkpoint of this step or of a later one
    limits: Limits = field(default_factory=Limits)
    gpu_index: int = 0  # of this worker's GPU among the visible ones
    compare_every: int = COMPARE_EVERY
    on_divergence: OnDivergence = OnDivergence.REPLACE
    results: str = ""  # base directory of relative paths of results; "": the working directory
    any_code: bool = False  # the job accepts any code (`code`)
    resume_from: str = ""  # a job without checkpoints begins with the newest one in this directory; "": from the start
    resume_any_code: bool = False  # accept a checkpoint of other code or data
    scaling: Scaling | None = None  # None: the job file does not allow it
    sharding: Sharding = Sharding.NONE

    def place(self, pid: int, address: str) -> WorkerConfig:
        """Return the part that the worker's machine needs. address: of its control socket."""
        return WorkerConfig(
            job=self.job,
            worker=self.worker,
            pid=pid,
            address=address,
            virtual_workers=self.virtual_workers,
            rehosts=self.determinism is not Determinism.STATIC,
            device=self.gpu_kind is GpuKind.CUDA,
            checkpoint_every_s=self.checkpoint_every_s,
            checkpoint_step=self.checkpoint_step,
            checkpoint_directory=self.checkpoint_directory,
            limits=self.limits,
        )


def read_cluster(environ: Mapping[str, str]) -> ClusterEnvironment | None:
    """Return the worker's place, or None outside a cluster.

    Raises OperatorError if the agent's variables are incomplete, UserError in a process that is no worker.
    """
    if "ELASTICD_WORKER" not in environ:
        return None
    if "ELASTICD_PER_SERVER" in environ:
        raise UserError(
            "elastic.join() needs one process for each GPU, and this job has one for each server, as launchers such as "
            "torchrun want it: submit `python train.py` itself, with `processes: per-gpu`"
        )
    if environ.get("ELASTIC_CODE", ANY) != ANY:
        raise UserError(
            f"ELASTIC_CODE is {environ['ELASTIC_CODE']!r}; it can be {ANY!r}, with which a job takes any code; or do not set it"
        )
    try:
        max_steps = environ.get("ELASTICD_MAX_STEPS")
        checkpoint_step = environ.get("ELASTICD_CHECKPOINT_STEP")
        scaling = environ.get("ELASTICD_SCALING")
        step_timeout_s = environ.get("ELASTICD_STEP_TIMEOUT_S")
        pause_timeout_s = environ.get("ELASTICD_PAUSE_TIMEOUT_S")
        return ClusterEnvironment(
            job=JobId(environ["ELASTICD_JOB"]),
            worker=WorkerId(environ["ELASTICD_WORKER"]),
            agent_address=environ["ELASTICD_AGENT"],
            address=environ["ELASTICD_ADDRESS"],
            key=environ["ELASTICD_KEY"],
            gpu_kind=GpuKind(environ["ELASTICD_GPU_KIND"]),
            virtual_workers=int(environ["ELASTICD_VIRTUAL_WORKERS"]),
            determinism=Determinism(environ["ELASTICD_DETERMINISM"]),
            checkpoint_directory=environ["ELASTICD_CHECKPOINT_DIRECTORY"],
            checkpoint_every_s=float(environ["ELASTICD_CHECKPOINT_EVERY_S"]),
            checkpoint_keep=int(environ["ELASTICD_CHECKPOINT_KEEP"]),
            max_steps=int(max_steps) if max_steps else None,
            gpu_index=int(environ.get("ELASTICD_GPU_INDEX", "0")),
            compare_every=int(environ.get("ELASTICD_COMPARE_EVERY", COMPARE_EVERY)),
            on_divergence=OnDivergence(environ.get("ELASTICD_ON_DIVERGENCE", OnDivergence.REPLACE.value)),
            checkpoint_step=int(checkpoint_step) if checkpoint_step else None,
            results=environ.get(SUBMITTED_FROM, ""),
            any_code="ELASTIC_CODE" in environ,
            resume_from=environ.get("ELASTICD_RESUME_FROM", ""),
            resume_any_code="ELASTICD_RESUME_ANY_CODE" in environ,
            scaling=msgspec.json.decode(scaling, type=Scaling) if scaling else None,
            sharding=Sharding(environ.get("ELASTICD_SHARDING", Sharding.NONE.value)),
            limits=Limits(
                step_timeout_s=float(step_timeout_s) if step_timeout_s else None,
                pause_timeout_s=float(pause_timeout_s) if pause_timeout_s else PAUSE_TIMEOUT_S,
            ),
        )
    except (KeyError, ValueError) as error:
        raise OperatorError(f"this worker was started with an incomplete environment: {error!r}") from None


def read_virtual_workers(environ: Mapping[str, str], given: int | None) -> int:
    """Return N outside a cluster: ELASTIC_VIRTUAL_WORKERS, else the script's number, else 1.

    Raises UserError for a bad number.
    """
    text = environ.get("ELASTIC_VIRTUAL_WORKERS")
    if text is not None:
        if not text.isdecimal() or int(text) < 1:
            raise UserError(f"ELASTIC_VIRTUAL_WORKERS is {text!r}; it must be a whole number of at least 1")
        return int(text)
    if given is not None and given < 1:
        raise UserError(f"virtual_workers is {given}; it must be at least 1")
    return given or 1
