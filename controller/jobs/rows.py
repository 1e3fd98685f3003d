"""Unfinished jobs as a table of columns, kept from one decision to the next so that cost follows changes.

Theory of operation ------------------- A decision examines all jobs, of which few have changed since the last decision.
So the data of the scheduler's view is kept here in columns, with one row per job in the order of submission. A changed
job's row is rewritten (`changed`); a job that only progressed gets new step counts (`moved`). Values that change with
time are computed for all rows at once (`columns`).

A job's scaling is known from its own measurements, or estimated from earlier jobs of its kind. Jobs without
measurements of their own share one estimate per kind and model, which is computed again when the record of the kind
changes.

GPUs are numbered here independently of the view, because the bits of GPUs in view change with the servers in view.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ...protocol.model import GpuAddress, JobId, ServerId
from ...scheduler.arrays import Floats, Ints
from ...scheduler.curves import Curves
from ...scheduler.kinds import Demand, GpuSort, most_of_each
from ...scheduler.sets import union
from ...scheduler.speedup_curve import peak
from ...scheduler.view import UNKNOWN_S, Columns, Gpus, Limit, ServerInView, gpus_by_sort, limit_for
from .generations import ending
from .job import Job
from .table import mark
from .throughput import Estimated, KindRecord

FIRST_ROWS = 256


# The estimate of a job's throughput; the array holds, by share, the number of servers that the share is placed on.
Estimate = Callable[[Job, Ints], Estimated]
Earlier = Callable[[str], KindRecord | None]


@dataclass
class _Columns:
    """Columns of the table, one entry per row. Columns of the same meaning have the names of `view.Columns`."""

    submitted_s: Floats
    least: Ints
    most: Ints
    asked_least: Ints  # GPUs by the job's specification
    asked_most: Ints
    priority: Ints
    deadline_s: Floats
    soft: Ints
    share: Ints
    steps_left: Floats  # nan: unknown
    steps_done: Floats
    attained_gpu_s: Floats  # up to `counted_s`
    executed_s: Floats  # up to `counted_s`
    changes: Ints
    running: Ints  # GPUs that have trained since `counted_s`
    counted_s: Floats  # Unix time
    waiting_since_s: Floats
    curve: Ints  # row of `Curves.speedup`
    demand: Ints  # index into `Rows._demands`
    peak: Ints  # the most GPUs that the job can use by its curve; 0: the curve is unknown
    joins: Ints  # 0: the script is not expected to call `elastic.join()`; 1: it is expected to; 2: it has
    live: Ints

    @classmethod
    def empty(cls, rows: int) -> _Columns:
        kinds = {"Floats": float, "Ints": np.int64}
        return cls(**{each.name: np.zeros(rows, dtype=kinds[str(each.type)]) for each in fields(cls)})

    def moved(self, rows: Ints, capacity: int) -> _Columns:
        """Return a table of `capacity` rows that begins with copies of these rows; the rest is zero."""
        found = _Columns.empty(capacity)
        for each in fields(self):
            getattr(found, each.name)[: len(rows)] = getattr(self, each.name)[rows]
        return found


@dataclass
class _Kind:
    """Jobs of one kind and model without measurements of their own, which share an estimate."""

    rows: dict[JobId, None] = field(default_factory=dict)
    earlier: KindRecord | None = None
    estimated: Estimated | None = None
    curve: int = -1
    peaks: dict[tuple[int, int], int] = field(
        default_factory=dict
    )  # most useful GPUs, by the smallest and largest allowed share


@dataclass(frozen=True)
class Held:
    """GPUs of one job, as numbers (`Rows.number`)."""

    own: tuple[int, ...]  # GPUs of the job's target
    running: tuple[int, ...]  # GPUs with running workers
    held: tuple[int, ...]  # GPUs of workers that are not stopping, those about to start included
    first: int | None  # GPU of the target's first worker


NOWHERE = Held((), (), (), None)


@dataclass(frozen=True)
class Allocation:
    """The GPUs of `Held` as sets of GPUs in view; GPUs out of view are left out."""

    of: Held
    own: Gpus
    first: Gpus
    running: Gpus
    held: Gpus


class Rows:
    """Table of all unfinished jobs, from which the scheduler's view is cut."""

    def __init__(self, name_of: Callable[[GpuAddress], str] = lambda gpu: "") -> None:
        """Begin with no jobs. `name_of`: returns the product name of a GPU, "" if unknown."""
        self._name_of = name_of
        self._kept = _Columns.empty(FIRST_ROWS)
        self._jobs: list[Job | None] = []  # the job of each row
        self._names: list[JobId] = []  # the job's id of each row
        self._speedup: Floats = np.zeros((FIRST_ROWS, 2))  # by curve: speedup by share
        self._hull: Floats = np.zeros((FIRST_ROWS, 2))  # by curve: the concave hull of the speedups
        self._alone: Floats = np.zeros(FIRST_ROWS)  # by curve: steps per second with one GPU; 0: unknown
        self._free_curves = list(range(FIRST_ROWS))
        self._row: dict[JobId, int] = {}
        self._changed: dict[JobId, Job] = {}
        self._moved: dict[JobId, Job] = {}
        self._kinds: dict[tuple[str, str, str], _Kind] = {}
        self._kind_of: dict[JobId, tuple[str, str, str]] = {}  # jobs that share an estimate
        self._measured: dict[str, dict[JobId, Job]] = {}  # all other jobs, by kind
        self._own_curve: dict[JobId, int] = {}  # curves of the jobs in `_measured`
        self._earlier: dict[str, KindRecord | None] = {}  # by kind: the record with which `_measured` was estimated
        self._demands: list[Demand] = []  # distinct demands of jobs
        self._number_of: dict[Demand, int] = {}  # index of each demand in `_demands`
        self._seen: tuple[ServerInView, ...] = ()  # the servers in view for which `_sorts` and `_limits` hold
        self._sorts: dict[GpuSort, Gpus] = {}  # the GPUs of each sort
        self._limits: dict[int, Limit] = {}  # limits by number of the demand
        self._there: tuple[ServerInView, ...] = ()  # the present servers for which `_most_there` holds
        self._most_there: dict[int, int] = {}  # by number of the demand: the largest share that a job could have
        self._servers: Ints = np.zeros(0, dtype=np.int64)  # by share: the fewest servers that hold it
        self._numbers: dict[tuple[ServerId, int], int] = {}  # number of each GPU
        self._views: dict[ServerId, tuple[tuple[int, ...], tuple[int, ...]]] = {}  # GPU indices, and their numbers
        self._order: list[int] = []  # numbers of the GPUs in view, by bit
        self._bits: list[Gpus] = []  # by number of the GPU: its bit in the view; 0: not in view
        self._places: dict[JobId, Allocation] = {}
        self.held: dict[JobId, Held] = {}  # GPUs of the jobs with GPUs or processes
        self.manual: dict[JobId, Job] = {}
        self.ending: dict[JobId, Job] = {}
        self.gangs: dict[JobId, Job] = {}
        self.withheld: dict[JobId, Job] = {}  # jobs that users keep from running

    def changed(self, job: Job) -> None:
        """Note that anything about `job` may have changed."""
        self._changed[job.id] = job

    def moved(self, job: Job) -> None:
        """Note that `job` has progressed, and that nothing else about it has changed."""
        self._moved[job.id] = job

    def number(self, gpu: GpuAddress) -> int:
        """Return the number that stands for `gpu` in `held`."""
        return self.number_at(gpu.server, gpu.index)

    def number_at(self, server: ServerId, index: int) -> int:
        return self._numbers.setdefault((server, index), len(self._numbers))

    def numbers_of(self, server: ServerInView) -> tuple[int, ...]:
        """Return the numbers of all GPUs in view of this server."""
        known = self._views.get(server.server)
        if known is None or known[0] is not server.gpus:
            known = (server.gpus, tuple(self.number_at(server.server, index) for index in server.gpus))
            self._views[server.server] = known
        return known[1]

    def places(self, servers: Iterable[ServerInView]) -> Mapping[JobId, Allocation]:
        """Return the jobs' GPUs among these servers, as sets with one bit per GPU in the order of the servers."""
        order: list[int] = []
        for server in servers:
            order += self.numbers_of(server)
        if order != self._order:
            self._order, self._places = order, {}
            self._bits = [0] * len(self._numbers)
            for bit, number in enumerate(order):
                self._bits[number] = 1 << bit
        self._bits += [0] * (len(self._numbers) - len(self._bits))  # not in view
        for name, held in self.held.items():
            known = self._places.get(name)
            if known is None or known.of is not held:
                self._places[name] = self._place(held)
        if len(self._places) > 2 * len(self.held) + FIRST_ROWS:
            self._places = {name: self._places[name] for name in self.held}
        return self._places

    def _place(self, held: Held) -> Allocation:
        bits = self._bits
        own = union([bits[number] for number in held.own])  # most jobs run on exactly the GPUs of their target
        running = own if held.running == held.own else union([bits[number] for number in held.running])
        there = running if held.held == held.running else union([bits[number] for number in held.held])
        first = bits[held.first] if held.first is not None else 0
        return Allocation(of=held, own=own, first=first, running=running, held=there)

    # -- up to date

    @property
    def behind(self) -> int:
        """Number of changed jobs with outdated rows."""
        return len(self._changed)

    def catch_up(
        self, servers: Callable[[int], Ints], earlier: Earlier, estimate: Estimate, limit: int | None = None
    ) -> None:
        """Rewrite the rows of at most `limit` changed jobs.

        `servers(n)` returns, for each share up to n, the fewest servers that hold the share.
        """
        changed = dict(itertools.islice(self._changed.items(), limit))
        for name in changed:
            del self._changed[name]
        moved, self._moved = self._moved, {}
        for job in changed.values():
            self._put(job)
        self._compact()
        steps_left, steps_done = self._kept.steps_left, self._kept.steps_done
        for name, job in moved.items():
            if name not in changed and (row := self._row.get(name)) is not None:
                steps_left[row], steps_done[row] = job.steps_left, job.steps_done
        self._estimate(changed, servers, earlier, estimate)

    def _estimate(
        self, changed: Mapping[JobId, Job], servers: Callable[[int], Ints], earlier: Earlier, estimate: Estimate
    ) -> None:
        """Bring throughput estimates up to date; those of all jobs if the servers per share have changed."""
        most = int(self._kept.asked_most[: len(self._jobs)].max(initial=1))
        fewest = servers(1 << (most - 1).bit_length())  # rounded up to a power of 2, so that the array seldom changes
        again = dict(changed)
        if fewest.tobytes() != self._servers.tobytes():
            self._servers = fewest
            self._speedup, self._hull = (np.zeros((len(self._speedup), len(fewest))) for _ in range(2))
            again = {job.id: job for job in self._jobs if job is not None}
            for kind in self._kinds.values():
                kind.estimated = None
        self._estimate_kinds(again, earlier, estimate)
        self._estimate_measured(again, earlier, estimate)

    def _put(self, job: Job) -> None:
        name = job.id
        if job.final:
            self._remove(name)
            return
        row = self._row.get(name)
        if row is None:
            row = self._row[name] = len(self._jobs)
            self._jobs.append(job)
            self._names.append(name)
            if len(self._jobs) > len(self._kept.live):
                self._kept = self._kept.moved(np.arange(row), 2 * len(self._jobs))
        self._write(row, job)
        held = self._held(job)
        mark(self.held, name, held, held != NOWHERE)
        mark(self.manual, name, job, job.record.manual_share is not None)
        mark(self.ending, name, job, bool(job.workers) and ending(job))
        mark(self.gangs, name, job, job.gang)
        mark(self.withheld, name, job, job.is_withheld)
        self._classify(job)

    def _write(self, row: int, job: Job) -> None:
        kept, spec, table = job.record, job.spec, self._kept
        last = kept.shares[-1] if kept.shares else None
        most = job.most_gpus
        table.submitted_s[row] = job.submission.submitted_s
        table.least[row], table.most[row] = min(spec.gpus.min, most), most
        table.asked_least[row], table.asked_most[row] = spec.gpus.min, spec.gpus.max
        table.priority[row] = spec.priority
        table.deadline_s[row] = math.nan if job.is_withheld else job.planned_by_s  # withheld jobs have no plan
        table.soft[row] = int(not job.promised)
        table.demand[row] = self._demand(job)
        table.share[row] = len(job.own_gpus) if kept.target else 0
        table.attained_gpu_s[row] = kept.attained_gpu_s if last is not None else 0.0
        table.executed_s[row] = kept.executed_s
        table.changes[row] = max(kept.generation - 1, 0)
        table.running[row] = last.share if last is not None else 0
        since_s = last.time_s if last is not None else 0.0
        table.counted_s[row] = kept.counted_s if kept.counted_s is not None else since_s
        waiting_s = last.time_s if last is not None else job.submission.submitted_s
        table.waiting_since_s[row] = math.nan if kept.target else waiting_s
        table.steps_left[row], table.steps_done[row] = job.steps_left, job.steps_done
        table.joins[row] = 2 if job.elastic else int(spec.expected_to_join)
        table.live[row] = 1

    def _demand(self, job: Job) -> int:
        demand = demand_of(job, self._name_of)
        number = self._number_of.get(demand)
        if number is None:
            number = self._number_of[demand] = len(self._demands)
            self._demands.append(demand)
        return number

    def _held(self, job: Job) -> Held:
        target, workers = job.record.target, job.workers
        if not target and not workers:
            return NOWHERE
        running = tuple(self.number(gpu) for gpu in job.running_gpus)
        return Held(
            own=tuple(self.number(gpu) for gpu in job.own_gpus) if target else (),
            running=running,
            held=tuple(self.number(gpu) for entry in workers if not entry.stopping for gpu in entry.all_gpus)
            if running
            else (),
            first=self.number(target[0]) if target else None,
        )

    def _remove(self, name: JobId) -> None:
        row = self._row.pop(name, None)
        if row is None:
            return
        job, self._jobs[row] = self._jobs[row], None
        self._kept.live[row] = 0
        self._kept.asked_most[row] = 0
        for table in (self.held, self.manual, self.ending, self.gangs, self.withheld):
            table.pop(name, None)
        assert job is not None
        self._unclassify(job)

    def _compact(self) -> None:
        """Drop the rows of ended jobs once they are more than half of all rows."""
        if len(self._jobs) <= 2 * len(self._row) + FIRST_ROWS:
            return
        rows = np.flatnonzero(self._kept.live[: len(self._jobs)])
        self._kept = self._kept.moved(rows, 2 * len(rows) + FIRST_ROWS)
        self._jobs = [self._jobs[row] for row in rows.tolist()]
        self._names = [self._names[row] for row in rows.tolist()]
        self._row = {job.id: row for row, job in enumerate(self._jobs) if job is not None}
        self._demands, self._number_of, self._limits, self._most_there = [], {}, {}, {}
        for row, job in enumerate(self._jobs):
            if job is not None:
                self._kept.demand[row] = self._demand(job)

    # -- throughput

    def _classify(self, job: Job) -> None:
        """Assign `job` to the shared estimate of its kind, or to a curve of its own if it has throughput data."""
        shares = not job.record.measured and not job.spec.throughput
        key = (job.kind, job.spec.model.casefold(), job.record.gpu_name)
        if self._kind_of.get(job.id) == key if shares else job.id in self._measured.get(job.kind, ()):
            return
        self._unclassify(job)
        if shares:
            self._kind_of[job.id] = key
            if key not in self._kinds:
                self._kinds[key] = _Kind(curve=self._new_curve())
            self._kinds[key].rows[job.id] = None
            self._kept.curve[self._row[job.id]] = self._kinds[key].curve
        else:
            self._measured.setdefault(job.kind, {})[job.id] = job
            job.put_estimate(None)  # the estimate of the kind does not apply any more
            self._own_curve[job.id] = self._kept.curve[self._row[job.id]] = self._new_curve()

    def _unclassify(self, job: Job) -> None:
        key = self._kind_of.pop(job.id, None)
        if key is not None:
            del self._kinds[key].rows[job.id]
            if not self._kinds[key].rows:
                self._free_curves.append(self._kinds.pop(key).curve)
        curve = self._own_curve.pop(job.id, None)
        if curve is not None:
            self._free_curves.append(curve)
        measured = self._measured.get(job.kind)
        if measured is not None and measured.pop(job.id, None) is not None and not measured:
            del self._measured[job.kind]
            self._earlier.pop(job.kind, None)

    def _new_curve(self) -> int:
        if not self._free_curves:
            more = len(self._speedup)
            self._free_curves = list(range(more, 2 * more))
            self._speedup = np.vstack([self._speedup, np.zeros_like(self._speedup)])
            self._hull = np.vstack([self._hull, np.zeros_like(self._hull)])
            self._alone = np.concatenate([self._alone, np.zeros_like(self._alone)])
        return self._free_curves.pop()

    def _estimate_kinds(self, again: Mapping[JobId, Job], earlier: Earlier, estimate: Estimate) -> None:
        """Update the shared estimates of kinds. `again`: the jobs with rewritten rows."""
        for key, kind in self._kinds.items():
            known = earlier(key[0])
            if kind.estimated is None or kind.earlier is not known:
                kind.earlier, kind.estimated = known, None
                for name in kind.rows:
                    self._estimate_alike(self._row[name], kind, estimate)
        for name in again:
            alike = self._kind_of.get(name)
            if alike is not None:
                self._estimate_alike(self._row[name], self._kinds[alike], estimate)

    def _estimate_alike(self, row: int, kind: _Kind, estimate: Estimate) -> None:
        job = self._jobs[row]
        assert job is not None
        if kind.estimated is None:
            job.put_estimate(None)
            kind.estimated = estimate(job, self._servers)
            kind.peaks.clear()
            self._tell_curve(kind.curve, kind.estimated)
        job.put_estimate(kind.estimated)
        self._tell_peak(row, kind.estimated, kind.peaks)

    def _estimate_measured(self, again: Mapping[JobId, Job], earlier: Earlier, estimate: Estimate) -> None:
        """Update the estimates of jobs with throughput data of their own."""
        chosen = {name: job for name, job in again.items() if name in self._own_curve}
        for of_kind, jobs in self._measured.items():
            known = earlier(of_kind)
            if self._earlier.get(of_kind) is not known or of_kind not in self._earlier:
                self._earlier[of_kind] = known
                chosen.update(jobs)
        for name, job in chosen.items():
            before = job.estimated
            estimated = estimate(job, self._servers)
            if estimated is not before:
                self._tell_curve(self._own_curve[name], estimated)
            self._tell_peak(self._row[name], estimated, {})

    def _tell_curve(self, curve: int, estimated: Estimated) -> None:
        self._speedup[curve], self._hull[curve] = estimated.speedup, estimated.hull
        self._alone[curve] = estimated.curve[1] if estimated.known else 0.0

    def _tell_peak(self, row: int, estimated: Estimated, peaks: dict[tuple[int, int], int]) -> None:
        """Set the most GPUs that a job can use. `peaks`: cache for this estimate, by least and most GPUs."""
        table = self._kept
        if not estimated.known:
            table.peak[row] = 0
            return
        least, most = int(table.least[row]), min(int(table.most[row]), len(estimated.curve) - 1)
        if (least, most) not in peaks:
            peaks[least, most] = max(1, peak(estimated.hull, least, most))
        table.peak[row] = peaks[least, most]

    # -- input of the scheduler

    @property
    def any_deadline(self) -> bool:
        """Whether any unfinished job has a deadline."""
        return bool(self._with_deadline().any())

    @property
    def any_promise(self) -> bool:
        """Whether any unfinished job has a hard deadline."""
        hard: npt.NDArray[np.bool_] = self._kept.soft[: len(self._jobs)] == 0
        return bool((self._with_deadline() & hard).any())

    def _with_deadline(self) -> npt.NDArray[np.bool_]:
        rows = slice(0, len(self._jobs))
        found: npt.NDArray[np.bool_] = np.isfinite(self._kept.deadline_s[rows]) & (self._kept.live[rows] > 0)
        return found

    @property
    def fixed(self) -> dict[JobId, Job]:
        """Jobs that keep their GPUs whatever the policy says: ending jobs and gangs."""
        return {**self.ending, **self.gangs}

    def jobs(self, without: frozenset[JobId], with_fixed: bool = False) -> tuple[tuple[Job, ...], Ints]:
        """Return the jobs to decide about and their rows, in the order of submission.

        Withheld jobs and the jobs `without` are left out, and fixed jobs unless `with_fixed`.
        """
        rows = np.flatnonzero(self._kept.live[: len(self._jobs)])
        fixed = () if with_fixed else self.fixed
        hidden = [self._row[name] for name in (*fixed, *self.withheld, *without) if name in self._row]
        if hidden:
            rows = np.setdiff1d(rows, hidden, assume_unique=False)
        return cast("tuple[Job, ...]", tuple(map(self._jobs.__getitem__, rows.tolist()))), rows  # a live row has a job

    def where(self, names: Collection[JobId], rows: Ints) -> list[tuple[int, JobId]]:
        """Return (position in `rows`, name) of those jobs of `names` that have a row there, in the order of submission.

        `rows` must be ascending.
        """
        their = np.array([self._row.get(name, -1) for name in names], dtype=np.int64)
        at = np.searchsorted(rows, their)
        found = np.zeros(len(their), dtype=np.bool_)
        inside = at < len(rows)
        found[inside] = rows[at[inside]] == their[inside]
        return sorted(
            [(place, name) for place, name, there in zip(at.tolist(), names, found.tolist(), strict=True) if there]
        )

    def columns(
        self, rows: Ints, now: float, total: int, there: tuple[ServerInView, ...], first: int | None
    ) -> tuple[Columns, Curves]:
        """Return copies of these rows, and all curves.

        `total`: the number of GPUs in view. `there`: all present servers. `first`: the most GPUs for a job of unknown
        throughput; None: no such bound.
        """
        names = self._names
        kept = {each.name: getattr(self._kept, each.name)[rows] for each in fields(self._kept)}
        uncounted_s = np.where(kept["running"] > 0, np.maximum(0.0, now - kept["counted_s"]), 0.0)
        capped = np.minimum(kept["most"], max(total, 1))
        unknown = np.maximum(
            kept["least"], np.minimum(capped, np.maximum(first if first is not None else capped, kept["share"]))
        )
        known = np.where(kept["peak"] > capped, np.maximum(kept["least"], capped), kept["peak"])
        could_have = self._could_have(kept["demand"], there)
        done_s, left_s = self._lengths_s(kept)
        columns = Columns(
            names=list(map(names.__getitem__, rows.tolist())),
            submitted_s=np.minimum(kept["submitted_s"], now),  # a clock may have been set back
            min_gpus=kept["least"],
            max_gpus=np.where(kept["peak"] > 0, known, unknown),
            requested_gpus=np.maximum(kept["asked_least"], np.minimum(kept["asked_most"], could_have)),
            priority=kept["priority"],
            share=kept["share"],
            left_s=left_s,
            told_s=np.where(left_s < UNKNOWN_S, done_s + left_s, math.nan),
            done_s=done_s,
            attained_gpu_s=kept["attained_gpu_s"] + kept["running"] * uncounted_s,
            executed_s=kept["executed_s"] + uncounted_s,
            waiting_since_s=np.minimum(kept["waiting_since_s"], now),
            curve=kept["curve"],
            deadline_s=kept["deadline_s"],
            soft=kept["soft"],
            still_until_s=np.zeros(len(rows)),
            changes=kept["changes"],
        )
        return columns, Curves(self._speedup.copy(), self._hull.copy())

    def _could_have(self, demands: Ints, there: tuple[ServerInView, ...]) -> Ints:
        """Return the most GPUs of these servers that a job with each of these demands could have if it were alone."""
        if there != self._there:
            self._there, self._most_there = there, {}
        numbers = np.unique(demands)
        if new := [number for number in numbers.tolist() if number not in self._most_there]:
            largest = most_of_each([self._demands[number] for number in new], [server.stock for server in there])
            self._most_there |= dict(zip(new, largest, strict=True))
        most: Ints = np.array([self._most_there[number] for number in numbers.tolist()], dtype=np.int64)
        return most[np.searchsorted(numbers, demands)]

    def limits(self, rows: Ints, servers: tuple[ServerInView, ...]) -> tuple[tuple[Limit, ...], Ints | None]:
        """Return the distinct limits of these rows on usable GPUs, and for each row the index of its limit.

        Returns no limits and None if all jobs may use all GPUs.
        """
        if servers != self._seen:
            self._seen, self._sorts, self._limits = servers, gpus_by_sort(servers), {}
        if not self._sorts:
            return (), None
        asked = self._kept.demand[rows]
        numbers = np.unique(asked)
        for number in numbers.tolist():
            if number not in self._limits:
                self._limits[number] = limit_for(self._demands[number], self._sorts)
        found = tuple([self._limits[number] for number in numbers.tolist()])
        everything = (union(self._sorts.values()),)
        if all(limit.options == everything and not limit.demand.counts for limit in found):
            return (), None
        return found, np.searchsorted(numbers, asked)

    def demands(self, rows: Ints) -> tuple[tuple[Demand, ...], Ints]:
        """Return the distinct demands of these rows, and for each row the index of its demand."""
        numbers, whose = np.unique(self._kept.demand[rows], return_inverse=True)
        return tuple([self._demands[number] for number in numbers.tolist()]), whose

    def unjoined(self, rows: Ints, expected: bool) -> npt.NDArray[np.bool_]:
        """Return for each row whether the job is not expected to call `elastic.join()`.

        `expected`: jobs that are expected to, and have not yet called it, count as well.
        """
        found: npt.NDArray[np.bool_] = self._kept.joins[rows] < (2 if expected else 1)
        return found

    def _lengths_s(self, kept: Mapping[str, Any]) -> tuple[Floats, Floats]:
        """Return the finished and the remaining time of jobs on one GPU (seconds); UNKNOWN_S if the remaining is unknown.

        The attained GPU-seconds stand for the finished time of a job with unknown throughput.
        """
        alone, done_s = self._alone[kept["curve"]], kept["attained_gpu_s"].copy()
        left_s: Floats = np.full(len(alone), UNKNOWN_S)
        np.divide(kept["steps_done"], alone, out=done_s, where=alone > 0)
        np.divide(kept["steps_left"], alone, out=left_s, where=(alone > 0) & ~np.isnan(kept["steps_left"]))
        return done_s, left_s


def demand_of(job: Job, name_of: Callable[[GpuAddress], str]) -> Demand:
    """Return the demand of `job` on its GPUs. Once the job has workers or progress, its GPUs must be of the same model."""
    kept = job.record
    begun = kept.progressed or bool(job.workers) or kept.saved_step is not None
    first = None if kept.gpu_name else next(iter(job.workers), None)  # recorded by an earlier version
    here = name_of(first.gpu) if first is not None else ""
    return Demand.of(job.spec, kept.gpu_name or here if begun else "", kept.hardware_agnostic)


def left_s(job: Job, estimated: Estimated, share: int) -> float:
    """Return the remaining time (seconds) of `job` with a share of `share` GPUs; UNKNOWN_S if unknown."""
    steps = job.steps_left
    return UNKNOWN_S if math.isnan(steps) or not estimated.known else steps / float(estimated.curve[share])
