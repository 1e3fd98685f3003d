"""CUDA graphs are refused in a job that joins, with an error that names the alternative.

A graph is a list of kernels with the addresses that they had at its capture; a replay runs these kernels and no Python code. That
breaks three assumptions of the runtime, each without an error:

* A backward pass inside a graph does not report that a gradient is complete, because hooks run in the capture alone: workers
would exchange old values.
* The next replay overwrites the buffers of a graph. A worker that hosts several virtual workers runs the loop body once for each,
  and has to keep the gradients or buffers of the first one meanwhile.
* After a resize a worker hosts other virtual workers, and exchanges with other peers: a graph of its whole step is outdated.

So each capture is refused where it begins: `torch.compile` in a mode with graphs when `prepare` is called; other captures
(`torch.cuda.graph`, `make_graphed_callables`, `backend="cudagraphs"`) when they start; and a graph that was captured before the
script joined when it is replayed.
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
    """Make captures and replays of graphs raise UserError in this process. graph: the class of graphs; None: torch's own."""
    kind = torch.cuda.CUDAGraph if graph is None else graph
    for name, what in (("capture_begin", "captures a CUDA graph"), ("replay", "replays a CUDA graph")):
        setattr(kind, name, _refused(what))


def _refused(what: str) -> Callable[..., None]:
    def refused(*_: object, **__: object) -> None:
        raise UserError(f"this script {what}: {INSTEAD}")

    return refused


def check(model: torch.nn.Module, device: torch.device) -> None:
    """Raise UserError if `model`, or a module in it, is compiled in a mode that captures graphs on `device`."""
    if device.type != "cuda":
        return  # the compiler captures no graphs there
    for name, module in model.named_modules():
        if _captures(module):
            raise UserError(
                f"{name or 'the model'} is compiled (torch.compile) in a mode that captures CUDA graphs, such as "
                f'"reduce-overhead" or "max-autotune": {INSTEAD}'
            )


def _captures(module: torch.nn.Module) -> bool:
    """Return whether a module was compiled with graphs, by `torch.compile(module)` or by `module.compile()`."""
    config = getattr(getattr(module, "dynamo_ctx", None), "compiler_config", None)
    in_place = getattr(getattr(module, "_compiled_call_impl", None), "get_compiler_config", None)
    if config is None and in_place is not None:
        config = in_place()
    return isinstance(config, dict) and bool(config.get("triton.cudagraphs"))
