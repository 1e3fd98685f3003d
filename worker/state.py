"""The whole training state of a job, as it travels to a joiner and into a checkpoint (design: worker-runtime 2, 5).

It has two parts: a *header* of plain values, and the *tensors* in the order that the header gives. Whoever has the header knows
what tensors will follow, so they are sent one by one from where they are to where they belong, without a serialized copy:

    parameters, buffers, tensors of the optimizer's state (parameter by parameter), tensors among its hyperparameters

A fresh optimizer has no state before its first step. `adopt` therefore gives this one the structure of the header's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..protocol.errors import PeerError, UserError
from .plain import pack, unpack

FORMAT = 1
Accessors = tuple[Callable[[], Any], Callable[[Any], None]]


def describe(name: str, tensor: torch.Tensor) -> list[Any]:
    """A tensor in a header: name, type, shape, and whether it is the accelerator's ("device") or the host's ("host")."""
    place = "host" if tensor.device.type == "cpu" else "device"
    return [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), place]


def allocate(description: list[Any], device: torch.device) -> torch.Tensor:
    """Memory for a tensor of a header. Raises PeerError if that is no description of one."""
    try:
        name, kind, shape, place = description
        dtype = getattr(torch, kind)
    except (ValueError, TypeError, AttributeError):
        raise PeerError(f"{description!r} does not describe a tensor") from None
    if not isinstance(dtype, torch.dtype):
        raise PeerError(f"{kind!r}, the type of {name}, is not a type of tensors")
    return torch.empty(shape, dtype=dtype, device=device if place == "device" else "cpu")


class TrainingState:
    """Everything that a step reads and changes, except what is derived from the step's number."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
        registered: Mapping[str, Accessors] | None = None,
    ) -> None:
        """registered: by name, how to get and to set a value of the script's own. The mapping may still grow."""
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self._registered: Mapping[str, Accessors] = registered if registered is not None else {}

    # -- giving

    def header(self, counters: Mapping[str, int]) -> dict[str, Any]:
        """All but the tensors, in plain values. Raises UserError, naming it, for a value that cannot be one."""
        optimizer, numbered = self._pack_optimizer()
        return {
            "format": FORMAT,
            "counters": dict(counters),
            "tensors": [describe(name, tensor) for name, tensor in numbered],
            "optimizer": optimizer,
            "scheduler": None
            if self.scheduler is None
            else pack(self.scheduler.state_dict(), "the state of the scheduler"),
            "registered": self.registered_values(),
        }

    def tensors(self) -> list[torch.Tensor]:
        """The tensors themselves, not copies, in the header's order."""
        return [tensor for _, tensor in self._pack_optimizer()[1]]

    def registered_values(self) -> dict[str, Any]:
        """What the script has registered, packed."""
        return {name: pack(get(), f"the registered value {name!r}") for name, (get, _) in self._registered.items()}

    # -- taking

    def adopt(self, header: Mapping[str, Any]) -> list[torch.Tensor]:
        """Give the optimizer the structure of the header's. Returns the tensors to copy the header's into, in its order.

        Raises UserError, with nothing changed, if the header is of another model, optimizer or set of registered values.
        """
        self._check(header)
        own = self._model_tensors()
        targets: list[torch.Tensor] = [tensor for _, tensor in own]
        descriptions = header["tensors"]

        def take(device: torch.device) -> Callable[[int, Any], torch.Tensor]:
            def tensor_of(number: int, present: Any) -> torch.Tensor:
                if number != len(targets):
                    raise PeerError(f"tensor {number} of a training state comes where {len(targets)} should")
                fits = isinstance(present, torch.Tensor) and describe("", present)[1:] == descriptions[number][1:]
                targets.append(present if fits else allocate(descriptions[number], device))
                return targets[number]

            return tensor_of

        optimized = self._optimized()
        states = dict(header["optimizer"]["states"])
        for position, parameter in enumerate(optimized):
            present = self.optimizer.state.pop(parameter, None)
            if position in states:
                self.optimizer.state[parameter] = unpack(states[position], take(parameter.device), present)
        for group, packed in zip(self.optimizer.param_groups, header["optimizer"]["groups"], strict=True):
            group.update(unpack(packed, take(group["params"][0].device), group))
        return targets

    def finish(self, header: Mapping[str, Any]) -> None:
        """After the tensors have come: the scheduler's state, and the script's own values."""
        if self.scheduler is not None:
            self.scheduler.load_state_dict(unpack(header["scheduler"]))
        self.set_registered(header["registered"])

    def set_registered(self, values: Mapping[str, Any]) -> None:
        """Hand the script its values, packed by `registered_values`."""
        for name, (_, set_value) in self._registered.items():
            set_value(unpack(values[name]))

    # -- what there is

    def _optimized(self) -> list[torch.Tensor]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def _model_tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Parameters, tied ones once; those that only the optimizer knows; buffers, whether persistent or not."""
        named: list[tuple[str, torch.Tensor]] = list(self.model.named_parameters())
        known = {id(parameter) for _, parameter in named}
        for position, parameter in enumerate(self._optimized()):
            if id(parameter) not in known:
                named.append((f"optimizer's parameter {position}", parameter))
        parameters = [(name, parameter.detach()) for name, parameter in named]
        return [*parameters, *self.model.named_buffers()]

    def _pack_optimizer(self) -> tuple[dict[str, Any], list[tuple[str, torch.Tensor]]]:
        """The optimizer in plain values; and all tensors, as they are numbered."""
        tensors = self._model_tensors()

        def number(tensor: torch.Tensor, where: str) -> int:
            tensors.append((where, tensor.detach()))
            return len(tensors) - 1

        optimized, state = self._optimized(), self.optimizer.state
        positions = {id(parameter): position for position, parameter in enumerate(optimized)}
        if any(id(key) not in positions for key in state):
            raise UserError("the optimizer keeps state that belongs to no parameter, which cannot be carried along")
        groups = self.optimizer.param_groups
        packed = {
            "kind": type(self.optimizer).__qualname__,
            "sizes": [len(group["params"]) for group in groups],
            "states": [
                [position, pack(dict(state[parameter]), f"optimizer.state[{position}]", number)]
                for position, parameter in enumerate(optimized)
                if parameter in state
            ],
            "groups": [
                pack({key: group[key] for key in group if key != "params"}, f"optimizer.param_groups[{i}]", number)
                for i, group in enumerate(groups)
            ],
        }
        return packed, tensors

    # -- whether it is ours

    def _check(self, header: Mapping[str, Any]) -> None:
        if header.get("format") != FORMAT:
            raise UserError(f"the training state has format {header.get('format')!r}; this version knows {FORMAT}")
        own = [describe(name, tensor) for name, tensor in self._model_tensors()]
        theirs = header["tensors"]
        for mine, other in zip(own, theirs, strict=False):
            if mine[:3] != list(other[:3]):
                raise UserError(
                    f"another model: this one has {_words(mine)} where the training state has {_words(other)}"
                )
        if len(theirs) < len(own):
            raise UserError(f"another model: the training state ends before {_words(own[len(theirs)])}")
        self._check_optimizer(header["optimizer"])
        if (header["scheduler"] is None) != (self.scheduler is None):
            there, here = ("no", "a") if self.scheduler is not None else ("a", "no")
            raise UserError(f"the training state has {there} scheduler, this script {here} scheduler")
        if sorted(header["registered"]) != sorted(self._registered):
            there, here = (", ".join(sorted(names)) or "none" for names in (header["registered"], self._registered))
            raise UserError(f"the training state has the registered values {there}; this script registers {here}")

    def _check_optimizer(self, theirs: Mapping[str, Any]) -> None:
        kind = type(self.optimizer).__qualname__
        if theirs["kind"] != kind:
            raise UserError(f"another optimizer: the training state is that of {theirs['kind']}, this one is {kind}")
        sizes = [len(group["params"]) for group in self.optimizer.param_groups]
        if list(theirs["sizes"]) != sizes:
            raise UserError(
                f"another optimizer: its groups have {sizes} parameters, in the training state {theirs['sizes']}"
            )


def _words(description: list[Any]) -> str:
    name, kind, shape = description[:3]
    return f"{name} ({kind}, shape {list(shape)})"
