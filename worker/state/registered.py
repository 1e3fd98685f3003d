"""Values of the script's own that travel with the job (Elan V-A, RegisterState).

They may contain tensors, which travel as the model's tensors do. A value is read when it is registered, so that one
that cannot travel is refused there.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch.nn import Module

from ...protocol.errors import UserError
from ..plain import inline, pack, restored, unpack
from .epoch_values import NAME as OF_EPOCH
from .epoch_values import EpochValues
from .script_state import PREFIX, ScriptState
from .virtual_state import PREFIX as OF_EACH
from .virtual_state import VirtualState

Number = Callable[[torch.Tensor, str], Any]
_PREFIX = "the registered value "
_Tensors = dict[tuple[str, int], tuple[torch.Tensor, int]]


class Registered:
    """The registered values by name, each with functions to get and set it."""

    def __init__(self, virtual_workers: int = 1) -> None:
        self._values: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {}
        # Names of values with rules of their own in a step, and a handover of their own after it
        self._apart: set[str] = set()
        self.state = ScriptState()
        self.virtual = VirtualState(virtual_workers)
        self.of_epoch = EpochValues()
        # Tensors by name and number, with their versions. A reference here keeps the memory from being used for another
        # tensor.
        # sent to joining workers with the state; None: no state is sent in this step
        self._given: _Tensors | None = None
        self._changed: set[tuple[str, int]] = set()  # replaced by loop bodies since then
        self._known: _Tensors = {}  # tensors that joining workers have
        self.watched: list[tuple[str, torch.Tensor]] = []  # tensors with the names of their values
        self._versions: list[int] = []

    def add(self, name: str, what: Any, set_value: Callable[[Any], Any] | None) -> None:
        """Register a value. Raises UserError for a value that cannot travel or be read, and for a name that is in use."""
        if name in self._values:
            raise UserError(f"register({name!r}) was called twice: give each value a name of its own")
        if set_value is not None:
            if not callable(what) or not callable(set_value):
                raise UserError(f"register({name!r}, get, set) takes two functions: get() and set(values)")
            accessors = what, set_value
        else:
            get, load = getattr(what, "state_dict", None), getattr(what, "load_state_dict", None)
            if not callable(get) or not callable(load):
                raise UserError(
                    f"register({name!r}, …) takes get and set, or an object with state_dict() and load_state_dict(): "
                    f"a {type(what).__name__} has none"
                )
            accessors = get, load
        try:
            value = accessors[0]()
        except Exception as error:
            raise UserError(
                f"register({name!r}, …): its value cannot be read before the loop: {type(error).__name__}: {error}"
            ) from error
        unpack(pack(value, _where(name), inline), lambda content, present: restored(content))
        self._values[name] = accessors

    def declare(self, values: dict[str, Any]) -> None:
        """Add values of `run.state`. Raises UserError for values that cannot travel."""
        self.state.declare(values)
        for name in values:
            self.add_apart(PREFIX + name, partial(self.state.get, name), partial(self.state.set, name))

    def declare_virtual(self, values: dict[str, Any]) -> None:
        """Add values of `run.per_virtual_worker`. Raises UserError for values that cannot travel."""
        self.virtual.declare(values)
        for name in values:
            self.add_apart(OF_EACH + name, partial(self.virtual.get, name), partial(self.virtual.set, name))

    def add_apart(self, name: str, get: Callable[[], Any], set_value: Callable[[Any], None]) -> None:
        """Add a value that is part of headers, checkpoints and comparisons, while its owner does everything else."""
        self._apart.add(name)
        self._values[name] = get, set_value

    def __bool__(self) -> bool:
        return bool(self._values)

    def values(self) -> dict[str, Any]:
        """Return all values by name."""
        return {name: get() for name, (get, _) in self._values.items()}

    def given(self) -> dict[str, Any]:
        """Return the values by name, except for those added by `add_apart`."""
        return {name: get() for name, get in self._told()}

    def names(self) -> list[str]:
        """Return the names in the order of registration."""
        return list(self._values)

    def pack(self, number: Number) -> dict[str, Any]:
        """Return all values as plain data, by name. Raises UserError, naming the value, if one cannot travel."""
        found = {name: pack(get(), _where(name), number) for name, (get, _) in self._values.items()}
        if self.of_epoch:
            found[OF_EPOCH] = pack(self.of_epoch.get(), _where(OF_EPOCH), number)
        return found

    def present(self, name: str, packed: Any = None) -> Any:
        """Return the present value, into which the tensors of `packed` may be copied."""
        return self.of_epoch.present(packed) if name == OF_EPOCH else self._values[name][0]()

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors in all values."""
        return [*(tensor for tensor, _ in self._tensors().values()), *self.state.tensors()]

    def each(self) -> list[list[torch.Tensor]]:
        """Return the tensors of each value."""
        found: dict[str, list[torch.Tensor]] = {name: [] for name in self._values}
        self._each_tensor(lambda place, tensor: found[place[0]].append(tensor))
        return list(found.values())

    def mentioned(self) -> frozenset[str]:
        """Return the variables and attributes that functions of the script mention which get or set a value."""
        functions = [each for pair in self._values.values() for each in pair if isinstance(each, FunctionType)]
        return frozenset(name for each in functions for name in (*each.__code__.co_names, *each.__code__.co_freevars))

    def objects(self) -> list[Any]:
        """Return the objects that were registered with a state of their own, and those that `run.state` has."""
        return [*self.with_state(), *self.state.objects()]

    def with_state(self) -> list[Any]:
        """Return the objects that were registered with a state of their own."""
        return [each for get, _ in self._values.values() if (each := getattr(get, "__self__", None)) is not None]

    def set(self, values: dict[str, Any]) -> None:
        """Set the script's values from unpacked ones."""
        for name, (_, set_value) in self._values.items():
            if name in values:
                set_value(values[name])
        if OF_EPOCH in values:
            self.of_epoch.set(values[OF_EPOCH])

    # -- changes since the other workers received the values

    def step_begins(self, sends: bool) -> None:
        """Begin a step. sends: joining workers get the present values in this step."""
        self._known, self._changed = {}, set()
        self._given = self._tensors() if sends else None

    def update_begins(self) -> None:
        """Record which tensors loop bodies have changed: joining workers do not have these changes."""
        if self._given is not None:
            given = self._given
            self._changed = {
                place for place, (tensor, _) in self._tensors().items() if not _same(given.get(place), tensor)
            }

    def updated(self) -> None:
        """Record the tensors after the update, whose changes joining workers make themselves."""
        if self._given is not None:
            self._known = {place: each for place, each in self._tensors().items() if place not in self._changed}

    def pack_changes(self) -> dict[str, Any]:
        """Return all values; a tensor that joining workers have is replaced by 0."""

        def number(place: tuple[str, int], tensor: torch.Tensor) -> Any:
            return 0 if _same(self._known.get(place), tensor) else inline(tensor, place[0])

        return self._each_tensor(number)

    def _tensors(self) -> _Tensors:
        found: _Tensors = {}
        self._each_tensor(lambda place, tensor: found.update({place: (tensor, tensor._version)}))
        return found

    def unpack_changes(self, packed: dict[str, Any]) -> dict[str, Any]:
        """Return the values of another worker's `pack_changes`, with this worker's own tensors in place of 0."""

        def tensor_of(name: str, content: Any, present: Any) -> Any:
            if content != 0:
                return restored(content)
            if not isinstance(present, torch.Tensor):
                raise UserError(
                    f"{_where(name)} does not return what it was set to: a tensor is missing. get() gives what set(values) got "
                    "last, or load_state_dict() what state_dict() gives, also if the script uses it later"
                )
            return present

        return {name: unpack(packed[name], partial(tensor_of, name), self.present(name)) for name in packed}

    def whole(self) -> dict[str, Any]:
        """Return all values except those added by `add_apart`, with copies of all tensors."""
        return {name: pack(get(), _where(name), inline) for name, get in self._told()}

    def set_whole(self, packed: dict[str, Any]) -> None:
        """Set the script's values from the result of `whole`."""
        self.set({name: unpack(each, lambda content, present: restored(content)) for name, each in packed.items()})

    def _each_tensor(self, give: Callable[[tuple[str, int], torch.Tensor], Any]) -> dict[str, Any]:
        packed: dict[str, Any] = {}
        for name, get in self._told():
            count = 0

            def number(tensor: torch.Tensor, where: str, name: str = name) -> Any:
                nonlocal count
                count += 1
                return give((name, count), tensor)

            packed[name] = pack(get(), _where(name), number)
        return packed

    def _told(self) -> list[tuple[str, Callable[[], Any]]]:
        return [(name, get) for name, (get, _) in self._values.items() if name not in self._apart]

    # -- in a step

    def watch(self) -> None:
        """Watch the present tensors for changes, which `check` reports."""
        self.watched = self._named()  # a new list, so that a reader of the old one notices the change
        self.remember()

    def present_tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Return the watched tensors with the names of their values. Of modules the present ones: a forward pass may bind
        another tensor to a buffer.
        """
        modules = {
            name for name, (get, _) in self._values.items() if isinstance(getattr(get, "__self__", None), Module)
        }
        if modules.isdisjoint(name for name, _ in self.watched):
            return self.watched
        return [*(each for each in self.watched if each[0] not in modules), *self._named(modules)]

    def _named(self, among: Container[str] | None = None) -> list[tuple[str, torch.Tensor]]:
        found: list[tuple[str, torch.Tensor]] = []
        self._each_tensor(lambda place, tensor: found.append((place[0], tensor)))
        return [each for each in found if among is None or each[0] in among]

    def remember(self) -> None:
        """Accept the changes made so far."""
        self._versions = [tensor._version for _, tensor in self.watched]

    def check(self, virtual_workers: int) -> None:
        """Raise UserError, naming the value, if the loop body has changed a tensor and runs for several virtual
        workers.
        """
        for (name, tensor), version in zip(self.watched, self._versions, strict=True):
            if tensor._version != version:
                self.refuse(name, virtual_workers)

    def refuse(self, name: str, virtual_workers: int) -> None:
        """Raise UserError for a changed tensor of this value if the loop body runs several times per step."""
        if virtual_workers > 1:
            raise UserError(
                f"the registered value {name!r} has a tensor that the loop body changes, {virtual_workers} times for each "
                "global step: change it in a function that is called once, prepare(…, after_update=function). A module whose "
                f'forward pass changes its buffers belongs to the model: torch.nn.ModuleDict({{"model": model, {name!r}: …}})'
            )


def _same(known: tuple[torch.Tensor, int] | None, tensor: torch.Tensor) -> bool:
    """Return whether `tensor` is the known one, unchanged."""
    return known is not None and known[0].data_ptr() == tensor.data_ptr() and known[1] == tensor._version


def is_registered(name: str) -> bool:
    """Return whether a tensor of this name (`training_state`) belongs to a script's registered values."""
    return name.startswith(_PREFIX)


def _where(name: str) -> str:
    return f"{_PREFIX}{name!r}"
