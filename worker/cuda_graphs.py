"""CUDA graphs are refused in a job that joins, by name and with what to write instead.

A graph is a list of kernels with the addresses that they had when it was captured; a replay runs them and no line of Python.
Three things that the runtime relies on are then gone, each without an error:

* A backward pass inside a graph tells nobody that a gradient is complete, since hooks run in the capture alone: what is exchanged
  between workers would be what was there before.
* Buffers that a graph writes to are written to again by its next replay. A worker that hosts several virtual workers runs the
  loop body once for each, and what the first one's gradients or buffers were has to be kept meanwhile.
* After a resize a worker hosts other virtual workers, and exchanges with others: a graph of its whole step is another step's.

So what captures is refused where that begins: `torch.compile` in a mode with graphs when `prepare` is called, whatever it is that
captures otherwise (`torch.cuda.graph`, `make_graphed_callables`, `backend="cudagraphs"`) when it does, and a graph that was
captured before the script has joined when it is replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..protocol.errors import UserError

INSTEAD = (
    "the workers of an elastic job change their gradients' exchange with each resize, which a graph would not see. Compile "
    'without them: torch.compile(model), or mode="max-autotune-no-cudagraphs"; in place of torch.cuda.graph and '
    "make_graphed_callables call the function itself. A script that needs graphs is submitted for a fixed number of GPUs, "
    "without elastic.join()"
)


def refuse(graph: Any = None) -> None:
    """From now on this process captures and replays no graph: UserError. graph: the class of graphs; None: torch's own."""
    kind = torch.cuda.CUDAGraph if graph is None else graph
    for name, what in (("capture_begin", "captures a CUDA graph"), ("replay", "replays a CUDA graph")):
        setattr(kind, name, _refused(what))


def _refused(what: str) -> Callable[..., None]:
    def refused(*_: object, **__: object) -> None:
        raise UserError(f"this script {what}: {INSTEAD}")

    return refused


def check(model: torch.nn.Module, device: torch.device) -> None:
    """Raises UserError where `model`, or a module in it, is compiled in a mode that captures graphs on `device`."""
    if device.type != "cuda":
        return  # the compiler makes none there
    for name, module in model.named_modules():
        if _captures(module):
            raise UserError(
                f"{name or 'the model'} is compiled (torch.compile) in a mode that captures CUDA graphs, such as "
                f'"reduce-overhead" or "max-autotune": {INSTEAD}'
            )


def _captures(module: torch.nn.Module) -> bool:
    """Is it what `torch.compile(module)` returns, or was `module.compile()` called, with graphs?"""
    config = getattr(getattr(module, "dynamo_ctx", None), "compiler_config", None)
    in_place = getattr(getattr(module, "_compiled_call_impl", None), "get_compiler_config", None)
    if config is None and in_place is not None:
        config = in_place()
    return isinstance(config, dict) and bool(config.get("triton.cudagraphs"))
