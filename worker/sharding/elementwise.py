"""Table of the optimizers that may update a part of a parameter (ZeRO-1), with the same bits as the whole.

The rule: an optimizer is *elementwise* if the new value of an element follows from that element's gradient, value and
state, from the group's options, and from counters that are equal for all elements of a parameter. Only classes of
`torch.optim` are accepted, by name: a subclass or another library's class may look at more. `tests/worker/
test_elementwise.py` compares bits for every class of `torch.optim` and fails for a class that is in neither table.

On a CPU the update runs in one thread (`one_thread`). Several threads cut a tensor where its size says, and the elements
at the end of each thread's part are computed without vector instructions, which rounds bfloat16 otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ...protocol.errors import UserError
from ..gradients.update import ElasticOptimizer

ELEMENTWISE = ("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
WHOLE = {
    "Adafactor": "it divides each gradient by means over rows and columns of a whole parameter",
    "LBFGS": "its direction depends on products over all parameters",
    "Muon": "it orthogonalizes whole matrices",
    "SparseAdam": "its gradients are sparse",
}
ELSEWHERE = {  # classes of other libraries, by lower-case name
    "lamb": "its rate depends on the norm of a whole parameter",
    "lars": "its rate depends on the norm of a whole parameter",
    "shampoo": "it multiplies by matrices over a whole parameter",
    "distributedshampoo": "it multiplies by matrices over a whole parameter",
    "soap": "it multiplies by matrices over a whole parameter",
}


def check_elementwise(optimizers: Sequence[torch.optim.Optimizer], by: str = "sharding: optimizer") -> None:
    """Raise UserError, naming the first optimizer whose state cannot be divided. by: what divides it, for the error."""
    for optimizer in optimizers:
        kind = class_of(optimizer)
        if (reason := _reason(kind)) is not None:
            raise UserError(
                f"{by} cannot divide the state of {kind.__name__}: {reason}. Leave it out, or use "
                f"one of torch.optim's {', '.join(ELEMENTWISE)}"
            )
        if kind is torch.optim.SGD and any(_is_fused_and_narrow(group) for group in optimizer.param_groups):
            raise UserError(
                f"{by} cannot divide SGD with fused=True over parameters of 16 bits: with momentum on a CPU, two "
                "equal runs differ in the last 16 elements of each parameter. Leave fused=True out"
            )
        if any(group.get("differentiable") for group in optimizer.param_groups):
            raise UserError(f"{by} cannot divide a {kind.__name__} with differentiable=True")


def check_hooks(optimizers: Sequence[torch.optim.Optimizer], by: str = "sharding: optimizer") -> None:
    """Raise UserError, naming the first optimizer with hooks of its step, which would see a part of the update.

    by: as in `check_elementwise`.
    """
    for optimizer in optimizers:
        if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
            raise UserError(
                f"{by} makes an update in parts, and {class_of(optimizer).__name__} has a hook of step(): use "
                "after_update= of prepare(), or leave it out"
            )


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute in this thread alone."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def class_of(optimizer: torch.optim.Optimizer) -> type:
    """Return the optimizer's class as the script made it, without a class that the runtime has put before it."""
    kind = type(optimizer)
    return next(each for each in kind.__mro__[1:] if each is not ElasticOptimizer) if _is_ours(kind) else kind


def _is_fused_and_narrow(group: dict[str, Any]) -> bool:
    return bool(group.get("fused")) and any(parameter.element_size() < 4 for parameter in group["params"])


def _is_ours(kind: type) -> bool:
    return ElasticOptimizer in kind.__bases__


def _reason(kind: type) -> str | None:
    name = kind.__name__
    if getattr(torch.optim, name, None) is kind:
        return None if name in ELEMENTWISE else WHOLE.get(name, "it is not known to be elementwise")
    return ELSEWHERE.get(name.lower(), "it is no class of torch.optim, so it may look at whole parameters")
