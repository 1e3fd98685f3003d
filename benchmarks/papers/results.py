"""Simulations, each in its own process, with results cached in files: an interrupted run resumes.

A file is named by all inputs of its result (`cases.key`), so that it is never stale. Files are written atomically.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from elasticd.scheduler.arrays import Floats, Ints
from elasticd.simulator import runs
from elasticd.simulator.metrics import Metrics
from elasticd.simulator.plots import averages
from elasticd.simulator.workload import Workload

from . import cases
from .cases import Case

CELLS = 240  # equal parts of a simulation's time, over each of which series are averaged


@dataclass(frozen=True)
class Record:
    """Results of a simulation. Columns by job are in the order of submission, those by time one per cell."""

    metrics: Metrics
    jct_s: Floats  # NaN: never ended
    submit_s: Floats
    requested_gpus: Ints
    duration_s: Floats  # with the requested GPUs
    shortest_s: Floats  # alone, with the fastest number of GPUs
    deadline_s: Floats  # seconds from the first submission; NaN: none
    end_s: float  # of the last cell
    queue: Floats
    efficiency: Floats
    blocking: Floats
    used_gpus: Floats

    @property
    def avg_jct_s(self) -> float:
        assert self.metrics.avg_jct_s is not None
        return self.metrics.avg_jct_s

    @property
    def p99_jct_s(self) -> float:
        assert self.metrics.p99_jct_s is not None
        return self.metrics.p99_jct_s


Results = Mapping[Case, Record]


def simulate(case: Case, data: Path) -> Record:
    """Simulate one case in this process. Raises UserError."""
    setup = cases.setup(case, data)
    result = runs.run(setup, cases.policy(case, setup))
    load, series = setup.assigned.workload, result.series
    end_s = float(series.time_s[-1])
    edges = np.linspace(0.0, end_s, CELLS + 1)
    return Record(
        metrics=result.metrics,
        jct_s=series.jct_s,
        submit_s=load.submit_s,
        requested_gpus=load.requested_gpus,
        duration_s=load.work_s / load.curves.speedup[load.curve, load.requested_gpus],
        shortest_s=load.work_s / fastest(load),
        deadline_s=setup.assigned.deadline_s,
        end_s=end_s,
        queue=averages(series, series.queue.astype(np.float64), edges),
        efficiency=averages(series, series.efficiency, edges),
        blocking=averages(series, series.blocking, edges),
        used_gpus=averages(series, series.used_gpus.astype(np.float64), edges),
    )


def fastest(load: Workload) -> Floats:
    """Return each job's greatest throughput with permitted GPUs, relative to one GPU."""
    upto = np.maximum.accumulate(load.curves.speedup, axis=1)
    found: Floats = upto[load.curve, np.minimum(load.max_gpus, load.curves.most)]
    return found


def write(path: Path, record: Record) -> None:
    columns = {name: value for name, value in vars(record).items() if isinstance(value, np.ndarray)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".part-", dir=path.parent) as directory:
        part = Path(directory) / "part.npz"
        np.savez_compressed(
            part, metrics=np.array(msgspec.json.encode(record.metrics)), end_s=np.array(record.end_s), **columns
        )
        os.replace(part, path)


def read(path: Path) -> Record:
    with np.load(path) as stored:
        columns = {name: stored[name] for name in stored.files}
    metrics = msgspec.json.decode(bytes(columns.pop("metrics")), type=Metrics)
    return Record(metrics=metrics, end_s=float(columns.pop("end_s")), **columns)


def gather(wanted: Iterable[Case], data: Path, folder: Path, processes: int) -> dict[Case, Record]:
    """Return all results: those cached in `folder`, and the others simulated now, small traces first."""
    paths = {case: folder / f"{cases.key(case, data)}.npz" for case in wanted}
    missing = [case for case, path in paths.items() if not path.exists()]
    print(f"{len(paths) - len(missing)} of {len(paths)} simulations stand in {folder}", flush=True)
    if missing:
        _simulate_all(missing, paths, data, processes)
    return {case: read(path) for case, path in paths.items()}


def _simulate_all(missing: list[Case], paths: Mapping[Case, Path], data: Path, processes: int) -> None:
    """Simulate in processes that end with this one, however it ends; completed results are kept."""
    spawned = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(processes, spawned, initializer=runs.depend_on_the_parent)
    done = 0
    try:
        pending = {executor.submit(_simulate_and_write, case, data, paths[case]): case for case in missing}
        while pending:
            over, _ = wait(pending, return_when=FIRST_COMPLETED)
            for future in over:
                case, took_s = pending.pop(future), future.result()
                done += 1
                print(f"{done} of {len(missing)}: {case.label}: {took_s:.1f} s", flush=True)
        executor.shutdown()
    except BaseException:
        for child in multiprocessing.active_children():
            child.terminate()
        executor.shutdown(wait=True, cancel_futures=True)
        raise


def _simulate_and_write(case: Case, data: Path, path: Path) -> float:
    began_s = time.perf_counter()
    write(path, simulate(case, data))
    return time.perf_counter() - began_s
