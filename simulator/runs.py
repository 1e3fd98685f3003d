"""One workload under several policies, each in a process of its own.

A simulation depends on its arguments alone, so the results are the same with any number of processes. Processes are
spawned, not forked, because the caller may have threads. They write their progress into a file that all of them share,
one number each.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ..protocol.errors import ElasticError, UserError
from ..protocol.model import JobId
from ..scheduler.admission import ADMIT_ALL, Admission
from ..scheduler.arrays import Floats, Ints
from ..scheduler.measuring import Measuring
from ..scheduler.placement.registry import FEWEST_SERVERS, Placement
from ..scheduler.policies.base import Policy
from ..scheduler.profiles.tables import Table
from ..scheduler.quotas.dividing import Tenancy
from ..scheduler.quotas.reservations import TimedReservation
from ..scheduler.quotas.terms import NO_QUOTAS, Quotas
from .assign import Assigned
from .clusters import Cluster
from .costs import Costs
from .engine import Simulation
from .explain import Moment, Story
from .failures import Rates
from .metrics import Metrics, measure
from .outcome import Flags, Outcome
from .owners import By
from .reserved import Period

REPORT_S = 0.2

L = TypeVar("L")  # the label of a run


@dataclass(frozen=True)
class Setup:
    """Common data of all policies."""

    assigned: Assigned
    cluster: Cluster
    costs: Costs
    seed: int
    packing: bool = False  # AFS 4.4
    explain: JobId | None = None
    placement: Placement = FEWEST_SERVERS
    admission: Admission = ADMIT_ALL
    failures: Rates | Table | None = None
    curves_known: bool = True  # False: policies see only the measurements of a job's throughput so far
    quotas: Quotas = NO_QUOTAS
    quotas_by: By = By.USER  # the owners to which quotas apply
    begins_s: float | None = None  # Unix time of the first submission; None: unknown, and reservations are left out
    reservations: tuple[TimedReservation, ...] = ()

    @property
    def gpus(self) -> int:
        return sum(len(server.gpus) for server in self.cluster)

    @property
    def stages(self) -> tuple[bool, Placement, Admission, Quotas, tuple[TimedReservation, ...]]:
        """The stages around the policy."""
        return self.packing, self.placement, self.admission, self.quotas, self.reservations

    def reserved(self) -> list[Period]:
        """Return when GPUs are out of use, in seconds from the first submission."""
        if self.begins_s is None:
            return []
        ends = [(one, one.to_s - self.begins_s) for one in self.reservations]
        return [Period(one.from_s - self.begins_s, to_s, one.gpus) for one, to_s in ends if to_s > 0.0]

    def tenancy(self) -> Tenancy | None:
        """Return the owners of all jobs with their quotas; None if there are no quotas."""
        if not self.quotas.any:
            return None
        return Tenancy(self.quotas, self.assigned.workload.owners[self.quotas_by])

    def explained_row(self) -> int | None:
        """Return the row of the job to explain. Raises UserError if there is none of that name."""
        if self.explain is None:
            return None
        names = self.assigned.workload.names
        if self.explain not in names:
            raise UserError(
                f"--explain: the trace has no job {self.explain!r}; the first is {names[0]}, the last {names[-1]}"
            )
        return list(names).index(self.explain)


@dataclass(frozen=True)
class Series:
    """Data of the figures. `jct_s` has an entry for each job (nan: never ended), the others have one for each event."""

    jct_s: Floats
    time_s: Floats
    queue: Ints
    efficiency: Floats
    blocking: Floats
    used_gpus: Ints


@dataclass(frozen=True)
class Result:
    """Results of one policy on the workload."""

    metrics: Metrics
    series: Series
    start_s: Floats  # by job; nan: it never got a GPU
    end_s: Floats  # by job; nan: it never ended
    gpu_s: Floats  # by job, GPU-seconds that it had
    changes: Ints  # by job, of its GPUs while it ran
    refused: Flags  # by job: whether the admission refused it
    story: tuple[Moment, ...]

    @property
    def never_started(self) -> bool:
        """Whether no job ever got a GPU."""
        return bool(np.isnan(self.start_s).all())


def run(setup: Setup, policy: Policy, progress: Callable[[int], None] = lambda _: None) -> Result:
    """Run one policy in this process. `progress`: called with the number of ended jobs."""
    workload = setup.assigned.under(policy)
    row = setup.explained_row()
    story = Story(row) if row is not None else None
    watch = story.note if story else None
    stages = setup.packing, setup.placement, setup.admission
    measuring = None if setup.curves_known else Measuring()
    simulation = Simulation(
        workload,
        setup.cluster,
        policy,
        setup.costs,
        setup.seed,
        *stages,
        watch,
        measuring,
        setup.failures,
        tenancy=setup.tenancy(),
        reserved=setup.reserved(),
    )
    outcome = simulation.run(progress)
    return Result(
        metrics=measure(outcome, setup.assigned.workload, setup.assigned.deadline_s, setup.gpus),
        series=_series(outcome, workload.submit_s),
        start_s=outcome.start_s,
        end_s=outcome.end_s,
        gpu_s=outcome.gpu_s,
        changes=outcome.changes,
        refused=outcome.refused,
        story=tuple(story.moments) if story else (),
    )


def run_all(
    setup: Setup,
    policies: Mapping[L, Policy],
    progress: Callable[[Mapping[L, int]], None] = lambda _: None,
    processes: int | None = None,
    own: Mapping[L, Setup] | None = None,
) -> dict[L, Result]:
    """Run every policy, by its label, with at most `processes` processes (as many as there are processors).

    Raises UserError if the job to explain is unknown, or no job makes progress.

    `own`: setups of policies that come with stages of their own.
    """
    setup.explained_row()
    setups = {label: (own or {}).get(label, setup) for label in policies}
    processes = min(processes or len(os.sched_getaffinity(0)), len(policies))
    if processes == 1:
        done = dict.fromkeys(policies, 0)
        found = {}
        for label, policy in policies.items():

            def tell(jobs: int, label: L = label) -> None:
                done[label] = jobs
                progress(done)

            found[label] = run(setups[label], policy, tell)
        return found
    memory = os.memfd_create("progress")  # an anonymous file, so that none is left behind in any case
    try:
        os.truncate(memory, 8 * len(policies))
        return _in_processes(setups, policies, progress, processes, Path(f"/proc/{os.getpid()}/fd/{memory}"))
    finally:
        os.close(memory)


def _in_processes(
    setups: Mapping[L, Setup],
    policies: Mapping[L, Policy],
    progress: Callable[[Mapping[L, int]], None],
    processes: int,
    board: Path,
) -> dict[L, Result]:
    executor = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), initializer=depend_on_the_parent)
    before = set(multiprocessing.active_children())
    try:
        futures: dict[L, Future[Result]] = {
            label: executor.submit(_run_and_tell, setups[label], policy, board, place)
            for place, (label, policy) in enumerate(policies.items())
        }
        pending = set(futures.values())
        while pending:
            over, pending = wait(pending, timeout=REPORT_S)
            for future in over:
                future.result()  # an error ends the whole run at once
            progress(dict(zip(policies, _open(board).tolist(), strict=True)))
        executor.shutdown()
        return {label: future.result() for label, future in futures.items()}
    except BrokenProcessPool:
        raise ElasticError("a simulation's process was killed; is there enough memory?") from None
    except BaseException:
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        executor.shutdown(wait=True, cancel_futures=True)
        raise


def _run_and_tell(setup: Setup, policy: Policy, board: Path, place: int) -> Result:
    counts = _open(board)

    def tell(jobs: int) -> None:
        counts[place] = jobs

    return run(setup, policy, tell)


def _open(board: Path) -> npt.NDArray[np.int64]:
    return np.memmap(board, dtype=np.int64, mode="r+")


def depend_on_the_parent() -> None:
    """Leave interrupts to the parent process, and exit as soon as the parent has ended for any reason."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _series(outcome: Outcome, submit_s: Floats) -> Series:
    line = outcome.timeline
    return Series(
        jct_s=outcome.end_s - submit_s,
        time_s=np.array(line.time_s),
        queue=np.array(line.queue, dtype=np.int64),
        efficiency=np.array(line.efficiency),
        blocking=np.array(line.blocking),
        used_gpus=np.array(line.used_gpus, dtype=np.int64),
    )
