"""Kernels with one result on all x86 processors, in place of those that depend on the processor (EasyScale 3.3, D2).

Some functions of Intel's vector library, which torch calls for them, begin with the processor's approximation of 1/x or
1/sqrt(x) (`rcpps`, `rsqrtps`). Vendors approximate differently, and the error is not always rounded away: `torch.sqrt`
differs in the last bit of one number in six from the exact root, and with it each step of Adam. `MKL_CBWR` does not
help here. NumPy's functions are used instead: its square root is the processor's own, which IEEE 754 defines; the others
are those of the C library, whose choice of instructions `protocol.variables.PINNED` fixes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

FUNCTIONS: dict[str, Any] = {
    "sqrt": np.sqrt,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "tan": np.tan,
    "atan": np.arctan,
}
_NUMPY_LACKS = frozenset({torch.bfloat16, torch.float16, torch.complex32})  # or computes them in another precision

_libraries: list[torch.library.Library] = []  # kernels exist as long as their library does


def install() -> None:
    """Replace these kernels in this process, for tensors on a CPU. A second call does nothing."""
    if _libraries:
        return
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of each replaced kernel
        for name, function in FUNCTIONS.items():
            compute = partial(_computed, function)
            kernels: dict[str, Callable[..., torch.Tensor]] = {
                name: compute,
                f"{name}_": partial(_in_place, compute),
                f"{name}.out": partial(_to, compute),
            }
            for overload, kernel in kernels.items():
                library.impl(overload, kernel, "CPU", allow_override=True)  # type: ignore[no-untyped-call]
    _libraries.append(library)


def _computed(function: Any, given: torch.Tensor) -> torch.Tensor:
    dtype = given.dtype if given.is_floating_point() or given.is_complex() else torch.get_default_dtype()
    exact = torch.float32 if dtype in _NUMPY_LACKS else dtype
    values = given.detach().to(exact).resolve_conj().resolve_neg()
    with np.errstate(all="ignore"):
        found = torch.from_numpy(np.asarray(function(values.numpy())))
    return found.to(dtype)


def _in_place(compute: Callable[[torch.Tensor], torch.Tensor], given: torch.Tensor) -> torch.Tensor:
    return given.copy_(compute(given))


def _to(compute: Callable[[torch.Tensor], torch.Tensor], given: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    found = compute(given)
    return out.resize_(found.shape).copy_(found)
