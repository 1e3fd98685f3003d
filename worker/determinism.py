"""Asking torch for results that repeat, on the device that a job has (docs/design/gpus.md).

Where torch has a deterministic algorithm it takes that one. Two kinds of operation are left: those that have none, and attention
on a GPU, whose deterministic backward pass is only taken where torch may raise errors instead of warnings
(`aten/src/ATen/native/transformers/cuda/attention_backward.cu`; cuDNN's attention is then left out, `sdp_utils.cpp`). So errors
are asked for wherever an operation of the first kind could really differ: on GPUs, and on processors with several threads. One
thread of a processor adds in the order of the program, whatever torch's list says.
"""

from __future__ import annotations

import re
import sys
from collections.abc import MutableMapping
from types import TracebackType

import torch

from ..protocol.model import Determinism
from ..protocol.variables import REPEATABLE
from .admission import NO_GROUP

# As torch 2.13 words it: `at::Context::alertNotDeterministic`.
_REFUSED = re.compile(r"(\S+) does not have a deterministic implementation")
# As torch.distributed words it where a script calls a collective, or makes a group, in a worker that has joined.
_NO_GROUP = ("Default process group has not been initialized", "environment variable RANK expected, but not set")


def before_cuda(environ: MutableMapping[str, str]) -> None:
    """Complete what cuBLAS reads when it is first used. In a cluster the agent has done so; torch refuses matrix products
    without it."""
    for name, value in REPEATABLE.items():
        environ.setdefault(name, value)


def ask_for(determinism: Determinism, device: torch.device) -> None:
    """Set torch's global settings as a job's `determinism` wants them.

    Memory is not filled before its first use, which torch does besides by default and which costs a kernel for each `empty`: the
    runtime reads none that it has not written. A script that has itself asked for deterministic algorithms keeps its setting.
    """
    if determinism is Determinism.NONE:
        return
    if not torch.are_deterministic_algorithms_enabled():
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    in_order = device.type == "cpu" and torch.get_num_threads() == 1
    torch.use_deterministic_algorithms(True, warn_only=in_order)
    torch.backends.cudnn.benchmark = False
    if not isinstance(sys.excepthook, _Explaining):
        sys.excepthook = _Explaining()


def remedy(error: BaseException) -> str:
    """What to do about an operation that torch has refused as not deterministic, or for want of a process group; empty if `error`
    is something else."""
    if isinstance(error, ValueError) and any(each in str(error) for each in _NO_GROUP):
        return NO_GROUP
    found = _REFUSED.search(str(error)) if isinstance(error, RuntimeError) else None
    if found is None:
        return ""
    return (
        f"{found[1]} has no deterministic algorithm here, so the job's result would depend on chance: use another operation, or "
        "submit the job with `determinism: none`, or, if this operation alone may differ, call "
        "torch.use_deterministic_algorithms(True, warn_only=True) before it and torch.use_deterministic_algorithms(True) after it"
    )


def described(error: BaseException) -> str:
    """An error that has ended a script, in one line, with its remedy if we know one."""
    return ": ".join(filter(None, (type(error).__name__, remedy(error) or str(error))))


class _Explaining:
    """Prints a script's last error as before, and below it what to do."""

    def __init__(self) -> None:
        self._before = sys.excepthook

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if advice := remedy(error):
            error.add_note(f"elasticctl: {advice}")
        self._before(kind, error, trace)
