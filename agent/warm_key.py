"""Rules for the warm process from which a worker may be forked. Pure (worker-runtime 9).

A process that has imported torch has fixed everything that is decided at import: the interpreter, the number of OpenMP threads,
the instruction sets of libraries. So a worker is forked only from a process with the same interpreter, the same values of
import-time variables, the same user, and the same room: a job with its own /tmp has its own warm processes. `WarmKey` holds these
four. All other variables, the arguments and the directory are the worker's own. A worker that might turn out different after a
fork is executed in the ordinary way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Variables that the interpreter, the dynamic linker, the C library or a library reads once, at start.
IMPORT_TIME_PREFIXES = (
    *("PYTHON", "LD_", "GLIBC_", "MALLOC_", "LC_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "VECLIB_", "NUMEXPR_", "NPY_", "NUMPY_"),
    *("ATEN_", "ONEDNN_", "DNNL_", "TORCH", "PYTORCH_", "TRITON_", "KINETO_", "CUDA_", "C10_"),
)
IMPORT_TIME_NAMES = frozenset({"LANG", "LANGUAGE", "HOME"})  # HOME: the user's site-packages lie there
AT_FIRST_USE = frozenset(  # read after the fork: when CUDA starts, or torch.distributed.elastic records an exception
    {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "TORCHELASTIC_ERROR_FILE"}
)

_PYTHON = re.compile(r"python(3(\.[0-9]+)?)?")


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter on disk. Several names (python, python3) may lead to it: the last two fields identify it."""

    path: str  # as exec finds it, and so sys.executable
    directory: str  # with links resolved; distinguishes virtual environments
    binary: str  # with links resolved


@dataclass(frozen=True)
class WarmKey:
    """Identity of a warm process: workers with equal keys may be forked from one process."""

    directory: str
    binary: str
    variables: tuple[tuple[str, str], ...]
    user: int = -1  # Unix user id of the process
    room: str = ""  # of the job with the /tmp and /dev/shm that the process sees (`rooms`); "": the machine's


@dataclass(frozen=True)
class Launch:
    """A command that a warm process can run."""

    module: bool
    name: str  # of the module, or path of the script
    arguments: tuple[str, ...]


def import_time_variables(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the variables in `environment` that take effect when torch is imported, sorted by name."""
    return tuple(
        (name, value)
        for name, value in sorted(environment.items())
        if (name.startswith(IMPORT_TIME_PREFIXES) or name in IMPORT_TIME_NAMES) and name not in AT_FIRST_USE
    )


def key_of(interpreter: Interpreter, environment: Mapping[str, str], user: int = -1, room: str = "") -> WarmKey:
    return WarmKey(interpreter.directory, interpreter.binary, import_time_variables(environment), user, room)


def parse(command: Sequence[str], environment: Mapping[str, str]) -> Launch | None:
    """Parse ``python [-u] SCRIPT.py ...`` or ``python [-u] -m MODULE ...``; None for any other command."""
    program, *rest = command
    if not _PYTHON.fullmatch(program.rpartition("/")[2]) or not _certain(environment):
        return None
    if rest[:1] == ["-u"]:
        if not environment.get("PYTHONUNBUFFERED"):  # buffering follows that variable in a forked worker
            return None
        rest = rest[1:]
    match rest:
        case ["-m", name, *arguments] if name and not name.startswith("-"):
            return Launch(True, name, tuple(arguments))
        case [name, *arguments] if name.endswith(".py") and not name.startswith("-"):
            return Launch(False, name, tuple(arguments))
    return None


def _certain(environment: Mapping[str, str]) -> bool:
    """Return whether the variables determine the interpreter's start alone: relative paths also depend on the directory."""
    paths = environment.get("PYTHONPATH", "")
    relative = bool(paths) and not all(path.startswith("/") for path in paths.split(":"))
    return not relative and not environment.get("PYTHONINSPECT")
