"""Check that this process may join: only the process that the cluster, or a person at a desk, has started for training
may.

All processes that a worker starts inherit its environment. A data loader's process that is spawned imports the script
again; without a guard around the script's work, each would join in place of its parent. Two processes of a launcher
would do the same, and outside a cluster each would train on its own, unaware of the other. All of these are refused
where they call `elastic.join()`.

A worker that has joined puts its process id into the variable `JOINED`, for processes that it starts later. Processes
between the cluster and the script (a shell, `uv run`, `conda run`) have not joined, and so do not matter.

At its start a job's processes have the variables of a gang, as under torchrun, since it is unknown whether the script
will join. A framework that saw them would start a process group of its own: `leave_gang` removes them.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from multiprocessing import process
from pathlib import Path
from typing import Any

import torch

from ..protocol.errors import UserError
from ..protocol.variables import GANG

JOINED = "ELASTICD_JOINED"
WORKER = "ELASTICD_WORKER"
KEY = "ELASTICD_KEY"
GUARD = 'if __name__ == "__main__":'
# Variables of each launcher's processes: one that only this launcher sets, and the number of processes.
LAUNCHERS = {
    "torchrun, or a launcher like it,": ("TORCHELASTIC_RUN_ID", "WORLD_SIZE"),
    "srun": ("SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "mpiexec": ("PMI_RANK", "PMI_SIZE"),
}
# outside a cluster; the agent of a cluster sets these variables itself
ANY_LAUNCHER = ("a launcher", ("RANK", "WORLD_SIZE"))

NO_GROUP = (
    "the workers of an elastic job come and go, so there is no process group, and what a script gathers or reduces in one would "
    "depend on their number. Gradients are reduced by the runtime. For losses over the whole global batch write "
    "run.gather(tensor) with prepare(…, gathers=True), for averages run.mean(loss=loss), for decisions run.agree(value). A "
    "script that stays as it is for torchrun is submitted for a fixed number of GPUs, without elastic.join()"
)


@dataclass(frozen=True)
class Process:
    """Facts about the start of this process."""

    pid: int
    name: str = "MainProcess"  # name in `multiprocessing`
    spawned: bool = False  # it imports the script again, for a process that the script has started
    child: bool = False  # `multiprocessing` has started it

    @classmethod
    def present(cls, pid: int) -> Process:
        """Return the description of this process."""
        own = process.current_process()
        # multiprocessing uses the same attribute to detect a script without a guard
        spawned = bool(getattr(own, "_inheriting", False))
        return cls(pid, own.name, spawned, process.parent_process() is not None)


def check_process(environ: Mapping[str, str], own: Process) -> None:
    """Raise UserError, with the line to write or the command to submit, in a process that is not the worker."""
    joined = environ.get(JOINED, "")
    if own.spawned:
        raise UserError(
            f"elastic.join() was called in {own.name}, a process that the script has started and that imports the script anew: "
            f"put what the script does under `{GUARD}`, so that it is done in the worker alone"
        )
    if WORKER in environ and joined == str(own.pid) and not own.child:
        raise UserError(
            "elastic.join() was called twice in one process: a job is one training, so call it once and use the run that it gives"
        )
    if WORKER in environ and (own.child or joined not in ("", str(own.pid))):
        raise UserError(
            f"elastic.join() was called in a process that the worker has started ({own.name}, number {own.pid}), and is not the "
            f"worker: call it once, in the script itself, under `{GUARD}`"
        )
    if (found := launcher(environ)) is not None:
        name, count = found
        raise UserError(
            f"elastic.join() was called in one of {count} processes that {name} has started, and needs none: the cluster starts "
            "one process for each GPU, and outside a cluster one process trains all virtual workers. Start the script with "
            f"`python train.py`; in a cluster `elasticctl submit --gpus 1:{count} --virtual-workers {count} -- python train.py`"
        )


def check_group() -> None:
    """Raise UserError if the script has created a process group of several processes."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        raise UserError(f"torch.distributed.init_process_group() was called: {NO_GROUP}")


def check_guard(context: Any) -> None:
    """Raise UserError if processes that read data would import the script again, and it has no guard.

    context: as a DataLoader takes it.
    """
    method = context if isinstance(context, str) else (context or multiprocessing).get_start_method(allow_none=True)
    method = method or multiprocessing.get_all_start_methods()[0]  # asking for the default would fix it
    main = sys.modules.get("__main__")
    path, name = getattr(main, "__file__", None), getattr(getattr(main, "__spec__", None), "name", "")
    # a package's main module, which multiprocessing does not import
    if method == "fork" or path is None or name.endswith(".__main__"):
        return
    try:
        text = Path(path).read_text(errors="replace")
    except OSError:
        return
    if "__name__" not in text:
        raise UserError(
            f"num_workers= with {method!r} starts processes that import {Path(path).name} anew, and would train there too: "
            f"put what the script does under `{GUARD}`"
        )


def launcher(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the launcher that has started this process among several, and their number; None without one."""
    known = list(LAUNCHERS.items())
    if WORKER not in environ:
        known.append(ANY_LAUNCHER)
    for name, (mark, count) in known:
        if mark in environ and (number := _number(environ.get(count))) > 1:
            return name, number
    given = gang_variables(environ)
    if "WORLD_SIZE" in given and (number := _number(environ.get("WORLD_SIZE"))) > 1:
        others = [name for name in ("RANK", "WORLD_SIZE") if environ.get(name) != given.get(name)]
        return ("a launcher", number) if others else None
    return None


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0


def gang_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables, with values, that the agent has set so that a gang's processes find each other."""
    words = environ.get(GANG, "").split()
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def take_key(environ: MutableMapping[str, str]) -> None:
    """Remove the job's key, which has been read, from the environment: the workers trust every process that has it.

    The variable exists until the process joins, since a shell or `uv run` may stand between the cluster and the script.
    """
    environ.pop(KEY, None)


def leave_gang(environ: MutableMapping[str, str]) -> None:
    """Remove the gang's variables: the process is a worker of an elastic job. Variables that the job has set stay."""
    for name, value in gang_variables(environ).items():
        if environ.get(name) == value:
            del environ[name]
    environ.pop(GANG, None)
