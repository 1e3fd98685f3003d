"""Values of the script's own that travel with the job (Elan V-A, RegisterState).

They may contain tensors, which travel as the model's do. What is registered is read at once, so that a value that cannot travel
is refused where it is registered.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ...protocol.errors import UserError
from .epoch_values import NAME as OF_EPOCH
from .epoch_values import EpochValues
from .plain import inline, pack, restored, unpack
from .script_state import PREFIX, ScriptState
from .virtual_state import PREFIX as OF_EACH
from .virtual_state import VirtualState

Number = Callable[[torch.Tensor, str], Any]
_PREFIX = "the registered value "
_Tensors = dict[tuple[str, int], tuple[torch.Tensor, int]]


class Registered:
    """By name: how to get a value and how to set it."""

    def __init__(self, virtual_workers: int = 1) -> None:
        self._values: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {}
        # Names of those that follow rules of their own in a step, and are handed over in a way of their own behind it
        self._apart: set[str] = set()
        self.state = ScriptState()
        self.virtual = VirtualState(virtual_workers)
        self.of_epoch = EpochValues()
        # Tensors by name and number, with their versions. Who is kept here leaves its memory to no other.
        self._given: _Tensors | None = None  # those that joiners get with the state, in a step in which they get one
        self._changed: set[tuple[str, int]] = set()  # those that loop bodies have replaced since
        self._known: _Tensors = {}  # those that joiners have
        self.watched: list[tuple[str, torch.Tensor]] = []  # tensors, with the name of their value
        self._versions: list[int] = []

    def add(self, name: str, what: Any, set_value: Callable[[Any], Any] | None) -> None:
        """Raises UserError for what cannot travel."""
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
        """Values of `run.state`. Raises UserError for what cannot travel."""
        self.state.declare(values)
        for name in values:
            self.add_apart(PREFIX + name, partial(self.state.get, name), partial(self.state.set, name))

    def declare_virtual(self, values: dict[str, Any]) -> None:
        """Values of `run.per_virtual_worker`. Raises UserError for what cannot travel."""
        self.virtual.declare(values)
        for name in values:
            self.add_apart(OF_EACH + name, partial(self.virtual.get, name), partial(self.virtual.set, name))

    def add_apart(self, name: str, get: Callable[[], Any], set_value: Callable[[Any], None]) -> None:
        """A value that is in headers and checkpoints and is compared as the others are; all else is its owner's."""
        self._apart.add(name)
        self._values[name] = get, set_value

    def __bool__(self) -> bool:
        return bool(self._values)

    def values(self) -> dict[str, Any]:
        """All of them, as they are."""
        return {name: get() for name, (get, _) in self._values.items()}

    def names(self) -> list[str]:
        """In the order of registration."""
        return list(self._values)

    def pack(self, number: Number) -> dict[str, Any]:
        """All values, by name. Raises UserError, naming it, for one that cannot travel."""
        found = {name: pack(get(), _where(name), number) for name, (get, _) in self._values.items()}
        if self.of_epoch:
            found[OF_EPOCH] = pack(self.of_epoch.get(), _where(OF_EPOCH), number)
        return found

    def present(self, name: str, packed: Any = None) -> Any:
        """The value of now, into whose tensors those of `packed` may be put."""
        return self.of_epoch.present(packed) if name == OF_EPOCH else self._values[name][0]()

    def tensors(self) -> list[torch.Tensor]:
        """Those in all values."""
        return [*(tensor for tensor, _ in self._tensors().values()), *self.state.tensors()]

    def each(self) -> list[list[torch.Tensor]]:
        """Those of each value."""
        found: dict[str, list[torch.Tensor]] = {name: [] for name in self._values}
        self._each_tensor(lambda place, tensor: found[place[0]].append(tensor))
        return list(found.values())

    def objects(self) -> list[Any]:
        """Those that have been registered with a state of their own."""
        return [each for get, _ in self._values.values() if (each := getattr(get, "__self__", None)) is not None]

    def set(self, values: dict[str, Any]) -> None:
        """Hand the script its values, unpacked."""
        for name, (_, set_value) in self._values.items():
            if name in values:
                set_value(values[name])
        if OF_EPOCH in values:
            self.of_epoch.set(values[OF_EPOCH])

    # -- what has changed since the others got it

    def step_begins(self, sends: bool) -> None:
        """sends: joiners get the values of now in this step."""
        self._known, self._changed = {}, set()
        self._given = self._tensors() if sends else None

    def update_begins(self) -> None:
        """What loop bodies have changed so far joiners have not."""
        if self._given is not None:
            given = self._given
            self._changed = {
                place for place, (tensor, _) in self._tensors().items() if not _same(given.get(place), tensor)
            }

    def updated(self) -> None:
        """What the update has changed joiners have, too: they make it themselves."""
        if self._given is not None:
            self._known = {place: each for place, each in self._tensors().items() if place not in self._changed}

    def pack_changes(self) -> dict[str, Any]:
        """All values; of a tensor that others have, only its number."""

        def number(place: tuple[str, int], tensor: torch.Tensor) -> Any:
            return 0 if _same(self._known.get(place), tensor) else inline(tensor, place[0])

        return self._each_tensor(number)

    def _tensors(self) -> _Tensors:
        found: _Tensors = {}
        self._each_tensor(lambda place, tensor: found.update({place: (tensor, tensor._version)}))
        return found

    def unpack_changes(self, packed: dict[str, Any]) -> dict[str, Any]:
        """The values, from what another worker's `pack_changes` has given and the own tensors."""

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
        """All values but those apart, with copies of all tensors."""
        return {name: pack(get(), _where(name), inline) for name, get in self._told()}

    def set_whole(self, packed: dict[str, Any]) -> None:
        """Hand the script what `whole` has given."""
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
        """From now on `check` tells of changes to the tensors that are there."""
        self.watched.clear()
        self._each_tensor(lambda place, tensor: self.watched.append((place[0], tensor)))
        self.remember()

    def remember(self) -> None:
        """What has been changed so far may be."""
        self._versions = [tensor._version for _, tensor in self.watched]

    def check(self, virtual_workers: int) -> None:
        """Raises UserError, naming it, if the loop body, which runs for each of several virtual workers, has changed a tensor."""
        for (name, tensor), version in zip(self.watched, self._versions, strict=True):
            if tensor._version != version:
                self.refuse(name, virtual_workers)

    def refuse(self, name: str, virtual_workers: int) -> None:
        """The loop body has changed a tensor of this value. Raises UserError where it runs several times for each step."""
        if virtual_workers > 1:
            raise UserError(
                f"the registered value {name!r} has a tensor that the loop body changes, {virtual_workers} times for each "
                "global step: change it in a function that is called once, prepare(…, after_update=function)"
            )


def _same(known: tuple[torch.Tensor, int] | None, tensor: torch.Tensor) -> bool:
    """Is it the one that is known, unchanged?"""
    return known is not None and known[0].data_ptr() == tensor.data_ptr() and known[1] == tensor._version


def is_registered(name: str) -> bool:
    """Is a tensor of this name (`training_state`) among a script's registered values?"""
    return name.startswith(_PREFIX)


def _where(name: str) -> str:
    return f"{_PREFIX}{name!r}"
