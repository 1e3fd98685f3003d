"""A script's own values as attributes of one object (`run.state`): part of the job's state, as buffers are.

A script counts steps, keeps the best loss, an average or a replay buffer. Elan's RegisterState (V-A) takes a function
that gets such a value and one that sets it. Here the object holds the values, so both are known, and the loop may
change the values anywhere.

**In a loop body**, which runs once for each virtual worker, values behave as buffers do. Each body begins with the
job's values. The values of virtual worker 0 at its `optimizer.step()` are the job's from the update on, on every
worker. Each worker's first body puts a digest of its resulting plain values into the step's word. If all digests are
the same, as with `state.step += 1`, nothing is sent. Otherwise the worker that hosts virtual worker 0 sends the
attributes that have changed; of their tensors only those that are new or have other contents.

**After `optimizer.step()`** the update has been made in the last body of each worker, and only there. So the next step
begins with the values that this body sets, and they have to be the same on all workers: a counter or an average of the
weights is, the loss of one micro-batch is not. The next step's word has a digest of the plain values at its beginning,
so a difference is refused by name before another update is made. Differences of tensors are found by the workers'
comparison.

**Between steps** values change at once, on each worker.

A joining worker gets the values of a step's beginning in the state's header, virtual worker 0's in the step, and the
changes after the update at the next boundary (`changes`).

In-place changes of tensors are found by their versions, which changes through `tensor.data` do not increase. So tensors
are restored before each body whatever their versions are, except those in a deque: a replay buffer has thousands, so
its tensors are restored by version only.
"""

from __future__ import annotations

import array
import hashlib
import operator
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy
import torch

from ...protocol.errors import UserError
from ..communication.communicator import Communicator
from ..digests import digests, mixed, together
from ..inband import NOTHING, Part
from ..plain import fill, inline, is_own_object, pack, restored, set_attributes, unpack
from ..source.own_code import attributes_of
from ..value_kinds import MUTABLE

HASH_BITS = 62  # bits of a number in the word, which also has the negative of the number
SHOWN = 40  # characters of a value in a message
INLINE_BYTES = 1 << 16  # larger tensors are broadcast separately from the payloads
NEW = -1  # in place of a tensor's number: the tensor is new
PREFIX = "state."


class State:
    """The object that a script uses. Its attributes are the values of `ScriptState`."""

    __slots__ = ("_values",)

    def __init__(self, values: dict[str, Any]) -> None:
        object.__setattr__(self, "_values", values)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(_undeclared(name)) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._values:
            raise AttributeError(_undeclared(name))
        self._values[name] = value

    def __dir__(self) -> list[str]:
        return sorted(self._values)

    def __repr__(self) -> str:
        return f"State({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"


def _undeclared(name: str) -> str:
    return f"state.{name} was not declared: before the loop write run.state({name}=...), with the value that it begins with"


class Image:
    """One attribute at one moment, with copies of its tensors."""

    def __init__(self, where: str, value: Any, before: Image | None = None) -> None:
        """where: name of the attribute, for messages. before: image of the same attribute, of which copies of unchanged
        tensors are used.

        Raises UserError for a value that cannot travel.
        """
        self.value = value
        self.by_version = type(value) is deque
        # The elements of a deque, if only their tensors can change
        self.items = [*value] if self.by_version and all(map(_is_closed, value)) else None
        self.text, self.tensors = _read(where, value)
        self.versions = [tensor._version for tensor in self.tensors]
        known: dict[int, int] = {}
        if before is not None and self.by_version and before.by_version:
            known = {id(tensor): number for number, tensor in enumerate(before.tensors)}
        self.copies: list[torch.Tensor] = []
        for tensor, version in zip(self.tensors, self.versions, strict=True):
            number = known.get(id(tensor))
            same = before is not None and number is not None and before.versions[number] == version
            self.copies.append(before.copies[number] if same and before and number is not None else tensor.clone())

    def holds(self, value: Any) -> bool:
        """Return True if the value is certainly unchanged. Cheap; False does not mean that the value has changed."""
        if self.items is None:
            return False
        same = value is self.value and len(value) == len(self.items) and all(map(operator.is_, value, self.items))
        return same and [tensor._version for tensor in self.tensors] == self.versions

    def put_back(self) -> None:
        """Restore the contents of the tensors."""
        with torch.no_grad():
            if not self.by_version:
                torch._foreach_copy_(self.tensors, self.copies) if self.tensors else None
                return
            for number, (tensor, copy) in enumerate(zip(self.tensors, self.copies, strict=True)):
                if tensor._version != self.versions[number]:
                    tensor.copy_(copy)
                    self.versions[number] = tensor._version

    def restored(self) -> Any:
        """Return the value with its tensors restored; the same object if possible."""
        self.put_back()
        if self.items is not None:
            self.value.clear()
            self.value.extend(self.items)
            return self.value
        return put(self.value, _value(self.text, self.tensors))

    def copied(self) -> Any:
        """Return the value made of the copied tensors, which the caller must not change."""
        return _value(self.text, self.copies)

    def numbers(self) -> dict[tuple[Any, ...], int]:
        """Return the numbers of the tensors by their places in memory."""
        return {place_of(tensor): number for number, tensor in enumerate(self.tensors)}

    def has(self, number: int, tensor: torch.Tensor, contents: bool) -> bool:
        """Return whether `tensor`, at the place of tensor `number`, still has its contents."""
        if self.by_version or not (contents or tensor.device.type == "cpu"):  # a NumPy array on the host has no version
            return tensor._version == self.versions[number]
        return torch.equal(tensor, self.copies[number])


class Content(NamedTuple):
    """A tensor of a `Delta`."""

    number: int  # among the tensors of the image; NEW: not among them
    tensor: torch.Tensor | None  # new contents; None: unchanged


@dataclass(frozen=True)
class Delta:
    """Changes of an attribute since an `Image` of it."""

    text: bytes
    contents: Sequence[Content] | None  # None: all tensors are unchanged

    @classmethod
    def between(cls, where: str, image: Image, value: Any, contents: bool) -> Delta | None:
        """Return the changes since `image`; None without any.

        contents: also compare contents of tensors with unchanged versions.
        """
        if image.holds(value):
            return None
        text, tensors = _read(where, value)
        if not tensors and not image.tensors:
            return None if text == image.text else cls(text, None)
        numbers = image.numbers()
        found: list[Content] = []
        for tensor in tensors:
            number = numbers.get(place_of(tensor), NEW)
            same = number != NEW and image.has(number, tensor, contents)
            found.append(Content(number, None if same else tensor.clone()))
        if [each.number for each in found] == [*range(len(image.tensors))] and all(
            each.tensor is None for each in found
        ):
            return None if text == image.text else cls(text, None)
        return cls(text, found)

    def applied(self, image: Image, present: Any) -> Any:
        """Return the changed value. Fills `present` if possible.

        The image's tensors must have the contents that the image recorded.
        """
        tensors: list[torch.Tensor] = []
        for number, content in (
            self.contents if self.contents is not None else map(_unchanged, range(len(image.tensors)))
        ):
            old = image.tensors[number] if number != NEW else None
            if content is None:
                assert old is not None
                tensors.append(old)
            elif old is not None and (old.shape, old.dtype, old.device) == (
                content.shape,
                content.dtype,
                content.device,
            ):
                with torch.no_grad():
                    tensors.append(old.copy_(content))
            else:
                tensors.append(content)
        return put(present, _value(self.text, tensors))

    # -- on the way

    def plain(self, limit: float = float("inf")) -> list[Any]:
        """Return plain values. Tensors of more than `limit` bytes are described without their contents."""
        if self.contents is None:
            return [self.text, None]
        return [
            self.text,
            [[number, None if each is None else plain_tensor(each, limit)] for number, each in self.contents],
        ]

    @classmethod
    def of_plain(cls, values: Sequence[Any], device: torch.device) -> Delta:
        """Return the Delta of `plain` values. Tensors without contents are allocated and still to be filled."""
        text, contents = values
        if contents is None:
            return cls(text, None)
        return cls(
            text, [Content(number, None if each is None else of_plain(each, device)) for number, each in contents]
        )

    def large(self, limit: int) -> list[torch.Tensor]:
        """Return the tensors whose contents `plain` leaves out."""
        return [each for _, each in self.contents or () if each is not None and each.nbytes > limit]


class ScriptState:
    """All attributes of `run.state`, in a step. Takes part in the step's word and payloads."""

    name = "script's state"
    slots = 2
    compares = True

    def __init__(self) -> None:
        self._live: dict[str, Any] = {}
        self.object = State(self._live)
        self._start: dict[str, Image] = {}
        self._bodies = 0  # bodies that have begun in this step
        self._own: dict[str, bytes] | None = None  # texts at the end of this worker's first body
        self._new: dict[str, Delta] | None = None  # changes of virtual worker 0, if this worker hosts it
        self._told: dict[str, Delta] | None = None  # changes of virtual worker 0, received from its worker
        self._base: dict[str, tuple[bytes, int]] = {}  # plain values of the present body at `optimizer.step()`
        self._behind: dict[str, tuple[tuple[bytes, int], tuple[bytes, int]]] | None = (
            None  # of this worker's first body: values at `optimizer.step()` and at the end
        )
        self._applied = False
        self._joins = False
        self._sends = False  # a joining worker gets the state in this step
        self._shared: dict[str, Image] | None = None  # values right after the update, which joining workers have, too
        self._step = 0
        self._steps = 0  # number of steps of this process
        self.some_look_away = False  # whether some workers run no body in this step
        self.weights: Callable[[], Iterable[torch.Tensor]] = tuple  # of the job's modules
        self.refuses = ""  # reason why bodies may not change values; "": they may
        self.device = torch.device("cpu")

    def declare(self, values: Mapping[str, Any]) -> None:
        """Add attributes. Raises UserError, naming the attribute, for a value that cannot travel and for a bad name."""
        for name, value in values.items():
            if name.startswith("_"):
                raise UserError(f"run.state({name}=...): a name must not begin with an underscore")
            if name in self._live:
                raise UserError(f"run.state({name}=...) was called twice: give each value a name of its own")
            image = Image(PREFIX + name, value)
            self._live[name] = put(value, _value(image.text, image.tensors))

    def __bool__(self) -> bool:
        return bool(self._live)

    def get(self, name: str) -> Any:
        """Return the present value."""
        return self._live[name]

    def set(self, name: str, value: Any) -> None:
        """Set the value, in place if possible."""
        self._live[name] = put(self._live[name], value)

    # -- a step

    def begin(self, step: int, sends: bool) -> None:
        """Begin a step. sends: joining workers get the present values in this step.

        Raises UserError for a value that has come to share memory with the weights.
        """
        self._step, self._steps = step, self._steps + 1
        before, self._start = self._start, self._images(self._start)
        self._refuse_weights(before)
        self._bodies, self._own, self._new, self._told = 0, None, None, None
        self._joins, self._sends, self._shared = False, sends, None
        self._base, self._behind, self._applied = {}, None, False
        self.some_look_away = False

    def _refuse_weights(self, before: Mapping[str, Image]) -> None:
        """Refuse tensors of the weights in values that have changed: an update changes them on this worker, where a new
        worker has a copy.
        """
        known = {id(tensor) for image in before.values() for tensor in image.tensors}
        new = [
            (name, tensor)
            for name, image in self._start.items()
            if image is not before.get(name)
            for tensor in image.tensors
            if id(tensor) not in known
        ]
        weights = {tensor.data_ptr() for tensor in self.weights() if tensor.numel()} if new else frozenset()
        for name, tensor in new:
            if tensor.data_ptr() in weights:
                raise UserError(
                    f"state.{name} contains tensors of the model itself, which each update changes: give it a copy, such as "
                    "copy.deepcopy(model.state_dict())"
                )

    def begin_body(self) -> None:
        """Begin the body of a virtual worker with the values of the step's beginning."""
        if self._bodies and self._start:
            self.restore()
        self._bodies += 1

    def restore(self) -> None:
        """Restore the values of the step's beginning."""
        for name, image in self._start.items():
            if not image.holds(self._live[name]):
                self._live[name] = image.restored()

    def keep(self, first: bool) -> None:
        """Record the changes of a body that has come to `optimizer.step()`. first: of virtual worker 0.

        Raises UserError for values that cannot travel, and if bodies may not change values.
        """
        if not self._start:
            return
        self._base = self._texts_behind()
        if self._own is not None and not first:
            return
        contents = self._steps == 1  # scripts do the same in every step, so the first one is enough
        deltas = {
            name: delta
            for name, image in self._start.items()
            if (delta := Delta.between(PREFIX + name, image, self._live[name], contents)) is not None
        }
        if deltas and self.refuses:
            raise UserError(
                f"the loop body has changed state.{next(iter(deltas))}, and {self.refuses}, for which it runs several times in a "
                "step: change it behind optimizer.step(), or in prepare(…, after_update=function)"
            )
        if self._own is None:
            self._own = {
                name: deltas[name].text if name in deltas else image.text for name, image in self._start.items()
            }
        if first:
            self._new = deltas

    def end_body(self) -> None:
        """End a body. Raises UserError if it has set another value after `optimizer.step()` than the first body.

        Bodies before the last one see the weights before the update, so only these are compared with each other, and
        only attributes that had the same value at `optimizer.step()`.
        """
        if not self._start or self._applied:
            return
        behind = {name: (self._base[name], text) for name, text in self._texts_behind().items()}
        if self._behind is None:
            self._behind = behind
        for name, (base, text) in behind.items():
            other_base, other = self._behind[name]
            if base == other_base and text != other:
                raise UserError(
                    f"state.{name} is {_text(other[0])} for one virtual worker and {_text(text[0])} for another behind "
                    f"optimizer.step() in step {self._step}: {_REMEDY}"
                )

    def _texts_behind(self) -> dict[str, tuple[bytes, int]]:
        """Return the present plain values, each with a digest of its tensors.

        Tensors are read in the first step alone: scripts do the same in every step.
        """
        found: dict[str, tuple[bytes, int]] = {}
        for name, image in self._start.items():
            if not image.by_version and (not image.tensors or self._steps == 1):
                text, tensors = _read(PREFIX + name, self._live[name])
                found[name] = text, mixed([int(together(digests([tensor]))) for tensor in tensors])
        return found

    def apply(self, joins: bool) -> None:
        """Set virtual worker 0's values; the update follows."""
        self._applied = True
        if not self._live:
            return
        new = self._new if self._new is not None else self._told
        if new is None and not joins and self._own is not None:  # all workers have the same values
            own = self._own
            new = {name: Delta(own[name], None) for name, image in self._start.items() if own[name] != image.text}
        if not joins:
            self.restore()
        for name, delta in (new or {}).items():
            self._live[name] = delta.applied(self._start[name], self._live[name])
        self._joins = joins

    def updated(self) -> None:
        """Record the values right after the update, which joining workers have made, too."""
        if self._live and (self._sends or self._joins):
            self._shared = self._images()

    @contextmanager
    def as_begun(self) -> Iterator[None]:
        """Restore the values of the step's beginning in this context."""
        present = self._images()
        self.restore()
        try:
            yield
        finally:
            self.restore_whole(present)

    # -- in band

    def numbers(self, part: Part) -> Sequence[int]:
        """Return a digest of this worker's first body (its values at the beginning and at the end) and the negative
        digest.

        All workers agree if the maxima of both numbers are negatives of each other.
        """
        if part.joins or self._own is None:
            return NOTHING, NOTHING
        texts = [each for name, image in self._start.items() for each in (image.text, self._own[name])]
        number = _hashed(msgspec.msgpack.encode(texts)) >> (64 - HASH_BITS)
        return number, -number

    def wants(self, part: Part) -> bool:
        """Return whether virtual worker 0 ran here and has made changes that other workers cannot know."""
        changed = (self._new or {}).values()
        return bool(changed) and (self.some_look_away or any(delta.contents is not None for delta in changed))

    def wants_after(self, part: Part, greatest: Sequence[int]) -> bool:
        """Return whether the workers' digests differ."""
        return greatest[0] != NOTHING and greatest[0] != -greatest[1]

    def payload(self, part: Part) -> Any:
        """Return digests of the values of the step's beginning, and virtual worker 0's changes if this worker hosts it."""
        if part.joins or self._own is None:
            return None
        start = {name: [_hashed(image.text), _shown(image)] for name, image in self._start.items()}
        new = self._new
        return [start, None if new is None else {name: delta.plain(INLINE_BYTES) for name, delta in new.items()}]

    def carry(self, communicator: Communicator, part: Part, payloads: Sequence[Any]) -> None:
        """Take over virtual worker 0's changes, and receive the large tensors among them. Raises CommunicatorBroken."""
        for root, payload in enumerate(payloads):
            if payload is None or payload[1] is None:
                continue
            if self._new is None:
                self._told = {name: Delta.of_plain(each, self.device) for name, each in payload[1].items()}
            for delta in (self._new if self._new is not None else self._told or {}).values():
                for tensor in delta.large(INLINE_BYTES):
                    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
                    communicator.wait(communicator.broadcast(flat, root))
                    if self._new is None:
                        tensor.copy_(flat.view(tensor.dtype).view(tensor.shape))

    def read(self, part: Part, payloads: Sequence[Any]) -> None:
        """Compare the values of the step's beginning. Raises UserError if they differ between workers."""
        if part.joins:
            self._start = self._images()
        present = [(rank, payload) for rank, payload in enumerate(payloads) if payload is not None]
        for rank, (start, _) in present:
            for name, (number, shown) in start.items():
                other, (there, other_shown) = present[0][0], present[0][1][0][name]
                if number != there:
                    raise UserError(_DIFFER.format(name=name, a=other_shown, b=shown, x=other, y=rank, step=part.step))

    # -- as values

    def _images(self, before: Mapping[str, Image] | None = None) -> dict[str, Image]:
        found: dict[str, Image] = {}
        for name, value in self._live.items():
            old = (before or {}).get(name)
            found[name] = old if old is not None and old.holds(value) else Image(PREFIX + name, value, old)
        return found

    def whole(self) -> dict[str, Image]:
        """Return images of all present values."""
        return self._images()

    def restore_whole(self, whole: Mapping[str, Image]) -> None:
        """Restore the values of `whole`."""
        for name, image in whole.items():
            self._live[name] = image.restored()

    def changes(self) -> dict[str, Any]:
        """Return the changes since the update, which joining workers have made, too."""
        shared = self._shared or {}
        found: dict[str, Any] = {}
        for name, value in self._live.items():
            delta = Delta.between(PREFIX + name, shared.get(name) or Image(PREFIX + name, None), value, contents=True)
            if delta is not None:
                found[name] = delta.plain()
        return found

    def take(self, changes: Mapping[str, Any]) -> None:
        """Take over the `changes` of another worker."""
        shared = self._shared or {}
        for name, values in changes.items():
            image = shared.get(name) or Image(PREFIX + name, None)
            delta = Delta.of_plain(values, self.device)
            self._live[name] = delta.applied(image, self._live[name])

    def objects(self) -> list[Any]:
        """Return the values that change in place: containers, and objects of the script's own classes."""
        return [each for each in self._live.values() if isinstance(each, MUTABLE) or is_own_object(each)]

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors in all values."""
        return [tensor for name, value in self._live.items() for tensor in _read(PREFIX + name, value)[1]]


_REMEDY = (
    "what is set behind optimizer.step() or between steps must be the same on all workers. Set what follows from one micro-batch "
    "before optimizer.step(), where virtual worker 0's counts, or derive it from run.means"
)
_DIFFER = "state.{name} is {a} on worker {x} and {b} on worker {y} before step {step}: " + _REMEDY


def put(present: Any, value: Any) -> Any:
    """Return `present` filled with `value` if both are of one kind, so that other variables see the change; else
    `value`.
    """
    if present is value or type(present) is not type(value):
        return value
    match present:
        case list() | dict() | set():
            fill(present, value)
            if hasattr(present, "__dict__"):
                fill(vars(present), vars(value))
        case bytearray() | array.array():
            present[:] = value
        case _ if is_own_object(present):
            set_attributes(present, attributes_of(value, type(value)))
        case deque() if present.maxlen == value.maxlen:
            items = [*value]
            present.clear()
            present.extend(items)
        case numpy.ndarray() if (present.shape, present.dtype) == (
            value.shape,
            value.dtype,
        ) and present.flags.writeable:
            if not numpy.shares_memory(present, value):
                present[...] = value
        case random.Random():
            present.setstate(value.getstate())
        case numpy.random.RandomState():
            present.set_state(value.get_state())
        case torch.Generator() if present.device == value.device:
            present.set_state(value.get_state())
        case numpy.random.Generator() if type(present.bit_generator) is type(value.bit_generator):
            present.bit_generator.state = value.bit_generator.state
        case _:
            return value
    return present


def _is_closed(value: Any) -> bool:
    """Return whether nothing but tensors can change in this value."""
    if isinstance(value, tuple):
        return all(map(_is_closed, value))
    return value is None or isinstance(value, torch.Tensor | int | float | str | bytes)


def copy_of(image: Image) -> Any:
    """Return a copy of the value that shares no memory with it."""
    return _value(image.text, [tensor.clone() for tensor in image.copies])


def _unchanged(number: int) -> Content:
    return Content(number, None)


def _read(where: str, value: Any) -> tuple[bytes, list[torch.Tensor]]:
    """Return the value as bytes, and its tensors in the order of their numbers there.

    Raises UserError, naming the place, for a value that cannot travel.
    """
    tensors: list[torch.Tensor] = []

    def number(tensor: torch.Tensor, place: str) -> int:
        if tensor.layout is not torch.strided or tensor.device.type == "meta":
            raise UserError(f"{place} is a tensor that is sparse or has no memory, which cannot be carried along")
        tensors.append(tensor if type(tensor) is torch.Tensor and not tensor.requires_grad else tensor.detach())
        return len(tensors) - 1

    return msgspec.msgpack.encode(pack(value, where, number)), tensors


def _value(text: bytes, tensors: Sequence[torch.Tensor]) -> Any:
    return unpack(msgspec.msgpack.decode(text), lambda number, present: tensors[number])


def place_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return a key that two tensors have in common if they are the same elements of one memory."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def plain_tensor(tensor: torch.Tensor, limit: float = float("inf")) -> list[Any]:
    """Return a tensor as plain data; of one with more than `limit` bytes the description alone."""
    place = "host" if tensor.device.type == "cpu" else "device"
    kind, shape, data = inline(tensor, "") if tensor.nbytes <= limit else (_kind(tensor), list(tensor.shape), None)
    return [place, kind, shape, data]


def _kind(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def of_plain(values: Sequence[Any], device: torch.device) -> torch.Tensor:
    """Return the tensor of `plain_tensor`. device: for one that is on an accelerator at its source."""
    place, kind, shape, data = values
    target = torch.device("cpu") if place == "host" else device
    if data is None:
        return torch.empty(shape, dtype=getattr(torch, kind), device=target)
    return restored([kind, shape, data]).to(target)


def _hashed(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def _text(packed: bytes) -> str:
    return _short(unpack(msgspec.msgpack.decode(packed), lambda number, present: "a tensor"))


def _shown(image: Image) -> str:
    return _short(image.value)


def _short(value: Any) -> str:
    if not (value is None or isinstance(value, bool | int | float | str)):
        sized = hasattr(value, "__len__") and getattr(value, "ndim", 1) > 0  # a scalar tensor has no length
        return f"a {type(value).__name__}" + (f" of {len(value)}" if sized else "")
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
