"""Settings of torch for repeatable results on the job's device (docs/design/gpus.md).

Where torch has a deterministic algorithm, the settings select it. Two kinds of operation are left: those that have
none, and attention on a GPU, whose deterministic backward pass is only selected if torch may raise errors instead of
warnings (`aten/src/ATen/native/transformers/cuda/attention_backward.cu`; cuDNN's attention is then left out,
`sdp_utils.cpp`). So errors are requested wherever an operation of the first kind could really differ: on GPUs, and on
processors with several threads. One thread of a processor adds in the order of the program, even for operations on
torch's list.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from types import TracebackType

import torch

from ..protocol.errors import UserError
from ..protocol.model import Determinism
from ..protocol.rehearsal import REMEDY
from ..protocol.variables import PINNED, REPEATABLE
from . import fixed_kernels
from .admission import NO_GROUP

# The message of torch 2.13: `at::Context::alertNotDeterministic`.
_REFUSED = re.compile(r"(\S+) does not have a deterministic implementation")
# Messages of torch.distributed for a collective, or a new group, in a worker that has joined.
_NO_GROUP = ("Default process group has not been initialized", "environment variable RANK expected, but not set")


def before_cuda(environ: MutableMapping[str, str]) -> None:
    """Set missing variables that cuBLAS reads at its first use. In a cluster the agent has set them.

    Without them torch refuses matrix products.
    """
    for name, value in REPEATABLE.items():
        environ.setdefault(name, value)


def ask_for(determinism: Determinism, device: torch.device) -> None:
    """Set torch's global settings according to a job's `determinism`.

    Memory is not filled before its first use, as torch does by default at the cost of a kernel for each `empty`: the
    runtime reads no memory that it has not written. A script that has itself enabled deterministic algorithms keeps its
    setting.
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


def check_repeatable(determinism: Determinism, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Raise UserError for an optimizer whose update has other bits in each run.

    On a processor, torch 2.13's fused SGD reads parts of a new momentum buffer of 16 bits before they are written.
    """
    if determinism is Determinism.NONE:
        return
    for group in (group for each in optimizers if isinstance(each, torch.optim.SGD) for group in each.param_groups):
        narrow = any(each.device.type == "cpu" and each.element_size() < 4 for each in group["params"])
        if narrow and group["fused"] and group["momentum"]:
            raise UserError(
                "SGD(fused=True, momentum=...) over parameters of 16 bits gives other bits in each run on a processor: leave "
                "fused=True out, or submit the job with `determinism: none`"
            )


def pin(environ: Mapping[str, str]) -> None:
    """Fix algorithms as far as torch can after its import, for equal bits on unlike hardware (EasyScale 3.3, D2).

    On a GPU: no TF32, no shortened sums in products of 16 bits, cuBLAS alone for products, and attention by products and a
    softmax instead of a kernel that is made for some types. Raises UserError if the process was not started with the
    variables that are read at import.
    """
    changed = [name for name, value in PINNED.items() if environ.get(name) != value]
    if changed:
        name = changed[0]
        raise UserError(
            f"`determinism: heterogeneous` needs {name}={PINNED[name]}, and it is {environ.get(name, 'not set')!r}: the agent "
            "sets it before the script starts, so a command around the script, or the script itself, has changed it"
        )
    fixed_kernels.install()
    cuda = torch.backends.cuda
    cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    cuda.matmul.allow_fp16_reduced_precision_reduction = cuda.matmul.allow_bf16_reduced_precision_reduction = False
    cuda.enable_flash_sdp(False)
    cuda.enable_mem_efficient_sdp(False)
    cuda.enable_cudnn_sdp(False)
    cuda.enable_math_sdp(True)
    if torch.cuda.is_available():
        cuda.preferred_blas_library("cublas")


def remedy(error: BaseException) -> str:
    """Return what to do about an operation that torch has refused as not deterministic, or for lack of a process group;
    else "".
    """
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
    """Return an error that has ended a script in one line, with its remedy if one is known."""
    return ": ".join(filter(None, (type(error).__name__, remedy(error) or str(error))))


class _Explaining:
    """Prints a script's last error as before, with the remedy below it."""

    def __init__(self) -> None:
        self._before = sys.excepthook

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if advice := remedy(error):
            error.add_note(f"{REMEDY}{advice}")
        self._before(kind, error, trace)
