"""Evaluation: the sum of a script's function over the batches of a dataset, the same for every number of workers.

The batches are cut into N runs of neighbours, one for each virtual worker. The result of virtual worker v is a function
of the model's state and of v alone: its random numbers are derived from (seed, step, v), the model is in eval mode, and
sums are taken in the order of the batches, first those of v, then over v = 0 … N-1. So any worker may compute it. The
workers divide the virtual workers among themselves; a worker that does not get the others' parts computes these, too.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from ..protocol.errors import UserError
from .data.choice import map_style
from .data.fetching import fetch, move_to
from .virtual import derive_seed, seed_everything

NOTHING = None  # result of a function without a sum


class Evaluation:
    """One evaluation of one model. For the training thread."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        dataset: Any,
        batch_size: int | None,
        virtual_workers: int,
        seeds: tuple[int | str, ...],
        device: torch.device,
        models: Sequence[torch.nn.Module],
        metrics: Any = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
    ) -> None:
        """seeds: the job's seed, and values that distinguish this evaluation from others. models: to be put into eval
        mode.

        Raises UserError for arguments that cannot work.
        """
        if isinstance(dataset, DataLoader):
            batch_size = _batch_size_of(dataset)
            collate_fn, num_workers = dataset.collate_fn, dataset.num_workers
            dataset = dataset.dataset
        if isinstance(dataset, IterableDataset):
            raise UserError(
                "evaluate() needs samples with numbers, to divide them: an IterableDataset has none. Read it into a list, if it "
                "is not too long"
            )
        if batch_size is None or batch_size < 1 or num_workers < 0:
            raise UserError(f"batch_size is {batch_size}, num_workers {num_workers}: at least 1 and 0 are needed")
        dataset = map_style(dataset)
        if not len(dataset):
            raise UserError("evaluate() was given an empty dataset")
        self._function = function
        self._reader = _Reader(dataset, collate_fn)
        self._size = len(dataset)
        self._batch_size = batch_size
        self._virtual_workers = virtual_workers
        self._seeds = seeds
        self._device = device
        self._models = models
        self._metrics = _metrics_of(metrics)
        self._num_workers = num_workers

    @property
    def dataset(self) -> Any:
        """The dataset of the evaluation."""
        return self._reader.dataset

    @property
    def metrics(self) -> Sequence[Any]:
        """The metrics that the function updates."""
        return self._metrics

    def parts(self, virtual_workers: Sequence[int], progressed: Callable[[], None]) -> dict[int, bytes]:
        """Return the encoded results of these virtual workers. progressed: called after each batch."""
        found: dict[int, bytes] = {}
        requests = [self._requests(v) for v in virtual_workers]
        batches = iter(self._loader([request for each in requests for request in each]))
        with self._undisturbed():
            for v, own in zip(virtual_workers, requests, strict=True):
                found[v] = self._part(batches, own, progressed)
        return found

    def _requests(self, virtual_worker: int) -> list[tuple[int, range]]:
        """Return the seed and the samples of each of the virtual worker's batches."""
        n, size, batch = self._virtual_workers, self._size, self._batch_size
        count = -(-size // batch)
        own = range(count * virtual_worker // n, count * (virtual_worker + 1) // n)
        seed, *what = self._seeds
        return [
            (derive_seed(int(seed), *what, virtual_worker, i), range(i * batch, min(size, (i + 1) * batch)))
            for i in own
        ]

    def _loader(self, requests: list[tuple[int, range]]) -> DataLoader[Any]:
        # a generator of its own: otherwise the loader would draw a seed for its processes from the script's generator
        return DataLoader(
            self._reader,
            batch_size=None,
            sampler=requests,  # requests of `_Reader`
            num_workers=self._num_workers,
            collate_fn=_as_it_is,
            generator=torch.Generator(),
        )

    def _part(self, batches: Iterator[Any], requests: list[tuple[int, range]], progressed: Callable[[], None]) -> bytes:
        total: Any = NOTHING
        for metric in self._metrics:
            metric.reset()
        for seed, _ in requests:
            batch = move_to(next(batches), self._device)
            seed_everything(derive_seed(seed, "model"))
            total = _add(total, _settled(self._function(batch)))
            progressed()
        states = [_state(metric) for metric in self._metrics]
        return _encode((_on_host(total), states))

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Run without gradients and in eval mode; restore the models and all generators afterwards."""
        modules = [module for model in self._models for module in model.modules()]
        modes = [module.training for module in modules]
        buffers = [buffer for model in self._models for buffer in model.buffers()]
        before = [buffer.clone() for buffer in buffers]
        python, host, arrays = random.getstate(), torch.get_rng_state(), numpy.random.get_state()
        device = torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None
        for model in self._models:
            model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for module, mode in zip(modules, modes, strict=True):
                module.training = mode
            with torch.no_grad():
                for buffer, old in zip(buffers, before, strict=True):
                    if not torch.equal(buffer, old):
                        buffer.copy_(old)
            random.setstate(python)
            torch.set_rng_state(host)
            numpy.random.set_state(arrays)
            if device is not None:
                torch.cuda.set_rng_state(device, self._device)

    def result(self, parts: Mapping[int, bytes]) -> bytes:
        """Return the encoded sum of all virtual workers' parts."""
        total: Any = NOTHING
        states: list[list[Any]] = [[] for _ in self._metrics]
        for v in range(self._virtual_workers):
            own, of_metrics = _decode(parts[v])
            total = _add(total, own)
            for collected, state in zip(states, of_metrics, strict=True):
                collected.append(state)
        merged = [_merge(metric, each) for metric, each in zip(self._metrics, states, strict=True)]
        return _encode((total, merged))

    def take(self, result: bytes) -> Any:
        """Return the sum of the function's results, and set the states of the metrics."""
        total, states = _decode(result)
        for metric, state in zip(self._metrics, states, strict=True):
            _set_state(metric, state, self._device)
        return _plain(total)


def _batch_size_of(loader: DataLoader[Any]) -> int:
    """Return the batch size of a script's own loader, of which the samples are read in order.

    Raises UserError if the loader has options that an evaluation cannot follow.
    """
    all_of_it = type(loader.sampler) is SequentialSampler or (
        type(loader.sampler) is RandomSampler and not loader.sampler.replacement and loader.sampler._num_samples is None
    )
    if (
        loader.batch_size is None
        or type(loader.batch_sampler) is not BatchSampler
        or loader.batch_sampler.drop_last
        or not all_of_it
    ):
        raise UserError(
            "evaluate() was given a DataLoader with its own sampler=, without batch_size= or with drop_last=True: each "
            "sample is read once, in order; give the dataset and batch_size="
        )
    return loader.batch_size


class _Reader(Dataset[Any]):
    """Reads the samples of a request, in a data worker's process or in this one."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any] | None) -> None:
        self.dataset = dataset
        self._collate = collate

    def __getitem__(self, request: tuple[int, range]) -> Any:
        seed, indices = request
        seed_everything(seed)
        return fetch(self.dataset, list(indices), self._collate)


def _as_it_is(batch: Any) -> Any:
    return batch


# ------------------------------------------------------------------------------------------------------------------- sums


def _settled(value: Any) -> Any:
    """Return a function's result for one batch in the types of the sum: double precision, 64-bit integers."""
    if isinstance(value, torch.Tensor):
        value = value.detach()
        if value.is_floating_point():
            return value.double()
        return value if value.is_complex() else value.long()
    if isinstance(value, numpy.generic):
        value = value.item()
    if isinstance(value, bool):
        return int(value)
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, dict):
        return {key: _settled(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_settled(item) for item in value] if isinstance(value, list) else tuple(map(_settled, value))
    raise UserError(
        f"the function given to evaluate() returned a {type(value).__name__}: return sums (numbers, tensors, or mappings and "
        "lists of them), which are added up over all batches"
    )


def _add(left: Any, right: Any) -> Any:
    """Return the sum of two results. Raises UserError if they have different forms."""
    if left is None or right is None:
        return right if left is None else left
    if isinstance(left, dict) and isinstance(right, dict) and left.keys() == right.keys():
        return {key: _add(left[key], right[key]) for key in left}
    if isinstance(left, list | tuple) and type(left) is type(right) and len(left) == len(right):
        return type(left)(_add(a, b) for a, b in zip(left, right, strict=True))
    tensors = isinstance(left, torch.Tensor), isinstance(right, torch.Tensor)
    numbers = isinstance(left, int | float), isinstance(right, int | float)
    if all(numbers) or (all(tensors) and left.shape == right.shape):
        return left + right
    raise UserError(
        "the function given to evaluate() returned values of different forms for two batches: return sums over the batch, "
        "such as loss_sum and len(y), not one value for each sample"
    )


def _on_host(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: _on_host(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_on_host(item) for item in value)
    return value


def _plain(value: Any) -> Any:
    """Return the result with tensors of one number as numbers."""
    if isinstance(value, torch.Tensor):
        return value.item() if value.dim() == 0 else value
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(item) for item in value)
    return value


def _encode(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def _decode(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True)


# --------------------------------------------------------------------------------------------------------------- torchmetrics


def _metrics_of(metrics: Any) -> list[Any]:
    """Return the metrics of one metric, a list, a mapping, or a MetricCollection. Raises UserError for other types."""
    if metrics is None:
        return []
    if hasattr(metrics, "_reductions"):
        return [metrics]
    many = list(metrics.values()) if hasattr(metrics, "values") else metrics
    if not isinstance(many, list | tuple) or not all(hasattr(each, "_reductions") for each in many):
        raise UserError(
            f"metrics= takes metrics of torchmetrics, one or several; this is a {type(metrics).__name__}: let the function "
            "return sums instead"
        )
    return list(many)


def _state(metric: Any) -> dict[str, Any]:
    """Return a metric's state after its batches: tensors, and lists of tensors."""
    values = {name: getattr(metric, name) for name in metric._reductions}
    return {"updates": metric._update_count, "values": _on_host(values)}


def _merge(metric: Any, states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge the states as torchmetrics' `sync` does between processes, in the order of virtual workers."""
    used = [state for state in states if state["updates"]] or list(states[:1])
    merged: dict[str, Any] = {}
    for name, reduction in metric._reductions.items():
        values = [state["values"][name] for state in used]
        if len(values) == 1:
            merged[name] = values[0]
        elif isinstance(values[0], list):
            merged[name] = [item for value in values for item in value]
        else:
            stacked = torch.stack(values)
            merged[name] = stacked if reduction is None else reduction(stacked)
    return {"updates": sum(state["updates"] for state in states), "values": merged}


def _set_state(metric: Any, state: Mapping[str, Any], device: torch.device) -> None:
    metric.reset()
    for name, value in state["values"].items():
        setattr(metric, name, move_to(value, device))
    metric._update_count = state["updates"]
