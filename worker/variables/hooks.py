"""Hooks that a script gives to modules, parameters, optimizers and torch, as parts of a look at its values (`reachable`)."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ..source.own_code import directories, is_own_class, is_own_file

Parts = list[tuple[str, Any]]  # hooks, each with the suffix of its name

_OF_MODULES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_OF_OPTIMIZERS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def of_module(attributes: Mapping[str, Any]) -> Parts:
    """Return the hooks among the attributes of a module."""
    return _parts(attributes, _OF_MODULES)


def of_optimizer(attributes: Mapping[str, Any]) -> Parts:
    """Return the hooks among the attributes of an optimizer."""
    return _parts(attributes, _OF_OPTIMIZERS)


def of_tensor(tensor: torch.Tensor) -> Parts:
    """Return the script's hooks of a tensor's gradient, without those of the runtime."""
    hooks = {name: getattr(torch.Tensor, name).__get__(tensor) for name in _OF_TENSORS}
    return [each for each in _parts(hooks, _OF_TENSORS) if _is_own(each[1])]


def of_all_modules() -> dict[str, Any]:
    """Return the script's hooks that torch calls for each module, by name."""
    known = vars(torch.nn.modules.module)
    hooks = {f"torch.nn.modules.module._global{name}": known.get(f"_global{name}") for name in _OF_MODULES}
    return {label[1:]: hook for label, hook in _parts(hooks, hooks) if _is_own(hook)}


def _parts(attributes: Mapping[str, Any], names: Iterable[str]) -> Parts:
    return [
        (f".{name}[{at}]", hook) for name in names for at, hook in enumerate(dict.values(attributes.get(name) or {}))
    ]


def _is_own(hook: Any) -> bool:
    """Return whether a hook is a function, a method or an object of the script's own."""
    while type(hook) in (functools.partial, types.MethodType):
        hook = hook.func if type(hook) is functools.partial else hook.__func__
    if isinstance(hook, types.FunctionType):
        return is_own_file(hook.__code__.co_filename, directories())
    return is_own_class(type(hook))
