"""Results of a simulation as data: a row for each job or event, and means over several seeds with their intervals."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import NormalDist, mean, stdev
from typing import Any

import numpy as np

from ..protocol.errors import UserError
from . import fairness
from .runs import Result, Setup

Rows = dict[str, list[Any]]  # by column; None: there is no value

ENDINGS = (".csv", ".parquet")
# The 97.5 % points of Student's t distribution for 1, 2, 3 ... degrees of freedom (NIST/SEMATECH e-Handbook, 1.3.6.7.2).
T_POINTS = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


def job_rows(setup: Setup, result: Result) -> Rows:
    """Return a row for each job, in the order of submission. Times are seconds from the first submission.

    Columns: ``job``, ``model``, ``requested_gpus``, ``submitted_s``, ``started_s`` (first GPU), ``ended_s``, ``jct_s``,
    ``queueing_s`` (until the first GPU), ``gpu_s`` (GPU-seconds), ``changes`` (of its GPUs while it ran), ``slowdown``
    and ``finish_time_fairness`` (`fairness`), ``deadline_s``; ``user`` and ``account`` if the trace names them. None: it
    never started, never ended, or has no deadline.
    """
    load = setup.assigned.workload
    return {
        "job": [str(name) for name in load.names],
        **{by.value: list(names) for by, names in load.owners.items()},
        "model": [load.models[curve] for curve in load.curve.tolist()],
        "requested_gpus": load.requested_gpus.tolist(),
        "submitted_s": load.submit_s.tolist(),
        "started_s": _values(result.start_s),
        "ended_s": _values(result.end_s),
        "jct_s": _values(result.end_s - load.submit_s),
        "queueing_s": _values(result.start_s - load.submit_s),
        "gpu_s": _values(result.gpu_s),
        "changes": result.changes.tolist(),
        "slowdown": _values(fairness.slowdowns(load, result.end_s)),
        "finish_time_fairness": _values(fairness.finish_time_fairness(load, result.end_s, setup.gpus)),
        "deadline_s": _values(setup.assigned.deadline_s),
    }


def timeline_rows(result: Result) -> Rows:
    """Return a row for each event; its values hold until the next one.

    Columns: ``time_s`` (seconds from the first submission), ``waiting_jobs``, ``used_gpus``, ``efficiency`` (the sum of
    all speedups, per GPU) and ``blocking`` (AFS's blocking index, AFS 2.2).
    """
    series = result.series
    return {
        "time_s": series.time_s.tolist(),
        "waiting_jobs": series.queue.tolist(),
        "used_gpus": series.used_gpus.tolist(),
        "efficiency": _values(series.efficiency),
        "blocking": _values(series.blocking),
    }


def _values(column: Any) -> list[float | None]:
    return [None if math.isnan(value) else value for value in np.asarray(column, dtype=np.float64).tolist()]


# -- files


def check_file(path: Path) -> None:
    """Raise UserError if `write` could not write a file of this name."""
    if path.suffix not in ENDINGS:
        raise UserError(f"{path} must end in {' or '.join(ENDINGS)}")
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise UserError(f"{path}: pyarrow is not installed: pip install 'elasticctl[parquet]', or name a .csv file")


def labelled_rows(labelled: Iterable[tuple[Mapping[str, Any], Rows]]) -> Rows:
    """Return all rows, with their common values (`policy`, `seed`) as columns before the others."""
    whole: Rows = {}
    for common, rows in labelled:
        count = len(next(iter(rows.values())))
        for name, value in common.items():
            whole.setdefault(name, []).extend([value] * count)
        for name, values in rows.items():
            whole.setdefault(name, []).extend(values)
    return whole


def write(path: Path, labelled: Iterable[tuple[Mapping[str, Any], Rows]]) -> None:
    """Write rows, with their common values (`policy`, `seed`) as columns before the others."""
    whole = labelled_rows(labelled)
    if path.suffix == ".parquet":
        _write_parquet(path, whole)
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(whole)
        lines.writerows(zip(*whole.values(), strict=True))


def _write_parquet(path: Path, rows: Rows) -> None:
    import pyarrow
    from pyarrow import parquet

    # A column without any value still has the type of numbers.
    number = pyarrow.float64()
    columns = {
        name: pyarrow.array(values, number if all(value is None for value in values) else None)
        for name, values in rows.items()
    }
    parquet.write_table(pyarrow.table(columns), path)


# -- several seeds


def interval(values: Sequence[float]) -> float | None:
    """Return half the width of the 95 % confidence interval of the mean, by Student's t distribution; None for one
    value."""
    if len(values) < 2:
        return None
    return _t_point(len(values) - 1) * stdev(values) / math.sqrt(len(values))


def _t_point(freedom: int) -> float:
    """Return the t point; beyond the table by the first terms of the expansion around the normal distribution (within
    0.001 there)."""
    if freedom <= len(T_POINTS):
        return T_POINTS[freedom - 1]
    z = NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def over_seeds(
    figures: Sequence[Mapping[str, float | None]],
) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """Return the mean of each figure over the seeds, and half the width of its 95 % interval; None where a seed has
    none."""
    means: dict[str, float | None] = {}
    halves: dict[str, float | None] = {}
    for name in figures[0]:
        values = [value for one in figures if (value := one[name]) is not None]
        known = len(values) == len(figures)
        means[name] = mean(values) if known else None
        halves[name] = interval(values) if known else None
    return means, halves
