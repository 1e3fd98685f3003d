"""Values of the script's own that travel with the job (Elan V-A, RegisterState).

They may contain tensors, which travel as the model's do. What is registered is read at once, so that a value that cannot travel
is refused where it is registered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...protocol.errors import UserError
from .plain import inline, pack, restored, unpack

Number = Callable[[torch.Tensor, str], Any]


class Registered:
    """By name: how to get a value and how to set it."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {}
        self._known: dict[tuple[str, int], tuple[int, int]] = {}  # memory and version of the tensors that joiners have
        self._watched: list[tuple[str, torch.Tensor]] = []
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

    def __bool__(self) -> bool:
        return bool(self._values)

    def names(self) -> list[str]:
        """In the order of registration."""
        return list(self._values)

    def pack(self, number: Number) -> dict[str, Any]:
        """All values, by name. Raises UserError, naming it, for one that cannot travel."""
        return {name: pack(get(), _where(name), number) for name, (get, _) in self._values.items()}

    def present(self, name: str) -> Any:
        """The value of now."""
        return self._values[name][0]()

    def set(self, values: dict[str, Any]) -> None:
        """Hand the script its values, unpacked."""
        for name, (_, set_value) in self._values.items():
            set_value(values[name])

    # -- what has changed since the others got it

    def sent(self) -> None:
        """Others have (will have made) the tensors of now."""
        self._known.clear()
        self._each_tensor(lambda place, tensor: self._known.update({place: _state(tensor)}))

    def pack_changes(self) -> dict[str, Any]:
        """All values; of a tensor that others have, only its number."""

        def number(place: tuple[str, int], tensor: torch.Tensor) -> Any:
            return 0 if self._known.get(place) == _state(tensor) else inline(tensor, place[0])

        return self._each_tensor(number)

    def unpack_changes(self, packed: dict[str, Any]) -> dict[str, Any]:
        """The values, from what another worker's `pack_changes` has given and the own tensors."""

        def tensor_of(content: Any, present: Any) -> Any:
            return present if content == 0 else restored(content)

        return {name: unpack(packed[name], tensor_of, self.present(name)) for name in self._values}

    def whole(self) -> dict[str, Any]:
        """All values, with copies of all tensors."""
        return self.pack(inline)

    def set_whole(self, packed: dict[str, Any]) -> None:
        """Hand the script what `whole` has given."""
        self.set({name: unpack(packed[name], lambda content, present: restored(content)) for name in self._values})

    def _each_tensor(self, give: Callable[[tuple[str, int], torch.Tensor], Any]) -> dict[str, Any]:
        packed: dict[str, Any] = {}
        for name, (get, _) in self._values.items():
            count = 0

            def number(tensor: torch.Tensor, where: str, name: str = name) -> Any:
                nonlocal count
                count += 1
                return give((name, count), tensor)

            packed[name] = pack(get(), _where(name), number)
        return packed

    # -- in a step

    def watch(self) -> None:
        """From now on `check` tells of changes to the tensors that are there."""
        self._watched.clear()
        self._each_tensor(lambda place, tensor: self._watched.append((place[0], tensor)))
        self.remember()

    def remember(self) -> None:
        """What has been changed so far may be."""
        self._versions = [tensor._version for _, tensor in self._watched]

    def check(self, virtual_workers: int) -> None:
        """Raises UserError, naming it, if the loop body, which runs for each of several virtual workers, has changed a tensor."""
        for (name, tensor), version in zip(self._watched, self._versions, strict=True):
            if tensor._version != version and virtual_workers > 1:
                raise UserError(
                    f"the registered value {name!r} has a tensor that the loop body changes, {virtual_workers} times for each "
                    "global step: change it in a function that is called once, prepare(…, after_update=function)"
                )


def _state(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor._version


def _where(name: str) -> str:
    return f"the registered value {name!r}"
