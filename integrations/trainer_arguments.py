"""Arguments of a transformers.Trainer that change while its job runs, and arguments that cannot work in a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers.training_args import ParallelMode

from ..protocol.errors import UserError


def live_arguments(arguments: Any, leads: Callable[[], bool]) -> None:
    """Make the arguments on saving and logging follow the leader, which may change while the job runs."""
    kind, live = type(arguments), property(lambda _: leads())
    members = {"should_save": live, "should_log": live, "__reduce__": lambda own: (_plain, (kind, dict(vars(own))))}
    arguments.__class__ = type(kind.__name__, (kind,), members)


def _plain(kind: type, values: dict[str, Any]) -> Any:
    """Return a copy of the script's own class, for arguments that are written to a file."""
    arguments: Any = object.__new__(kind)
    vars(arguments).update(values)
    return arguments


def refuse_arguments(arguments: Any, resume_from_checkpoint: Any = None) -> None:
    """Raises UserError, naming the argument, for arguments that cannot work."""
    if resume_from_checkpoint:
        raise UserError("resume_from_checkpoint: the job goes on from its own state by itself; leave it out")
    if arguments is None:
        return
    elastic = "each worker holds the whole model, and the runtime reduces gradients itself"
    optimizer = str(getattr(arguments.optim, "value", arguments.optim))
    wrong = {
        "gradient_accumulation_steps": (
            arguments.gradient_accumulation_steps != 1,
            "virtual workers take its place: leave it at 1, and submit with as many virtual workers",
        ),
        "deepspeed": (arguments.deepspeed, elastic),
        "fsdp": (arguments.fsdp, elastic),
        "parallelism_config": (getattr(arguments, "parallelism_config", None), elastic),
        "torchrun": (
            arguments.parallel_mode == ParallelMode.DISTRIBUTED,
            "the cluster starts the workers; start the script with python",
        ),
        "auto_find_batch_size": (arguments.auto_find_batch_size, "the result depends on the batch size; set it"),
        "enable_jit_checkpoint": (arguments.enable_jit_checkpoint, "a preempted job saves its own state"),
        f"optim={optimizer}": (
            "lomo" in optimizer or "layerwise" in optimizer,
            "it updates parameters in the backward pass, before the other virtual workers' gradients are there",
        ),
    }
    for name, (found, why) in wrong.items():
        if found:
            raise UserError(f"transformers.Trainer cannot be elastic with {name}: {why}")


def refuse_search(*_: Any, **__: Any) -> None:
    """Replacement of `hyperparameter_search`. Raises UserError."""
    raise UserError("hyperparameter_search() trains several models, and a job trains one: submit a job for each")
