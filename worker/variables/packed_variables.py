"""Values of a script's variables as plain data for a header (`script_variables`), beyond what `plain` converts.

A tensor that shares memory with the model's is the number of that tensor among the job's weights, so that the receiver's
value shares memory with its own model. Tensors with the same elements get one number, and stay one tensor. A copy of a
module of the job is described by what differs from the module.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch

from ...protocol.errors import UserError
from ..plain import pack, unpack
from ..state.script_state import of_plain, place_of, plain_tensor
from .frames import Variable

MOST_BYTES = 64 << 20  # of the tensors of all variables
MOST_HASHED_BYTES = 16 << 20  # of one tensor
MOST_NODES = 10_000  # of a graph that are looked at
_OF_WEIGHTS, _OWN = "weights", "own"
_HELD = frozenset({"_parameters", "_buffers", "_modules"})  # attributes of a module that contain tensors and modules


class Packing:
    """Conversion of variables to plain data."""

    def __init__(
        self, modules: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer] = (), first: int = 0
    ) -> None:
        """modules, optimizers: those of the job. first: number of the first tensor, if the values of several are unpacked by one
        `Unpacking`.
        """
        self._first = first
        self._modules = modules
        weights = [tensor for module in modules for tensor in _tensors(module)]
        self._weights = {place_of(each): number for number, each in enumerate(weights) if each.numel()}
        whole = [each for each in weights if type(each) in (torch.Tensor, torch.nn.Parameter) and each.numel()]
        whole += [
            each
            for one in optimizers
            for state in one.state.values()
            for each in state.values()
            if type(each) is torch.Tensor and each.numel()
        ]
        self._memories = {each.untyped_storage().data_ptr() for each in whole}
        self._bytes = 0  # of the tensors packed so far
        self._numbers: dict[tuple[Any, ...], int] = {}  # of the tensors, by their places in memory
        self._alive: list[torch.Tensor] = []  # so that no other tensor gets one of these places
        self._places: dict[int, tuple[Any, ...]] = {}  # of the first tensor in each memory

    def packed(self, variable: Variable) -> list[Any] | None:
        """Return the value as plain data; None if it cannot be carried, or with the others is too large."""
        before = self._bytes
        try:
            return self._packed(variable, self._content)
        except Exception:  # an odd object of the script
            self._bytes = before
            return None

    def text(self, variable: Variable) -> bytes | None:
        """Return bytes that change when the value changes other than by a change of the model's weights; None if it cannot be
        carried.
        """
        try:
            return msgspec.msgpack.encode(self._packed(variable, self._version))
        except Exception:
            return None

    def _packed(self, variable: Variable, number: Callable[[torch.Tensor, str], Any]) -> list[Any]:
        """Return a list of the value; of a copy of a module of the job, of the module's number, which of the copy's parameters
        are trained, and its submodules' attributes and tensors.
        """
        name, value = variable.name, variable.value
        if not isinstance(value, torch.nn.Module):
            return [pack(value, name, number)]
        for position, module in enumerate(self._modules):
            if module is not value and _are_alike(module, value):
                trained = [each.requires_grad for each in value.parameters()]
                attributes = list(map(self._attributes, module.modules(), value.modules()))
                tensors = [each.detach() for each in _tensors(value)]
                return [position, trained, pack([attributes, tensors], name, number)]
        raise UserError(f"{name} is a module that is no copy of one of the job")

    def _attributes(self, one: torch.nn.Module, other: torch.nn.Module) -> dict[str, Any]:
        """Return the other module's attributes that can be carried, such as a rate. Raises UserError if others differ, such as
        hooks.
        """
        found = {name: each for name, each in vars(other).items() if name not in _HELD}
        if found.keys() != vars(one).keys() - _HELD:
            raise UserError("a copy of a module has other attributes")
        carried = {}
        for name, each in found.items():
            try:
                pack(each, name, self._own)
                carried[name] = each
            except UserError:
                if each is not vars(one)[name]:
                    raise
        return carried

    def without_tensors(self, variable: Variable) -> list[Any] | None:
        """Return the value as plain data; None if it contains tensors, or cannot be carried."""
        try:
            return [pack(variable.value, variable.name)]
        except Exception:
            return None

    def _content(self, tensor: torch.Tensor, where: str) -> list[Any]:
        tensor = without_graph(tensor)
        if (own := self._own(tensor, where)) is not None:
            return own
        place = place_of(tensor)
        self._alive.append(tensor)
        number = self._numbers.setdefault(place, self._first + len(self._numbers))
        memory = tensor.untyped_storage().data_ptr()
        if tensor.numel() and self._places.setdefault(memory, place) != place:
            raise UserError(f"{where} is a tensor that shares memory with another one")
        self._bytes += tensor.nbytes
        if self._bytes > MOST_BYTES:
            raise UserError(f"{where} is a large tensor")
        strides = list(tensor.stride())
        is_dense = list(torch.empty_like(tensor, device="meta").stride()) == strides
        return [_OWN, number, plain_tensor(tensor), strides if is_dense and not tensor.is_contiguous() else None]

    def _version(self, tensor: torch.Tensor, where: str) -> list[Any]:
        tensor = without_graph(tensor)
        if (own := self._own(tensor, where)) is not None:
            return own
        if tensor.device.type != "cpu":
            return [tensor.data_ptr(), tensor._version]
        if tensor.nbytes > MOST_HASHED_BYTES:  # an array has no version, and reading all of it would take long
            raise UserError(f"{where} is too large to be compared")
        data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return [
            str(tensor.dtype),
            list(tensor.shape),
            list(tensor.stride()),
            hashlib.blake2b(data, digest_size=16).digest(),
        ]

    def _own(self, tensor: torch.Tensor, where: str) -> list[Any] | None:
        """Return the number of a tensor of the weights; None for other tensors."""
        if (
            type(tensor) is not torch.Tensor
            or tensor.requires_grad
            or tensor.layout is not torch.strided
            or tensor.is_meta
            or tensor.is_quantized
            or tensor.is_conj()
            or tensor.is_neg()
        ):
            raise UserError(f"{where} is a tensor that cannot be carried with a script's variables")
        number = self._weights.get(place_of(tensor))
        if number is None and tensor.numel() and tensor.untyped_storage().data_ptr() in self._memories:
            # as a copy it would not change with them
            raise UserError(f"{where} shares memory with the model's weights or the optimizer's state")
        return None if number is None else [_OF_WEIGHTS, number]


class Unpacking:
    """Conversion of plain data of one `Packing`, or of several with different numbers of tensors, to values."""

    def __init__(self, modules: Sequence[torch.nn.Module], device: torch.device) -> None:
        """device: as in `ScriptVariables`."""
        self._modules = modules
        self._device = device
        self._weights = [tensor for module in modules for tensor in _tensors(module)]
        self._tensors: dict[int, torch.Tensor] = {}

    def value(self, packed: Sequence[Any]) -> Any:
        """Return the value. Raises PeerError if the script has no class that the value needs."""
        value = unpack(packed[-1], self._tensor)
        return value if len(packed) == 1 else _copied(self._modules[packed[0]], packed[1], value)

    def _tensor(self, content: Any, present: Any) -> torch.Tensor:
        kind, number, *plain = content
        if kind == _OF_WEIGHTS:
            own: torch.Tensor = self._weights[number].detach()
            return own
        if number not in self._tensors:
            contents, strides = plain
            found = of_plain(contents, self._device)
            if strides is not None:  # sums over another order are rounded otherwise
                laid_out = torch.empty_strided(found.shape, strides, dtype=found.dtype, device=found.device)
                found = laid_out.copy_(found)
            self._tensors[number] = found
        return self._tensors[number]


def without_graph(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, without its graph if no gradient can come through the graph to a parameter any more, as for a hidden
    state that the next loop body detaches: on each way a backward pass has freed what the next one would need.
    """
    todo, seen = [tensor.grad_fn], set[Any]()
    while todo:
        node = todo.pop()
        if node is None or node in seen or _is_freed(node):
            continue
        if type(node).__name__ == "AccumulateGrad" or len(seen) == MOST_NODES:
            return tensor
        seen.add(node)
        todo += [each for each, _ in node.next_functions]
    return tensor if tensor.grad_fn is None else tensor.detach()


def _is_freed(node: Any) -> bool:
    for name in dir(node):
        if name.startswith("_saved_"):
            try:
                getattr(node, name)
            except RuntimeError:
                return True
    return False


def _tensors(module: torch.nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]


def _are_alike(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Return whether two modules have the same classes, and tensors of the same shapes."""
    kinds = [[type(each) for each in module.modules()] for module in (one, other)]
    tensors = [[(each.shape, each.dtype, each.device) for each in _tensors(module)] for module in (one, other)]
    return kinds[0] == kinds[1] and tensors[0] == tensors[1]


def _copied(module: torch.nn.Module, trained: Sequence[bool], parts: Any) -> torch.nn.Module:
    """Return a copy of a module, with other attributes and tensors."""
    found = copy.deepcopy(module)
    attributes, tensors = parts
    with torch.no_grad():
        for own, content in zip(_tensors(found), tensors, strict=True):
            own.copy_(content)
    for parameter, each in zip(found.parameters(), trained, strict=True):
        parameter.requires_grad_(each)
    for submodule, named in zip(found.modules(), attributes, strict=True):
        vars(submodule).update(named)
    return found
