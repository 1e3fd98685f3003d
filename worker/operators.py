"""Has each operator of a training script one algorithm on all hardware (EasyScale 3.3, D2)? Found out before training.

Under `determinism: heterogeneous` the operators of the first loop body are traced, forward and backward, before any
update. If all have one algorithm, the job may use GPUs of several types at once. Otherwise it stays on the type on
which it began; on CPUs, which have no types, it is refused. Every worker traces, so a job that resumes is judged anew.

On CPUs (x86), operators of torch itself have one algorithm: `protocol.variables.PINNED` and `fixed_kernels` see to it, and
`verification/processors` compares them on emulated processors. Exceptions:

* matrix products and convolutions in 16 bits, for which torch asks the processor whether oneDNN can help;
* `pow` with the exponent 0.5, least squares and quantized operators, whose libraries ask the processor;
* operators of other libraries, of which nothing is known.

On GPUs, torch can fix no algorithm of cuBLAS and cuDNN: both choose by the GPU. Reductions and random numbers
are divided by the number of its multiprocessors, and functions such as exp use approximations in hardware. What is left:
copies, and arithmetic that IEEE 754 defines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..protocol.errors import UserError
from .events import OperatorsTraced

NAMED = 5  # operators in the sentence
_SHORT = frozenset({torch.bfloat16, torch.float16})
_BY_PROCESSOR = frozenset({"linalg_lstsq", "_int_mm", "_weight_int8pack_mm", "_weight_int4pack_mm_for_cpu"})
_PRODUCTS = ("mm", "bmm", "mv", "linear", "convolution", "scaled_dot_product", "rnn", "lstm", "gru")  # parts of names
_COPIES_AND_ARITHMETIC = """
    add sub rsub mul div neg abs relu threshold threshold_backward maximum minimum clamp clamp_min clamp_max where
    masked_fill eq ne lt le gt ge logical_and logical_or logical_not bitwise_and bitwise_or bitwise_not isnan isinf
    sign copy clone detach alias view _unsafe_view _reshape_alias reshape expand permute transpose t slice select
    split split_with_sizes chunk unbind unsqueeze squeeze stack cat narrow flatten as_strided slice_backward
    select_backward index index_select gather embedding arange zeros ones full empty empty_like empty_strided
    new_empty new_empty_strided zeros_like ones_like full_like new_zeros new_ones new_full fill zero lift_fresh
    _to_copy constant_pad_nd repeat flip roll tril triu sqrt reciprocal item _local_scalar_dense is_same_size set
    resize new_empty_like contiguous
"""
_EXACT = frozenset(_COPIES_AND_ARITHMETIC.split())


class Traced(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context in which operators are noted. `found`: those without one algorithm, in the order of their first call."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._depends = _on_gpu if device.type == "cuda" else _on_cpu
        self._known: dict[Any, bool] = {}
        self.found: dict[str, None] = {}
        self.count = 0  # of different operators

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        namespace, name = func.namespace, func._schema.name.rpartition("::")[2]
        values = [*_flat(args), *_flat(given.values())]
        short = any(isinstance(each, torch.Tensor) and each.dtype in _SHORT for each in values)
        key = (
            func,
            short,
            args[1] if name == "pow" and len(args) > 1 and not isinstance(args[1], torch.Tensor) else None,
        )
        if key not in self._known:
            self._known[key] = True
            self.count += 1
            if self._depends(namespace, name.rstrip("_"), short, args):
                plain = name.strip("_") if namespace == "aten" else f"{namespace}::{name}"
                self.found[f"{plain} in 16 bits" if short and namespace == "aten" else plain] = None
        return func(*args, **given)


def described(found: Iterable[str]) -> str:
    """Return the names for a sentence: "addmm, convolution and 3 more"."""
    names = list(found)
    if len(names) <= NAMED:
        return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"


def _flat(values: Iterable[Any]) -> Iterable[Any]:
    for each in values:
        if isinstance(each, list | tuple):
            yield from each
        else:
            yield each


def _on_cpu(namespace: str, name: str, short: bool, args: tuple[Any, ...]) -> bool:
    """Return whether an operator's result may depend on the processor."""
    if namespace != "aten":
        return namespace not in ("prim", "prims", "profiler")
    if name == "pow" and len(args) > 1 and not isinstance(args[1], torch.Tensor):
        return bool(args[1] == 0.5)
    return name in _BY_PROCESSOR or "quantize" in name or (short and any(each in name for each in _PRODUCTS))


def _on_gpu(namespace: str, name: str, short: bool, args: tuple[Any, ...]) -> bool:
    """Return whether an operator's result may depend on the type of GPU."""
    return namespace not in ("prim", "prims", "profiler") and not (namespace == "aten" and name in _EXACT)


class Scan:
    """Trace of the first loop body of this process, if the job's determinism requires it."""

    def __init__(self, wanted: bool, device: torch.device, tell: Callable[[OperatorsTraced], None]) -> None:
        self._due = wanted
        self._device = device
        self._tell = tell
        self._traced: Traced | None = None

    def body_begins(self) -> None:
        """Begin to trace operators, in the first loop body, when the script is about to get a batch."""
        if self._due:
            self._due = False
            self._traced = Traced(self._device)
            self._traced.__enter__()  # type: ignore[no-untyped-call]

    def body_ends(self) -> None:
        """End the trace when the script has computed a gradient, before any update.

        Raises UserError on a CPU for an operator without one algorithm."""
        traced, self._traced = self._traced, None
        if traced is None:
            return
        traced.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        if not traced.found:
            held = (
                f"determinism: heterogeneous holds: the {traced.count} operators of this model have one algorithm each"
            )
            self._tell(OperatorsTraced(True, f"{held} on all processors" if self._device.type == "cpu" else held))
            return
        have = f"{described(traced.found)} {'has' if len(traced.found) == 1 else 'have'} no algorithm that is the same on all"
        if self._device.type == "cpu":
            raise UserError(
                f"`determinism: heterogeneous` does not hold for this model: {have} processors. Submit it with `determinism: "
                "elastic` to servers with equal processors, or write the model without"
            )
        self._tell(
            OperatorsTraced(
                False,
                f"determinism: heterogeneous does not hold across GPU types for this model: {have} GPUs. The job stays "
                "on the type on which it began",
            )
        )
