"""Values as plain data: what MessagePack and a checkpoint can carry, with the types that Python tells apart.

A scalar stands for itself. A container is a mapping of one entry from its kind to its contents, so that a tuple comes back as a
tuple and a mapping may have numbers for keys. Tensors are numbered, and travel beside.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import numpy
import torch

from ...protocol.errors import PeerError, UserError

INT_MIN, INT_MAX = -(2**63), 2**64 - 1  # of MessagePack
MAX_DEPTH = 32


def no_tensors(tensor: torch.Tensor, where: str) -> int:
    """Refuses a tensor, where none can be carried."""
    raise UserError(f"{where} is a tensor, which cannot be carried here: use .item() or .tolist()")


def inline(tensor: torch.Tensor, where: str) -> list[Any]:
    """A tensor with all that it contains, for the few and small ones that do not travel beside."""
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), data]


def restored(content: Any) -> torch.Tensor:
    """The tensor that `inline` was given, on the CPU. Raises PeerError if it was given none."""
    try:
        kind, shape, data = content
        flat = torch.frombuffer(bytearray(data), dtype=getattr(torch, kind)) if data else None
        return torch.empty(shape, dtype=getattr(torch, kind)) if flat is None else flat.view(shape)
    except (ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise PeerError(f"a value is no tensor: {error}") from None


def pack(value: Any, where: str, number: Callable[[torch.Tensor, str], Any] = no_tensors, depth: int = 0) -> Any:
    """`value` as plain data. `number` numbers a tensor. Raises UserError, naming the place, where that cannot be."""
    if isinstance(value, torch.Tensor):
        return {"tensor": number(value, where)}
    if isinstance(value, numpy.generic):
        value = value.item()
    kind = type(value)
    if depth > MAX_DEPTH:
        raise UserError(f"{where} is nested too deeply, or contains itself")
    if value is None or kind in (bool, float, str, bytes) or (kind is int and INT_MIN <= value <= INT_MAX):
        return value
    if kind in (list, tuple):
        items = [pack(item, f"{where}[{i}]", number, depth + 1) for i, item in enumerate(value)]
        return {kind.__name__: items}
    if kind in (dict, OrderedDict, Counter):
        pairs = [
            [pack(key, f"a key of {where}", depth=depth + 1), pack(item, f"{where}[{key!r}]", number, depth + 1)]
            for key, item in value.items()
        ]
        return {"Counter" if kind is Counter else "dict": pairs}
    raise UserError(
        f"{where} is {'an integer beyond 64 bits' if kind is int else f'a {kind.__module__}.{kind.__qualname__}'}, which cannot "
        "be carried along: use numbers, text, bytes, None, lists, tuples and mappings of them"
    )


def unpack(data: Any, tensor: Callable[[Any, Any], Any] | None = None, present: Any = None) -> Any:
    """The value that was packed. `tensor` gives the tensor of a number; it also gets what `present`, a value of about the same
    form, has in its place (or None). Raises PeerError if `data` was not made by `pack`."""
    if not isinstance(data, dict):
        return data
    if len(data) != 1:
        raise PeerError("a packed container must have exactly one kind")
    ((kind, content),) = data.items()
    match kind:
        case "tensor" if tensor is not None:
            return tensor(content, present)
        case "list" | "tuple":
            there = (
                present if isinstance(present, list | tuple) and len(present) == len(content) else [None] * len(content)
            )
            items = [unpack(item, tensor, old) for item, old in zip(content, there, strict=True)]
            return items if kind == "list" else tuple(items)
        case "dict" | "Counter":
            old = present if isinstance(present, dict) else {}
            pairs = [(unpack(key), item) for key, item in content]
            result = {key: unpack(item, tensor, old.get(key)) for key, item in pairs}
            return result if kind == "dict" else Counter(result)
        case _:
            raise PeerError(f"{kind!r} is not a kind of packed value")
