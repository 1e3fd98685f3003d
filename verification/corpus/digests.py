"""Digests of a script's final state, of any type."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import torch


def digest(value: Any) -> str:
    """Return a digest of all bits of `value`: tensors, arrays and containers of them; other values by their `repr`."""
    hashed = hashlib.sha256()
    _feed(hashed, value)
    return hashed.hexdigest()[:16]


def _feed(hashed: Any, value: Any) -> None:
    hashed.update(type(value).__name__.encode() if not isinstance(value, Mapping) else b"mapping")
    if isinstance(value, torch.Tensor):
        held = value.detach().cpu().contiguous()
        hashed.update(f"{held.dtype} {tuple(held.shape)}".encode())
        hashed.update(held.reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, numpy.ndarray):
        hashed.update(f"{value.dtype} {value.shape}".encode() + value.tobytes())
    elif isinstance(value, Mapping):
        for key, item in value.items():
            hashed.update(repr(key).encode())
            _feed(hashed, item)
    elif isinstance(value, list | tuple):
        for item in value:
            _feed(hashed, item)
    else:
        hashed.update(repr(value).encode())


def files(directory: Path) -> dict[str, str]:
    """Return digests of the files that the script has written, by name, without its source."""
    found = {}
    for path in sorted(directory.rglob("*.pt")):
        if not path.name.startswith("."):
            found[str(path.relative_to(directory))] = digest(torch.load(path, weights_only=False))
    return found
