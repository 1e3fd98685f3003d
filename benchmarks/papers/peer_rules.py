"""Other simulators' versions of FIFO, LAS or Themis as policies of this project, to separate differences of policy and simulator.

PCS (OSDI'24 artifact, `PriorityScheduler.py`) gives jobs their GPUs in the order of a key. The first job that does not fit *gets
the remaining GPUs*: a job that requested eight GPUs runs with three, and slower. So no GPU is idle while a job waits, and no job
blocks others. This project, like Tiresias' simulator, gives a rigid job all of its GPUs or none.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np

from elasticd.scheduler.arrays import Floats
from elasticd.scheduler.policies.base import Policy, Shares, no_shares
from elasticd.scheduler.policies.reviews import EARLY_S
from elasticd.scheduler.view import JobTable, Reason
from elasticd.simulator.workload import Workload

Key = Callable[[JobTable, Floats], Floats]  # from the jobs and their work at submission (s on one GPU)


class PartialShares:
    """Give each job its requested GPUs in ascending order of a key, the last one the remaining GPUs."""

    needs_lengths = True

    def __init__(self, name: str, key: Key, workload: Workload) -> None:
        self.name = name
        self._key = key
        self._work_s = workload.work_s

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        keys = self._key(jobs, self._work_s[jobs.rows])
        order = np.argsort(keys, kind="stable")
        wanted = jobs.requested_gpus[order]
        before = np.cumsum(wanted) - wanted
        given = no_shares(jobs)
        given[order] = np.clip(gpus - before, 0, wanted)
        return Shares(given, _silent)


def _silent(row: int) -> Reason | None:
    return None


def _submission(jobs: JobTable, work_s: Floats) -> Floats:
    return jobs.submitted_s


def _time(jobs: JobTable, work_s: Floats) -> Floats:
    return np.asarray(jobs.left_s / jobs.speedup(slice(None), jobs.requested_gpus))


def _service(jobs: JobTable, work_s: Floats) -> Floats:
    return _time(jobs, work_s) * jobs.requested_gpus


def _done(jobs: JobTable, work_s: Floats) -> Floats:
    return work_s - jobs.left_s


class PcsThemis:
    """PCS's Themis: each job in turn gets its whole demand, the one with the greatest rho first.

    rho is (age + remaining work / GPUs) / (work / min(64 / mean number of jobs seen, demand)), as if throughput were linear. It
    is recomputed for the remaining GPUs after each job. Leases end 600 s after the last event.
    """

    name = "pcs-themis"
    needs_lengths = True
    lease_s = 600.0

    def __init__(self, workload: Workload) -> None:
        self._work_s = workload.work_s
        self._seen = np.zeros(len(workload))
        self._events = np.zeros(len(workload))

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        rows = jobs.rows
        self._seen[rows] += len(jobs)
        self._events[rows] += 1
        contention = self._seen[rows] / np.maximum(self._events[rows], 1)
        alone_s = self._work_s[rows] / np.minimum(gpus / contention, jobs.requested_gpus)
        age_s, left_s, wanted = now - jobs.submitted_s, jobs.left_s, jobs.requested_gpus
        given = no_shares(jobs)
        waits = np.ones(len(jobs), dtype=np.bool_)
        free = gpus
        while free > 0 and waits.any():
            rho = np.where(waits, (age_s + left_s / np.minimum(free, wanted)) / alone_s, -math.inf)
            row = int(rho.argmax())
            given[row] = min(free, int(wanted[row]))
            free -= int(given[row])
            waits[row] = False
        return Shares(given, _silent, now + self.lease_s if len(jobs) else math.inf)


class PcsAfs:
    """PCS's `AFS`, which compares jobs in pairs as in AFS Alg. 1: one GPU at a time to the last job that beats all before it.

    A job without GPUs has a rate of 0, and counts as the shorter one only against another without; then the one that would end
    first is chosen. GPUs are given even where they bring no throughput.
    """

    name = "pcs-afs"
    needs_lengths = True
    least_s = 1e-7  # added to every time

    def __init__(self, workload: Workload) -> None:
        self._speedup = workload.curves

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        given = no_shares(jobs)
        most, left_s = jobs.max_gpus.tolist(), jobs.left_s.tolist()
        curves = [self._speedup.row(curve) for curve in jobs.curve.tolist()]
        time_s = [math.inf] * len(jobs)
        rate = [0.0] * len(jobs)
        then = [self._rate(left, curve[1]) for left, curve in zip(left_s, curves, strict=True)]
        able = list(range(len(jobs)))
        for _ in range(gpus):
            if not able:
                break
            top = able[0]
            for other in able[1:]:
                short, long = (other, top) if time_s[other] < time_s[top] else (top, other)
                if not rate[short]:
                    top = short if then[short] > then[long] else long
                elif (then[short] - rate[short]) / rate[short] > (then[long] - rate[long]) / then[long]:
                    top = short
                else:
                    top = long
            given[top] += 1
            share = int(given[top])
            time_s[top], rate[top] = left_s[top] / curves[top][share], then[top]
            if share == most[top]:
                able.remove(top)
            else:
                then[top] = self._rate(left_s[top], curves[top][share + 1])
        return Shares(given, _silent)

    def _rate(self, left_s: float, speedup: float) -> float:
        return 1.0 / (left_s / speedup + self.least_s)


class TiresiasDlas:
    """`dlas-gpu` of Tiresias' simulator, line by line: queues are lists, with waiting jobs behind running ones.

    So an interrupted job is ahead of all that waited already, while in this project it goes to the tail of its queue. A job of
    several GPUs is demoted late: its next check is due after (threshold - executed seconds) / GPUs, as if seconds were
    GPU-seconds, unless another event occurs before.
    """

    name = "tiresias-dlas-gpu"
    needs_lengths = False
    limits_gpu_s = (3250, 7200)

    def __init__(self, workload: Workload) -> None:
        self._queues: list[list[int]] = [[] for _ in range(len(self.limits_gpu_s) + 1)]
        self._queue_of: dict[int, int] = {}

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        at = {job: row for row, job in enumerate(jobs.rows.tolist())}
        self._queues = [[job for job in queue if job in at] for queue in self._queues]
        new = [job for job in at if job not in self._queue_of]
        self._queues[0] += new
        self._queue_of.update(dict.fromkeys(new, 0))
        wanted, executed_s = jobs.requested_gpus, np.floor(jobs.executed_s + EARLY_S)
        for job, row in at.items():
            queue = self._queue_of[job]
            last = queue == len(self.limits_gpu_s)
            if jobs.share[row] and not last and executed_s[row] * wanted[row] >= self.limits_gpu_s[queue]:
                self._queues[queue].remove(job)
                self._queues[queue + 1].append(job)
                self._queue_of[job] = queue + 1
        given, free = no_shares(jobs), gpus
        for queue_ in self._queues:
            for job in queue_:
                if wanted[at[job]] <= free:
                    given[at[job]] = wanted[at[job]]
                    free -= int(wanted[at[job]])
            queue_.sort(key=lambda job: given[at[job]] == 0)
        jumps = [
            (self.limits_gpu_s[self._queue_of[job]] - executed_s[row]) // wanted[row]
            for job, row in at.items()
            if given[row] and self._queue_of[job] < len(self.limits_gpu_s)
        ]
        return Shares(given, _silent, now + max(min(jumps, default=math.inf), 1.0))


def _ordered(name: str, key: Key) -> Callable[[Workload], Policy]:
    return lambda workload: PartialShares(name, key, workload)


RULES: dict[str, Callable[[Workload], Policy]] = {
    "pcs-fifo": _ordered("pcs-fifo", _submission),
    "pcs-srtf": _ordered("pcs-srtf", _time),
    "pcs-srsf": _ordered("pcs-srsf", _service),
    "pcs-las": _ordered("pcs-las", _done),
    "pcs-themis": PcsThemis,
    PcsAfs.name: PcsAfs,
    TiresiasDlas.name: TiresiasDlas,
}
