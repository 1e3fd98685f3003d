"""The training state of a job, as it is sent to a joiner and written to a checkpoint (design: worker-runtime 2, 5).

The state has two parts: a *header* of plain values, and the *tensors* in the order that the header gives. The header describes
each tensor that follows, so a receiver can allocate all of them, and tensors are sent one by one without a serialized copy:

    parameters, buffers, averaged models, then for each optimizer the tensors of its state (parameter by parameter) and among its
    hyper-parameters, then those among the script's registered values

A fresh optimizer has no state before its first step, and a script may have unfrozen parameters or added them to a group since
its beginning. So `adopt` first gives this worker's model and optimizers the header's structure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, compress
from operator import attrgetter, is_, methodcaller
from typing import TYPE_CHECKING, Any

import torch

from ...protocol.errors import PeerError, UserError
from ..data.position import DataPosition
from ..data.scaling import Growing
from ..gradients.buffers import Slot, slots
from ..plain import inline, pack, restored, unpack
from ..sharding.divided import DividedState
from .epoch_values import NAME as OF_EPOCH
from .extras import ExtraState
from .registered import Registered

if TYPE_CHECKING:  # torch's FSDP is loaded by scripts that use it
    from ..sharding.fully import FullySharded

FORMAT = 3
DIVISION = "division"  # key in a header without the optimizers' state, which is divided among the workers


def describe(name: str, tensor: torch.Tensor) -> list[Any]:
    """Return a tensor's entry in a header: name, type, shape, and memory: the accelerator's ("device") or the host's ("host")."""
    place = "host" if tensor.device.type == "cpu" else "device"
    return [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), place]


def allocate(description: list[Any], device: torch.device) -> torch.Tensor:
    """Return an uninitialized tensor for an entry of a header. Raises PeerError if the entry does not describe a tensor."""
    try:
        name, kind, shape, place = description
        dtype = getattr(torch, kind)
    except (ValueError, TypeError, AttributeError):
        raise PeerError(f"{description!r} does not describe a tensor") from None
    if not isinstance(dtype, torch.dtype):
        raise PeerError(f"{kind!r}, the type of {name}, is not a type of tensors")
    return torch.empty(shape, dtype=dtype, device=device if place == "device" else "cpu")


class TrainingState:
    """All values that a step reads and changes, except those derived from the step's number."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        schedulers: Sequence[torch.optim.lr_scheduler.LRScheduler] = (),
        scaler: torch.amp.GradScaler | None = None,
        registered: Registered | None = None,
        data: DataPosition | None = None,
        divided: DividedState | FullySharded | None = None,
    ) -> None:
        """data: position in the data, if it does not follow from the step's number. divided: the optimizers' state,
        perhaps with the parameters, if each worker has a part of it."""
        self.model = model
        # Modules with buffers: the model, and those that `follow` adds
        self.modules: list[tuple[str, torch.nn.Module]] = [("", model)]
        self._averages: list[torch.nn.Module] = []
        self.extra_state = ExtraState(self.modules)
        self.optimizers = list(optimizers)
        self.schedulers = list(schedulers)
        self.scaler = scaler
        self.divided = divided
        self._data = data
        self._values: dict[str, Any] = {}  # received registered values, until their tensors have arrived
        self._walk: _Walk | None = None  # the last walk over all parameters
        self.registered = registered if registered is not None else Registered()
        self.registered.state.weights = lambda: [
            each for _, module in self.modules for each in (*module.parameters(), *module.buffers())
        ]

    def follow(
        self,
        schedulers: Sequence[torch.optim.lr_scheduler.LRScheduler],
        averages: Sequence[torch.nn.Module],
        beside: Sequence[tuple[str, torch.nn.Module]],
    ) -> None:
        """Add these objects to the state. beside: modules whose parameters the optimizers train, and the model does not have."""
        self.schedulers += schedulers
        self._averages = list(averages)
        self.modules += [*beside, *((f"averaged {number}", each) for number, each in enumerate(averages))]
        self.extra_state.find()

    def trained(self) -> list[torch.nn.Parameter]:
        """Return the parameters that require a gradient, each once: the model's in its order, then those of optimizers only."""
        groups = [group["params"] for optimizer in self.optimizers for group in optimizer.param_groups]
        walk = self._walk
        if walk is None or not walk.holds(groups):
            walk = self._walk = _Walk(self.model, groups)
        return walk.trained()

    # -- giving

    def header(self, counters: Mapping[str, int]) -> dict[str, Any]:
        """Return the state without its tensors, in plain values. Raises UserError, naming the value, if one cannot be packed."""
        optimizers, registered, numbered = self._pack_all()
        divided = {} if self.divided is None else {DIVISION: self.divided.plain()}
        return {
            **divided,
            "format": FORMAT,
            "counters": dict(counters),
            "tensors": [describe(name, tensor) for name, tensor in numbered],
            "trained": [position for position, tensor in enumerate(self._parameters()) if tensor.requires_grad],
            "optimizers": optimizers,
            "schedulers": self.scheduler_states(),
            "scaler": None
            if self.scaler is None
            else pack(self.scaler.state_dict(), "the state of the gradient scaler"),
            "data": None if self._data is None else self._data.state(),
            "extra": self.extra_state.values(),
            "registered": registered,
        }

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors themselves, not copies, in the header's order."""
        return [tensor for _, tensor in self._pack_all()[2]]

    def keys(self) -> dict[str, dict[str, int]]:
        """Return the keys of each module's `state_dict` with the numbers of their tensors in the header, by the module's name.

        The model's name is "".
        Tied parameters have several keys. Hooks by which a module changes its `state_dict` are not called.
        """
        numbers = {id(tensor): number for number, (_, tensor) in enumerate(self._model_objects())}
        return {
            name: {key: numbers[id(tensor)] for key, tensor in _entries(module) if id(tensor) in numbers}
            for name, module in self.modules
        }

    def named_tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Return the tensors in the header's order, with names for messages."""
        named = self._pack_all()[2]
        parameters = len(self.named_parameters())
        for position in range(len(self._model_tensors())):
            kind = "parameter" if position < parameters else "buffer"
            if not named[position][0].startswith("averaged"):
                named[position] = f"{kind} {named[position][0]}", named[position][1]
        return named

    def buffers(self) -> list[torch.Tensor]:
        """Return the buffers of all modules, persistent or not."""
        return [slot.tensor for slot in slots(self.modules) if slot.tensor is not None]

    def copied_buffers(self) -> list[tuple[Slot, torch.Tensor, torch.Tensor]]:
        """Return for each buffer its place in its module, the tensor itself, and a copy of its content."""
        found = [(slot, slot.tensor) for slot in slots(self.modules)]
        return [(slot, tensor, tensor.detach().clone()) for slot, tensor in found if tensor is not None]

    def put_buffers(self, copied: Sequence[tuple[Slot, torch.Tensor, torch.Tensor]]) -> None:
        """Restore buffers from a result of `copied_buffers`: the tensors themselves, and their contents."""
        with torch.no_grad():
            for slot, tensor, content in copied:
                slot.module._buffers[slot.name] = tensor
                tensor.copy_(content)

    def copied(self) -> tuple[dict[str, Any], list[torch.Tensor]]:
        """Return the header and copies of all tensors; the copies are in host memory if the device's does not suffice."""
        tensors = self.tensors()
        try:
            copies = [tensor.detach().clone() for tensor in tensors]
        except torch.OutOfMemoryError:
            copies = [tensor.detach().to("cpu", copy=True) for tensor in tensors]
        return self.header({}), copies

    def put_back(self, header: Mapping[str, Any], copies: Sequence[torch.Tensor]) -> None:
        """Restore parameters, buffers, optimizers and averages from a result of `copied`."""
        with torch.no_grad():
            for own, content in zip(self.adopt(header), copies, strict=True):
                own.copy_(content)
        self._values = {}

    def changing(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return those of `tensors` (a result of `tensors()`) that loop bodies may change in the middle of a step.

        These are hyper-parameters, buffers, and tensors of the registered state."""
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        options = [value for group in groups for value in group.values() if isinstance(value, torch.Tensor)]
        places = {tensor.data_ptr() for tensor in [*options, *self.buffers(), *self.registered.state.tensors()]}
        return [tensor for tensor in tensors if tensor.data_ptr() in places]

    # -- taking

    def trained_in(
        self, header: Mapping[str, Any], optimizers: Sequence[int] | None = None
    ) -> list[torch.nn.Parameter]:
        """Return this model's parameters that are trained in the header's state. Raises UserError as `adopt`.

        optimizers: positions in the header; only their parameters are returned. None: all."""
        self._check(header)
        wanted = set(header["trained"])
        if optimizers is not None:
            groups = [group for position in optimizers for group in header["optimizers"][position]["groups"]]
            wanted &= {position for group in groups for position in group["params"]}
        return [parameter for position, parameter in enumerate(self._parameters()) if position in wanted]  # type: ignore[misc]

    def adopt(self, header: Mapping[str, Any]) -> list[torch.Tensor]:
        """Give parameters and optimizers the header's structure: which parameters are trained, their groups, their state.

        Returns this worker's tensors in the header's order, to receive the contents. Raises UserError, with nothing changed, if
        the header is of another model, other optimizers or another set of registered values.
        """
        self._check(header)
        parameters = self._parameters()
        targets = [tensor for _, tensor in self._model_tensors()]
        trained = set(header["trained"])
        for position, parameter in enumerate(parameters):
            parameter.requires_grad_(position in trained)
        for optimizer, theirs in zip(self.optimizers, header["optimizers"], strict=True):
            self._adopt_optimizer(optimizer, theirs, parameters, header["tensors"], targets)
        take = self._taker(parameters[0].device, header["tensors"], targets)
        self._values = {
            name: unpack(packed, take, self.registered.present(name, packed))
            for name, packed in header["registered"].items()
        }
        return targets

    def _taker(
        self, device: torch.device, descriptions: Sequence[list[Any]], targets: list[torch.Tensor]
    ) -> Callable[[int, Any], torch.Tensor]:
        """Return a function that appends to `targets`, in the header's order, a tensor for each number.

        It is the present tensor, if this has the right type and shape and is not yet taken; otherwise a new one."""
        taken: set[int] = set()

        def tensor_of(number: int, present: Any) -> torch.Tensor:
            if number != len(targets):
                raise PeerError(f"tensor {number} of a training state comes where {len(targets)} should")
            fits = isinstance(present, torch.Tensor) and describe("", present)[1:] == descriptions[number][1:]
            fits = fits and id(present) not in taken
            taken.add(id(present))
            targets.append(present if fits else allocate(descriptions[number], device))
            return targets[number]

        return tensor_of

    def _adopt_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        theirs: Mapping[str, Any],
        parameters: Sequence[torch.Tensor],
        descriptions: Sequence[list[Any]],
        targets: list[torch.Tensor],
    ) -> None:
        def take(device: torch.device) -> Callable[[int, Any], torch.Tensor]:
            return self._taker(device, descriptions, targets)

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
            own.update(unpack(group["options"], take((members or parameters)[0].device), own))

    def finish(self, header: Mapping[str, Any]) -> None:
        """Set the values beside the model and optimizers, when the tensors have arrived.

        These are the schedulers' state, the gradient scaler's, the position in the data, and the script's own values."""
        self.set_scheduler_states(header["schedulers"])
        if self.scaler is not None:
            self.scaler.load_state_dict(unpack(header["scaler"]))
        if self._data is not None:
            self._data.load(header["data"])
        self.extra_state.set_values(header["extra"])
        self.registered.set(self._values)
        self._values = {}

    def batch_changes(self) -> list[list[float]] | None:
        """Return the changes of the batch size so far, in plain values; None: the batch cannot change."""
        return self._data.plain_changes() if isinstance(self._data, Growing) else None

    def take_batch_changes(self, changes: list[list[float]] | None) -> None:
        """Set the changes of the batch size to a result of `batch_changes`."""
        if isinstance(self._data, Growing) and changes is not None:
            self._data.take_changes(changes)

    def units_in(self, header: Mapping[str, Any]) -> range | None:
        """Return the units (`scaling`) of the next step of the header's state; None: the batch cannot change."""
        return self._data.units_in(header["data"]) if isinstance(self._data, Growing) else None

    def scheduler_states(self) -> list[Any]:
        """Return the states of all schedulers, in plain values."""
        return [pack(each.state_dict(), f"the state of a {type(each).__name__}", inline) for each in self.schedulers]

    def set_scheduler_states(self, states: Sequence[Any]) -> None:
        """Set all schedulers to a result of `scheduler_states`."""
        for scheduler, state in zip(self.schedulers, states, strict=True):
            scheduler.load_state_dict(unpack(state, lambda content, present: restored(content)))

    # -- the objects

    def named_parameters(self) -> list[tuple[str, torch.Tensor]]:
        """Return the model's parameters with their names, tied ones once, then those that only an optimizer has."""
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
        return [parameter for _, parameter in self.named_parameters()]

    def _model_tensors(self) -> list[tuple[str, torch.Tensor]]:
        if self.divided is not None:
            return [(name, self.divided.stands_for(tensor)) for name, tensor in self._model_objects()]
        return [(name, tensor.detach()) for name, tensor in self._model_objects()]

    def _model_objects(self) -> list[tuple[str, torch.Tensor]]:
        """Return parameters, then buffers, persistent or not, then averaged parameters: the modules' own objects."""
        buffers = [(slot.path, slot.tensor) for slot in slots(self.modules) if slot.tensor is not None]
        averaged = [
            (f"averaged {number}.{name}", parameter)
            for number, average in enumerate(self._averages)
            for name, parameter in average.named_parameters()
        ]
        return [*self.named_parameters(), *buffers, *averaged]

    def _pack_all(self) -> tuple[list[dict[str, Any]], dict[str, Any], list[tuple[str, torch.Tensor]]]:
        """Return the optimizers and the script's values in plain values, and all tensors in the order of their numbers."""
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
        return packed, self.registered.pack(number), tensors

    def _pack_optimizer(
        self,
        name: str,
        optimizer: torch.optim.Optimizer,
        positions: Mapping[int, int],
        number: Callable[[torch.Tensor, str], int],
    ) -> dict[str, Any]:
        states = {positions.get(id(parameter)): state for parameter, state in optimizer.state.items() if state}
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

    # -- whether a header fits this script

    def _check(self, header: Mapping[str, Any]) -> None:
        if header.get("format") != FORMAT:
            raise UserError(f"the training state has format {header.get('format')!r}; this version knows {FORMAT}")
        if self.divided is not None:
            self.divided.expect(whole=DIVISION not in header)
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
        own_data = None if self._data is None else self._data.state()
        here, there = _kind_of_data(own_data), _kind_of_data(header.get("data"))
        if here != there:
            raise UserError(f"another dataset: this script's has {here}, that of the training state has {there}")
        self._check_count("gradient scaler", header["scaler"] is not None, self.scaler is not None)
        own_names = self.registered.names()
        theirs = [name for name in header["registered"] if name != OF_EPOCH]
        if sorted(theirs) != sorted(own_names):
            there, here = (", ".join(sorted(names)) or "none" for names in (theirs, own_names))
            raise UserError(f"the training state has the registered values {there}; this script registers {here}")

    def _check_count(self, what: str, theirs: int, ours: int) -> None:
        if int(theirs) != int(ours):
            raise UserError(
                f"the training state has {int(theirs) or 'no'} {what}, this script {int(ours) or 'no'} {what}"
            )


def _kind_of_data(position: Mapping[str, Any] | None) -> str:
    if position is None:
        return "an index"
    return "an index, and a batch that may grow (scaling)" if "units" in position else "shards"


def _check_groups(optimizer: torch.optim.Optimizer, theirs: Sequence[Mapping[str, Any]], parameters: int) -> None:
    """Raise UserError unless an optimizer's groups fit the training state's.

    The training state may have more groups and parameters, added while the job ran. A script that begins with more is a different
    one.
    """
    own = optimizer.param_groups
    sizes, others = [len(group["params"]) for group in own], [len(group["params"]) for group in theirs]
    known = all(0 <= position < parameters for group in theirs for position in group["params"])
    if len(others) < len(sizes) or any(a > b for a, b in zip(sizes, others, strict=False)) or not known:
        raise UserError(f"another optimizer: its groups have {sizes} parameters, in the training state {others}")


def _words(description: list[Any]) -> str:
    name, kind, shape = description[:3]
    return f"{name} ({kind}, shape {list(shape)})"


_parts = attrgetter("_modules", "_parameters")
_values = methodcaller("values")
_requires_grad = attrgetter("requires_grad")


class _Walk:
    """The parameters found by one walk over a model and over its optimizers' groups.

    Every step needs them, and they rarely change. So a walk keeps the modules, too, and `holds` compares their present parts and
    parameters with the kept ones, without a Python call for each module."""

    def __init__(self, model: torch.nn.Module, groups: Sequence[Sequence[torch.nn.Parameter]]) -> None:
        self._model = model
        self._modules = _modules_of(model)
        self._seen = self._look(groups)
        if self._names_own_parameters():
            own = list(model.parameters())
        else:
            own = [each for module in self._modules for each in module._parameters.values() if each is not None]
        every = [*own, *(parameter for group in groups for parameter in group)]
        self._parameters = list({id(parameter): parameter for parameter in every}.values())

    def _names_own_parameters(self) -> bool:
        """Return whether the model's class overrides `named_parameters`."""
        return type(self._model).named_parameters is not torch.nn.Module.named_parameters

    def _look(self, groups: Sequence[Sequence[torch.nn.Parameter]]) -> list[Any]:
        held = chain.from_iterable(map(_parts, self._modules))
        return [*chain.from_iterable(map(_values, held)), *chain.from_iterable(groups)]

    def holds(self, groups: Sequence[Sequence[torch.nn.Parameter]]) -> bool:
        """Return whether another walk would find the same parameters."""
        now = self._look(groups)
        same = len(now) == len(self._seen) and all(map(is_, now, self._seen))
        return same and not self._names_own_parameters()

    def trained(self) -> list[torch.nn.Parameter]:
        """Return the parameters that require a gradient, each once: the model's in its order, then those of optimizers only."""
        return [*compress(self._parameters, map(_requires_grad, self._parameters))]


def _modules_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the modules of `model.modules()` in its order, without the cost of making their names."""
    found: dict[int, torch.nn.Module] = {}
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if id(module) not in found:
            found[id(module)] = module
            waiting += [each for each in reversed(module._modules.values()) if each is not None]
    return list(found.values())


def _entries(root: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the keys and tensors of a module's `state_dict`, without calling its hooks.

    The part of a key that `torch.compile` adds is left out, as by torch.distributed.checkpoint.
    """
    for path, module in root.named_modules(remove_duplicate=False):
        buffers = {key: each for key, each in module._buffers.items() if key not in module._non_persistent_buffers_set}
        for key, tensor in (*module._parameters.items(), *buffers.items()):
            if tensor is not None:
                yield (f"{path}.{key}" if path else key).replace("_orig_mod.", ""), tensor
