"""Which worker may be forked from which warm process, purely (worker-runtime 9).

A process that has imported torch has made up its mind about everything that acts at that time: which interpreter it is, how
many threads OpenMP starts, which instruction set a library uses. So a worker may be forked only from a process of the same
interpreter in which the same variables have the same values, only as the user who runs it, and only where it is: a job that
has a /tmp of its own has warm processes of its own. `WarmKey` is all four. All other variables, the arguments and the
directory are the worker's own. Whatever is not certain to come out the same is executed in the ordinary way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Variables that the interpreter, the dynamic linker, the C library or a library reads once, at its start.
IMPORT_TIME_PREFIXES = (
    *("PYTHON", "LD_", "GLIBC_", "MALLOC_", "LC_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "VECLIB_", "NUMEXPR_", "NPY_", "NUMPY_"),
    *("ATEN_", "ONEDNN_", "DNNL_", "TORCH", "PYTORCH_", "TRITON_", "KINETO_", "CUDA_", "C10_"),
)
IMPORT_TIME_NAMES = frozenset({"LANG", "LANGUAGE", "HOME"})  # HOME: where packages of the user are looked for
AT_FIRST_USE = frozenset(  # read after the fork: when CUDA starts; when torch.distributed.elastic records an exception
    {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "TORCHELASTIC_ERROR_FILE"}
)

_PYTHON = re.compile(r"python(3(\.[0-9]+)?)?")


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter as found on the disk. Its names may differ (python, python3): the last two fields tell it apart."""

    path: str  # as exec finds it: what sys.executable will be
    directory: str  # where it is, without links: this is what decides between virtual environments
    binary: str  # without links


@dataclass(frozen=True)
class WarmKey:
    """Workers with equal keys may be forked from one process."""

    directory: str
    binary: str
    variables: tuple[tuple[str, str], ...]
    user: int = -1  # whose process it is
    room: str = ""  # of one job, whose /tmp and /dev/shm it sees (`rooms`); "": the machine's


@dataclass(frozen=True)
class Launch:
    """A command that a warm process can carry out."""

    module: bool
    name: str  # of the module, or the script's path
    arguments: tuple[str, ...]


def import_time_variables(environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Those of `environment` that act when torch is imported, by name."""
    return tuple(
        (name, value)
        for name, value in sorted(environment.items())
        if (name.startswith(IMPORT_TIME_PREFIXES) or name in IMPORT_TIME_NAMES) and name not in AT_FIRST_USE
    )


def key_of(interpreter: Interpreter, environment: Mapping[str, str], user: int = -1, room: str = "") -> WarmKey:
    return WarmKey(interpreter.directory, interpreter.binary, import_time_variables(environment), user, room)


def parse(command: Sequence[str], environment: Mapping[str, str]) -> Launch | None:
    """What `command` runs, if it is ``python [-u] SCRIPT.py ...`` or ``python [-u] -m MODULE ...``; else None."""
    program, *rest = command
    if not _PYTHON.fullmatch(program.rpartition("/")[2]) or not _certain(environment):
        return None
    if rest[:1] == ["-u"]:
        if not environment.get("PYTHONUNBUFFERED"):  # the warm process writes as the variable says
            return None
        rest = rest[1:]
    match rest:
        case ["-m", name, *arguments] if name and not name.startswith("-"):
            return Launch(True, name, tuple(arguments))
        case [name, *arguments] if name.endswith(".py") and not name.startswith("-"):
            return Launch(False, name, tuple(arguments))
    return None


def _certain(environment: Mapping[str, str]) -> bool:
    """Whether the interpreter's start depends on nothing but the variables' text: relative paths mean the directory too."""
    paths = environment.get("PYTHONPATH", "")
    relative = bool(paths) and not all(path.startswith("/") for path in paths.split(":"))
    return not relative and not environment.get("PYTHONINSPECT")
