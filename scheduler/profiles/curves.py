"""Throughput of models by number of GPUs, from tables of measurements.

The header identifies a table. Either it has a model, a number of GPUs and one of four measures (AFS, ElasticFlow,
Gavel, or a user's own: ``model,gpus,samples_per_s``, with the other columns where there are several batches or types of
GPU)::

    model | job_type     gpus | scale_factor     samples_per_s | iters_per_s | steps_per_s | us_per_iter
    global_batch_size | global_batch | batch_size     gpu_type | worker_type     in_afs_table4 (0: never chosen at random)

or it is EasyScale's or Sia's and Pollux' (`easyscale_curves`, `placement_curves`).

Rules for the curves of every table:

* Measurements are taken as they are, noise included: a simulated job is exactly as fast as measured. Policies see the
  same table, dents included. Where one share was measured repeatedly the median counts.
* A share that is missing between two measured ones (empty, nan and 0 are missing too) lies on the straight line between
  them in throughput, which keeps a concave curve concave. Interpolation in time per iteration, as in the AFS table,
  would not.
* Beyond the largest measured share throughput stays constant, so that no policy wants more.
* Speedups are relative to one GPU. Where measurements begin with n > 1 GPUs, fewer GPUs count in proportion: linear
  scaling, which makes n GPUs worth n, the most that is possible without superlinear scaling.
* Weak scaling (Gavel) needs nothing special: its steps are those of one GPU's batch, summed over the GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ...protocol.errors import UserError
from ..arrays import Floats
from ..kinds import is_called
from .placements import PLACEMENT_COLUMNS, Placed, placement_curves, placement_times
from .tables import Table, listed, read

MISSING = frozenset({"", "nan", "NaN", "None", "0", "0.0"})
MODEL = ("model", "job_type")
GPUS = ("gpus", "scale_factor")
BATCH = ("global_batch_size", "global_batch", "batch_size")
TYPE = ("gpu_type", "worker_type")
RATES = ("samples_per_s", "iters_per_s", "steps_per_s")  # columns of measures of which more is faster
TIMES_US = ("us_per_iter",)
EASYSCALE_COLUMNS = ("model", "bs", "gpu", "ddp_nondeterminism")
MOST_GPUS = 1 << 16  # largest share of a curve, as each share takes a column


@dataclass(frozen=True, eq=False)
class Curve:
    """One model with one batch on one type of GPU. Rates are those with one GPU; nan: not in the table."""

    model: str
    batch: float | None  # batch size of all workers together; None: not in the table
    gpu_type: str
    speedup: Floats  # T(n) / T(1) for n from 0 to the largest measured share
    iterations_per_s: float = math.nan
    samples_per_s: float = math.nan
    at_random: bool = True  # may be given to jobs of unknown model

    def best(self, gpus: int) -> int:
        """Return the share of greatest throughput among those up to `gpus`; of equal ones the smallest."""
        return int(np.argmax(self.speedup[: gpus + 1]))

    @property
    def name(self) -> str:
        return self.model if self.batch is None else f"{self.model}/{self.batch:g}"


@dataclass(frozen=True)
class Profiles:
    """The curves of a file, in its order."""

    source: str
    curves: tuple[Curve, ...]
    placed: Placed = field(default_factory=dict)  # where steps were timed with many batches (Sia, Pollux)

    def find(self, model: str, batch: float | None) -> Curve:
        """Return the curve of a model, by case-insensitive name, and of a batch where the table has several.

        Without a batch, or where several types of GPU were measured: the first in the file. Raises UserError if there
        is none.
        """
        named = [curve for curve in self.curves if curve.model.casefold() == model.casefold()]
        if not named:
            known = listed(dict.fromkeys(curve.model for curve in self.curves))
            raise UserError(f"no model {model!r} in {self.source}; it has {known}")
        fitting = [curve for curve in named if batch is None or curve.batch is None or curve.batch == batch]
        if not fitting:
            known = listed(dict.fromkeys(f"{curve.batch:g}" for curve in named))
            raise UserError(f"{model} with a batch of {batch:g} is not in {self.source}; it has {known}")
        return fitting[0]

    def on_type(self, curve: Curve, name: str) -> Curve:
        """Return the curve of the same model and batch on GPUs of this name. Raises UserError if there is none."""
        same = [one for one in self.curves if (one.model, one.batch) == (curve.model, curve.batch)]
        found = next((one for one in same if not one.gpu_type or is_called(one.gpu_type, name)), None)
        if found is None:
            known = listed(dict.fromkeys(one.gpu_type for one in same))
            raise UserError(f"{curve.name} was not measured on {name} in {self.source}; it was on {known}")
        return found

    def of_type(self, name: str) -> Profiles:
        """Return the curves on GPUs of this name, and those without a type. Raises UserError if there are none.

        "": GPUs without a type, on which all curves hold.
        """
        found = tuple(one for one in self.curves if not one.gpu_type or not name or is_called(one.gpu_type, name))
        if not found:
            types = listed(dict.fromkeys(curve.gpu_type for curve in self.curves))
            raise UserError(f"{self.source}: no GPU type {name!r}; there are {types}")
        return replace(self, curves=found)

    def pool(self) -> tuple[Curve, ...]:
        """Return the curves for jobs without a model: all of the first GPU type."""
        allowed = [curve for curve in self.curves if curve.at_random]
        return tuple(curve for curve in allowed if curve.gpu_type == allowed[0].gpu_type)


def load(path: Path | Table, gpu_type: str | None = None) -> Profiles:
    """Return the curves in a file or table; only those of `gpu_type` if it is given.

    Raises UserError if it is not such a table.
    """
    table = path if isinstance(path, Table) else read(path)
    placed: Placed = {}
    if all(column in table for column in PLACEMENT_COLUMNS):
        placed = placement_times(table)
        curves = [curve_of(*measured) for measured in placement_curves(placed)]
    elif all(column in table for column in EASYSCALE_COLUMNS):
        curves = easyscale_curves(table)
    else:
        curves = _plain_curves(table)
    if not curves:
        raise UserError(f"{table.source}: no measured throughput")
    if gpu_type is not None:
        types = dict.fromkeys(curve.gpu_type for curve in curves)
        if gpu_type not in types:
            raise UserError(
                f"{table.source}: no GPU type {gpu_type!r}; there are {listed(name for name in types if name) or 'none'}"
            )
        curves = [curve for curve in curves if curve.gpu_type == gpu_type]
    return Profiles(table.source, tuple(curves), placed)


def speedups(measured: Mapping[int, float]) -> Floats:
    """Return T(n) / T(1) for n from 0 to the largest measured share. All measured throughputs must be above 0."""
    known = sorted(measured)
    points = [0, *known]
    rates = np.interp(np.arange(known[-1] + 1), points, [0.0, *(measured[share] for share in known)])
    return np.asarray(rates / rates[1])


def easyscale_curves(table: Table) -> list[Curve]:
    """Return the curves of EasyScale's Fig. 12: seconds per mini-batch of one worker with plain DDP.

    Workers scale without loss (its eq. 1), so the curve is a straight line. A job cannot use more GPUs than workers;
    the trace limits that. The trace calls NeuMF ncf.
    """
    seconds, batch = table.numbers("ddp_nondeterminism"), table.numbers("bs")
    gpus = np.arange(257, dtype=np.float64)
    return [
        Curve("ncf" if model == "NeuMF" else model, None, gpu_type, gpus, samples_per_s=samples / second)
        for model, gpu_type, samples, second in zip(
            table.texts("model"), table.texts("gpu"), batch.tolist(), seconds.tolist(), strict=True
        )
        if second > 0
    ]


def _plain_curves(table: Table) -> list[Curve]:
    """Return the curves of a table with one row for each model, batch, type of GPU and share."""
    model, gpus, measure = _one_of(table, MODEL), _one_of(table, GPUS), _one_of(table, (*RATES, *TIMES_US))
    batch, kind = _one_of(table, BATCH, optional=True), _one_of(table, TYPE, optional=True)
    shares = table.whole(gpus).tolist()
    too_many = next((row for row, share in enumerate(shares) if share > MOST_GPUS), None)
    if too_many is not None:
        raise table.wrong(too_many, gpus, f"{shares[too_many]} GPUs, more than {MOST_GPUS}")
    batches = table.numbers(batch).tolist() if batch else [None] * len(table)
    kinds = table.texts(kind) if kind else [""] * len(table)
    pooled = table.columns.get("in_afs_table4", ["1"] * len(table))
    values = _measured(table, measure)
    points: dict[tuple[str, float | None, str], dict[int, list[float]]] = {}
    at_random: dict[tuple[str, float | None, str], bool] = {}
    for row, name in enumerate(table.texts(model)):
        key = (name, batches[row], kinds[row])
        at_random[key] = pooled[row] != "0"
        if values[row] > 0:
            rate = 1e6 / values[row] if measure in TIMES_US else values[row]
            points.setdefault(key, {}).setdefault(shares[row], []).append(rate)
    samples = measure == "samples_per_s"
    return [curve_of(*key, measured, samples, at_random[key]) for key, measured in points.items()]


def curve_of(
    model: str,
    batch: float | None,
    gpu_type: str,
    measured: Mapping[int, Sequence[float]],
    samples: bool = False,
    at_random: bool = True,
) -> Curve:
    """Return the curve of repeated measurements by share, in iterations (or `samples`) per second."""
    rates = {share: float(np.median(values)) for share, values in measured.items()}
    speedup = speedups(rates)
    rate = rates[min(rates)] / float(speedup[min(rates)])
    size = math.nan if batch is None else batch
    per_s = (rate / size, rate) if samples else (rate, rate * size)
    return Curve(model, batch, gpu_type, speedup, *per_s, at_random)


def _measured(table: Table, column: str) -> list[float]:
    """Return the values of a measure; 0 where nothing was measured."""
    texts = ["0" if text.strip() in MISSING else text for text in table.columns[column]]
    filled = Table(table.source, {column: texts}, table.lines)
    return [float(value) for value in filled.numbers(column)]


def _one_of(table: Table, names: Iterable[str], optional: bool = False) -> str:
    """Return the column that has one of these names; "" if there is none and it is optional."""
    found = [name for name in names if name in table]
    if not found and not optional:
        raise UserError(
            f"{table.source}: line 1: not a table of throughputs: no column {' or '.join(names)}; "
            f"there are {', '.join(table.columns)}"
        )
    return found[0] if found else ""
