"""Reading one batch from a map-style dataset, and moving it to the device."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
import torch
from torch.utils.data import TensorDataset, default_collate


def fetch(dataset: Any, indices: Sequence[Any], collate_fn: Callable[[list[Any]], Any] | None = None) -> Any:
    """Return one batch of a map-style dataset."""
    if collate_fn is None and (found := columns(dataset)) is not None:
        return rows_of(found, indices)
    if callable(many := getattr(dataset, "__getitems__", None)):
        items = list(many(list(indices)))
    else:
        items = [dataset[index] for index in indices]
    return (collate_fn or default_collate)(items)


def rows_of(columns: Sequence[torch.Tensor], indices: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """Return these rows of each column."""
    rows = torch.from_numpy(numpy.asarray(indices, dtype=numpy.int64))  # half the time of torch.as_tensor
    found: list[torch.Tensor] = []
    for column in columns:
        if type(column) is torch.Tensor and column.is_cpu and column.is_contiguous():
            try:
                # Half the time of an index, whose result has the column's order of memory, and not always a contiguous one.
                found.append(column.index_select(0, rows))
                continue
            except IndexError:  # some count from the end
                pass
        found.append(column[rows.to(column.device)])
    return tuple(found)


def columns(dataset: Any) -> tuple[torch.Tensor, ...] | None:
    """Return the tensors of a TensorDataset that only yields their rows; None for any other dataset."""
    if not isinstance(dataset, TensorDataset) or hasattr(dataset, "__getitems__"):
        return None
    return dataset.tensors if type(dataset).__getitem__ is TensorDataset.__getitem__ else None


def move_to(batch: Any, device: torch.device) -> Any:
    """Return `batch` with all its tensors on `device`, and its types kept.

    An object with a method `to` moves itself, as tensors do (a `PackedSequence`, Hugging Face's `BatchEncoding`).
    Mappings, lists, tuples, named tuples and dataclasses are traversed. All other values stay as they are.
    """
    if type(batch) is torch.Tensor and batch.device == device:
        return batch
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if type(batch) is tuple:  # most are: the rest of the questions cost more than the answer
        return tuple([move_to(value, device) for value in batch])
    if callable(to := getattr(batch, "to", None)) and not isinstance(batch, type):
        moved = to(device)
        return batch if moved is None else moved
    if isinstance(batch, Mapping):
        return _with_values(batch, {key: move_to(value, device) for key, value in batch.items()})
    if isinstance(batch, tuple):
        values = [move_to(value, device) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    if isinstance(batch, list):
        moved = copy.copy(batch)
        moved[:] = [move_to(value, device) for value in batch]
        return moved
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        moved = copy.copy(batch)
        for field in dataclasses.fields(batch):
            # works for frozen dataclasses, too
            object.__setattr__(moved, field.name, move_to(getattr(batch, field.name), device))
        return moved
    return batch


def _with_values(mapping: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    """Return a mapping of the same type with other values."""
    if type(mapping) is dict:
        return values
    if not hasattr(mapping, "__setitem__"):
        return type(mapping)(values)  # type: ignore[call-arg]
    moved: Any = copy.copy(mapping)
    for key, value in values.items():
        moved[key] = value
    return moved
