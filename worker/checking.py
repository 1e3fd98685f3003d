"""Checks of the arguments of `prepare`: each wrong object gets an error that says what to pass instead."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ..protocol.errors import UserError
from ..protocol.model import Determinism

_AS_A_GANG = (
    "Give the plain model; or submit the script as it is, for a fixed number of GPUs: elasticctl submit --gpus 4 -- torchrun "
    "train.py"
)

SPARSE = (
    "Gradients of all virtual workers are added up in dense memory, in an order that does not depend on who computes them, and "
    "a sparse gradient would be dense: write sparse=False, and torch.optim.Adam in place of SparseAdam"
)
_TWO_POINTS = (("first_step", "second_step"), ("ascent_step", "descent_step"))  # names of methods in public optimizers


def is_under_fully_shard(model: Any) -> bool:
    """Return whether the script has applied `fully_shard` (FSDP2) to a model or a part of it.

    Loads no code of torch's.
    """
    loaded = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(loaded, "FSDPModule", None)
    return (
        kind is not None
        and isinstance(model, torch.nn.Module)
        and any(isinstance(each, kind) for each in model.modules())
    )


def check_model(model: Any) -> None:
    """Raise UserError for an object that is no model, or a model that cannot be trained elastically."""
    if isinstance(model, list | tuple | Mapping):
        raise UserError(
            f"prepare() takes one model, not a {type(model).__name__} of several: put them in one, "
            "torch.nn.ModuleDict({'first': …, 'second': …})"
        )
    if type(model).__module__.startswith("torch.distributed.pipelining"):
        raise UserError(
            f"the model is a {type(model).__name__}, a stage of a pipeline: each worker of an elastic job holds all of the "
            f"model. {_AS_A_GANG}"
        )
    if not isinstance(model, torch.nn.Module):
        raise UserError(f"the model is {_a(model)}: prepare() takes (model, optimizer, dataset, batch_size=…)")
    wrapped = type(model).__name__
    if isinstance(model, DistributedDataParallel | DataParallel):
        raise UserError(
            f"the model is wrapped in {wrapped}: give what is in it, model.module; the runtime reduces gradients"
        )
    if wrapped == "FullyShardedDataParallel":
        raise UserError(
            f"the model is wrapped in {wrapped}: give the plain model, or call fully_shard(layer, mesh=run.mesh()), "
            "which is FSDP2"
        )
    divided = is_under_fully_shard(model)
    for name, parameter in model.named_parameters():
        if not divided and "DTensor" in (type(parameter).__name__, type(parameter.data).__name__):
            raise UserError(
                f"the parameter {name} is a DTensor, of which each process holds a part (tensor parallelism, or fully_shard): "
                f"each worker of an elastic job holds all of the model. {_AS_A_GANG}"
            )
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.SyncBatchNorm):
            raise UserError(
                f"{name or 'the model'} is a SyncBatchNorm: the virtual workers of one GPU run one after the other, and a "
                "layer of the first cannot wait for the statistics of the next. Use torch.nn.GroupNorm, or BatchNorm, "
                "whose statistics are virtual worker 0's (as in DistributedDataParallel with broadcast_buffers)"
            )
        if (
            isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag)
            and module.sparse
            and module.weight.requires_grad
        ):
            raise UserError(f"{name or 'the model'} is an {type(module).__name__} with sparse=True. {SPARSE}")
    if any(isinstance(parameter, torch.nn.UninitializedParameter) for parameter in model.parameters()):
        raise UserError(
            f"the model, a {wrapped}, has parameters without a shape (lazy modules): call it once with a batch before the "
            "optimizer is made"
        )
    if not any(True for _ in model.parameters()):
        raise UserError(f"the model, a {wrapped}, has no parameters to train")


def check_has_values(model: torch.nn.Module, device: torch.device) -> None:
    """Raise UserError for a model on the meta device, whose tensors have shapes and no values."""
    if device.type == "meta":
        return
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.device.type == "meta":
            raise UserError(
                f"{name} is on the meta device, so it has no values: before prepare() call model.to_empty(device=run.device), "
                "and let the modules initialize themselves (reset_parameters), or load a state_dict"
            )


def check_optimizers(model: torch.nn.Module, optimizers: Any) -> list[torch.optim.Optimizer]:
    """Return one or several optimizers as a list.

    Raises UserError for other objects, and for optimizers of another model.
    """
    if not isinstance(optimizers, torch.optim.Optimizer | list | tuple):
        raise UserError(
            f"the optimizer is {_a(optimizers)}: give a torch.optim.Optimizer, or a list of them, made before prepare()"
        )
    several = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)
    if not several:
        raise UserError("prepare() was given no optimizer: give one, or a list of them")
    known = {id(parameter) for parameter in model.parameters()}
    for position, each in enumerate(several):
        if not isinstance(each, torch.optim.Optimizer):
            raise UserError(f"optimizer {position} is {_a(each)}: give a torch.optim.Optimizer")
        if isinstance(each, torch.optim.SparseAdam):
            raise UserError(f"the optimizer is SparseAdam, which takes sparse gradients only. {SPARSE}")
        if any(all(callable(getattr(each, name, None)) for name in names) for names in _TWO_POINTS):
            raise UserError(
                f"the optimizer, {type(each).__name__}, evaluates the loss of a step at two points, as sharpness-aware "
                "minimization (SAM) does. The second point follows from the gradient of the whole step, which no single loop "
                "body has: give the optimizer that it wraps. With each micro-batch's own second point, as under DDP, the loop "
                "body can do it: backward(), move the parameters, optimizer.zero_grad(), backward() again, copy the old values "
                "back, optimizer.step()"
            )
        its = [parameter for group in each.param_groups for parameter in group["params"]]
        if its and not any(id(parameter) in known for parameter in its):
            raise UserError(
                f"the optimizer, {type(each).__name__}, has none of this model's parameters: make it of "
                "model.parameters(), after the model has its last form"
            )
    return several


def check_schedulers(schedulers: Any) -> list[LRScheduler]:
    """Return None, one or several schedulers as a list. Raises UserError for other objects."""
    if schedulers is None:
        return []
    several = list(schedulers) if isinstance(schedulers, list | tuple) else [schedulers]
    for each in several:
        if isinstance(each, ReduceLROnPlateau):
            raise UserError(
                "scheduler= is a ReduceLROnPlateau, whose step needs a metric: leave it out of prepare(), and call "
                "scheduler.step(metric) between two epochs, with the same metric on every worker"
            )
        if not isinstance(each, LRScheduler):
            raise UserError(f"scheduler= is {_a(each)}: give one of torch.optim.lr_scheduler, or a list of them")
    return several


def check_update(max_grad_norm: Any, before_update: Any, after_update: Any) -> None:
    """Raise UserError for arguments of the update that cannot work."""
    number = isinstance(max_grad_norm, int | float) and not isinstance(max_grad_norm, bool)
    if max_grad_norm is not None and not (number and max_grad_norm > 0):
        raise UserError(f"max_grad_norm is {max_grad_norm!r}; it must be a number greater than 0")
    for name, hook in (("before_update", before_update), ("after_update", after_update)):
        if hook is not None and not callable(hook):
            raise UserError(f"{name}= takes a function without arguments, not {_a(hook)}")


def check_evaluations(
    optimizers: Sequence[torch.optim.Optimizer],
    scaler: torch.amp.GradScaler | None,
    max_grad_norm: Any,
    before_update: Any,
    normalize: Any,
    gathers: bool,
) -> None:
    """Raise UserError for arguments that do not work with an optimizer that evaluates a step's loss several times."""
    found = [each for each in optimizers if isinstance(each, torch.optim.LBFGS)]
    if not found:
        return
    if len(optimizers) > 1:
        raise UserError(
            "prepare() was given LBFGS and another optimizer: LBFGS evaluates the loss several times for an update, and each "
            "evaluation must be that of all parameters that are trained. Give it all of them"
        )
    if type(found[0]) is not torch.optim.LBFGS:
        raise UserError(
            f"the optimizer is a {type(found[0]).__name__}, made of LBFGS: what its own step() does between two evaluations is "
            "not known here. Give a torch.optim.LBFGS"
        )
    for given, what, why in (
        (
            scaler,
            "run.scaler()",
            "a step that overflows has no loss. Use torch.autocast with bfloat16, which needs no scaler",
        ),
        (max_grad_norm, "max_grad_norm=", "a clipped gradient is not that of its loss"),
        (before_update, "before_update=", "a gradient that is changed is not that of its loss. Change the loss"),
        (normalize, "normalize=", "its loss is the mean over the samples of the step. Return a mean from the closure"),
        (gathers or None, "gathers=True", "each evaluation of its loss would have to run the loop body several times"),
    ):
        if given is not None:
            raise UserError(f"{what} was given, and the optimizer is LBFGS: {why}")


def _a(value: Any) -> str:
    return repr(value) if isinstance(value, str | int | float | bool | None) else f"a {type(value).__name__}"


def check_divided(
    determinism: Determinism,
    updates: Sized,
    scaler: torch.amp.GradScaler | None,
    before_update: Callable[[], None] | None,
    gathers: bool,
    by: str = "sharding: optimizer",
) -> None:
    """Raise UserError for a job whose state cannot be divided among its workers. by: what divides it, for the error."""
    if not determinism.has_equal_gradients:
        raise UserError(
            f"{by} needs equal gradients on all workers, and the job's determinism is {determinism.value}: "
            "leave one of them out"
        )
    for given, what in (
        (len(updates) > 1, "prepare() was given several updates"),
        (scaler is not None, "the job has a gradient scaler; bfloat16 needs none"),
        (before_update is not None, "prepare() was given before_update="),
        (gathers, "prepare() was given gathers=True"),
    ):
        if given:
            raise UserError(f"{by} was given, and {what}: these do not work together")
