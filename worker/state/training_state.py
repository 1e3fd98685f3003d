"""The whole training state of a job, as it travels to a joiner and into a checkpoint (design: worker-runtime 2, 5).

It has two parts: a *header* of plain values, and the *tensors* in the order that the header gives. Whoever has the header knows
what tensors will follow, so they are sent one by one from where they are to where they belong, without a serialized copy:

    parameters, buffers, then for each optimizer the tensors of its state (parameter by parameter) and among its hyperparameters

A fresh optimizer has no state before its first step, and a script may have unfrozen parameters or added them to a group since
its beginning. `adopt` therefore gives model and optimizers the structure of the header's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from ...protocol.errors import PeerError, UserError
from .plain import pack, unpack

FORMAT = 2
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


class DataPosition(Protocol):
    """Where a job is in its data, as it stands between two steps."""

    def state(self) -> dict[str, Any]:
        """In plain values."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Take it over. Raises UserError if it is that of other data."""


class TrainingState:
    """Everything that a step reads and changes, except what is derived from the step's number."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        schedulers: Sequence[torch.optim.lr_scheduler.LRScheduler] = (),
        scaler: torch.amp.GradScaler | None = None,
        registered: Mapping[str, Accessors] | None = None,
        data: DataPosition | None = None,
    ) -> None:
        """registered: by name, how to get and to set a value of the script's own. The mapping may still grow.
        data: where the job is in its data, if that does not follow from the step."""
        self.model = model
        self.optimizers = list(optimizers)
        self.schedulers = list(schedulers)
        self.scaler = scaler
        self._data = data
        self._registered: Mapping[str, Accessors] = registered if registered is not None else {}

    @property
    def registers_values(self) -> bool:
        """Has the script values of its own that travel with the state?"""
        return bool(self._registered)

    # -- giving

    def header(self, counters: Mapping[str, int]) -> dict[str, Any]:
        """All but the tensors, in plain values. Raises UserError, naming it, for a value that cannot be one."""
        optimizers, numbered = self._pack_optimizers()
        return {
            "format": FORMAT,
            "counters": dict(counters),
            "tensors": [describe(name, tensor) for name, tensor in numbered],
            "trained": [position for position, tensor in enumerate(self._parameters()) if tensor.requires_grad],
            "optimizers": optimizers,
            "schedulers": [pack(each.state_dict(), "the state of a scheduler") for each in self.schedulers],
            "scaler": None
            if self.scaler is None
            else pack(self.scaler.state_dict(), "the state of the gradient scaler"),
            "registered": self.registered_values(),
            "data": None if self._data is None else self._data.state(),
        }

    def tensors(self) -> list[torch.Tensor]:
        """The tensors themselves, not copies, in the header's order."""
        return [tensor for _, tensor in self._pack_optimizers()[1]]

    def named_tensors(self) -> list[tuple[str, torch.Tensor]]:
        """The same, with names for people."""
        named = self._pack_optimizers()[1]
        parameters = len(self._named_parameters())
        for position in range(parameters + len(list(self.model.buffers()))):
            kind = "parameter" if position < parameters else "buffer"
            named[position] = f"{kind} {named[position][0]}", named[position][1]
        return named

    def registered_values(self) -> dict[str, Any]:
        """What the script has registered, packed."""
        return {name: pack(get(), f"the registered value {name!r}") for name, (get, _) in self._registered.items()}

    # -- taking

    def trained_in(
        self, header: Mapping[str, Any], optimizers: Sequence[int] | None = None
    ) -> list[torch.nn.Parameter]:
        """This model's parameters that the header's script trains; only those of these optimizers, if any are given. Raises as
        `adopt`."""
        self._check(header)
        known = {id(parameter) for parameter in self.model.parameters()}
        wanted = set(header["trained"])
        if optimizers is not None:
            groups = [group for position in optimizers for group in header["optimizers"][position]["groups"]]
            wanted &= {position for group in groups for position in group["params"]}
        found = [parameter for position, parameter in enumerate(self._parameters()) if position in wanted]
        return [
            parameter for parameter in found if isinstance(parameter, torch.nn.Parameter) and id(parameter) in known
        ]

    def adopt(self, header: Mapping[str, Any]) -> list[torch.Tensor]:
        """Give parameters and optimizers the header's structure: which are trained, in which group, with what state.

        Returns the tensors to copy the header's into, in its order. Raises UserError, with nothing changed, if the header is of
        another model, other optimizers or another set of registered values.
        """
        self._check(header)
        parameters = self._parameters()
        targets = [tensor for _, tensor in self._model_tensors()]
        trained = set(header["trained"])
        for position, parameter in enumerate(parameters):
            parameter.requires_grad_(position in trained)
        for optimizer, theirs in zip(self.optimizers, header["optimizers"], strict=True):
            self._adopt_optimizer(optimizer, theirs, parameters, header["tensors"], targets)
        return targets

    def _adopt_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        theirs: Mapping[str, Any],
        parameters: Sequence[torch.Tensor],
        descriptions: Sequence[list[Any]],
        targets: list[torch.Tensor],
    ) -> None:
        def take(device: torch.device) -> Callable[[int, Any], torch.Tensor]:
            def tensor_of(number: int, present: Any) -> torch.Tensor:
                if number != len(targets):
                    raise PeerError(f"tensor {number} of a training state comes where {len(targets)} should")
                fits = isinstance(present, torch.Tensor) and describe("", present)[1:] == descriptions[number][1:]
                targets.append(present if fits else allocate(descriptions[number], device))
                return targets[number]

            return tensor_of

        states = dict(theirs["states"])
        for position, parameter in enumerate(parameters):
            present = optimizer.state.pop(parameter, None)
            if position in states:
                optimizer.state[parameter] = unpack(states[position], take(parameter.device), present)
        for number, group in enumerate(theirs["groups"]):
            members = [parameters[position] for position in group["params"]]
            if number == len(optimizer.param_groups):  # added while the job ran
                optimizer.param_groups.append({})
            own = optimizer.param_groups[number]
            own["params"] = members
            own.update(unpack(group["options"], take(members[0].device), own))

    def finish(self, header: Mapping[str, Any]) -> None:
        """After the tensors have come: the schedulers' state, the scaler's, and the script's own values."""
        for scheduler, theirs in zip(self.schedulers, header["schedulers"], strict=True):
            scheduler.load_state_dict(unpack(theirs))
        if self.scaler is not None:
            self.scaler.load_state_dict(unpack(header["scaler"]))
        if self._data is not None:
            self._data.load(header["data"])
        self.set_registered(header["registered"])

    def set_registered(self, values: Mapping[str, Any]) -> None:
        """Hand the script its values, packed by `registered_values`."""
        for name, (_, set_value) in self._registered.items():
            set_value(unpack(values[name]))

    # -- what there is

    def _named_parameters(self) -> list[tuple[str, torch.Tensor]]:
        """Parameters of the model, tied ones once, then those that only an optimizer knows."""
        named: list[tuple[str, torch.Tensor]] = list(self.model.named_parameters())
        known = {id(parameter) for _, parameter in named}
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if id(parameter) not in known:
                        known.add(id(parameter))
                        named.append((f"an optimizer's parameter {len(named)}", parameter))
        return named

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for _, parameter in self._named_parameters()]

    def _model_tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Parameters, then buffers, whether persistent or not."""
        parameters = [(name, parameter.detach()) for name, parameter in self._named_parameters()]
        return [*parameters, *self.model.named_buffers()]

    def _pack_optimizers(self) -> tuple[list[dict[str, Any]], list[tuple[str, torch.Tensor]]]:
        """The optimizers in plain values; and all tensors, as they are numbered."""
        tensors = self._model_tensors()
        positions = {id(parameter): position for position, parameter in enumerate(self._parameters())}

        def number(tensor: torch.Tensor, where: str) -> int:
            tensors.append((where, tensor.detach()))
            return len(tensors) - 1

        names = ["optimizer"] if len(self.optimizers) == 1 else [f"optimizer {i}" for i in range(len(self.optimizers))]
        packed = [
            self._pack_optimizer(name, optimizer, positions, number)
            for name, optimizer in zip(names, self.optimizers, strict=True)
        ]
        return packed, tensors

    def _pack_optimizer(
        self,
        name: str,
        optimizer: torch.optim.Optimizer,
        positions: Mapping[int, int],
        number: Callable[[torch.Tensor, str], int],
    ) -> dict[str, Any]:
        states = {positions.get(id(parameter)): state for parameter, state in optimizer.state.items()}
        if None in states:
            raise UserError("the optimizer keeps state that belongs to no parameter, which cannot be carried along")
        return {
            "kind": type(optimizer).__qualname__,
            "states": [
                [position, pack(dict(states[position]), f"{name}.state[{position}]", number)]
                for position in sorted(position for position in states if position is not None)
            ],
            "groups": [
                {
                    "params": [positions[id(parameter)] for parameter in group["params"]],
                    "options": pack(
                        {key: group[key] for key in group if key != "params"}, f"{name}.param_groups[{i}]", number
                    ),
                }
                for i, group in enumerate(optimizer.param_groups)
            ],
        }

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
        kinds = [type(optimizer).__qualname__ for optimizer in self.optimizers]
        other_kinds = [other["kind"] for other in header["optimizers"]]
        if kinds != other_kinds:
            raise UserError(
                f"another optimizer: the training state is that of {', '.join(other_kinds)}, this script has {', '.join(kinds)}"
            )
        for optimizer, other in zip(self.optimizers, header["optimizers"], strict=True):
            _check_groups(optimizer, other["groups"], len(self._parameters()))
        self._check_count("scheduler", len(header["schedulers"]), len(self.schedulers))
        if (header.get("data") is None) != (self._data is None):
            here, there = ("shards" if each is not None else "an index" for each in (self._data, header.get("data")))
            raise UserError(f"another dataset: this script's has {here}, that of the training state has {there}")
        self._check_count("gradient scaler", header["scaler"] is not None, self.scaler is not None)
        if sorted(header["registered"]) != sorted(self._registered):
            there, here = (", ".join(sorted(names)) or "none" for names in (header["registered"], self._registered))
            raise UserError(f"the training state has the registered values {there}; this script registers {here}")

    def _check_count(self, what: str, theirs: int, ours: int) -> None:
        if int(theirs) != int(ours):
            raise UserError(
                f"the training state has {int(theirs) or 'no'} {what}, this script {int(ours) or 'no'} {what}"
            )


def _check_groups(optimizer: torch.optim.Optimizer, theirs: Sequence[Mapping[str, Any]], parameters: int) -> None:
    """Groups and parameters may have been added while the job ran; a script that begins with more is another one."""
    own = optimizer.param_groups
    sizes, others = [len(group["params"]) for group in own], [len(group["params"]) for group in theirs]
    known = all(0 <= position < parameters for group in theirs for position in group["params"])
    if len(others) < len(sizes) or any(a > b for a, b in zip(sizes, others, strict=False)) or not known or 0 in others:
        raise UserError(f"another optimizer: its groups have {sizes} parameters, in the training state {others}")


def _words(description: list[Any]) -> str:
    name, kind, shape = description[:3]
    return f"{name} ({kind}, shape {list(shape)})"
