"""The jobs that are not over as rows of columns, kept from one decision to the next (cost follows what changed).

Theory of operation
-------------------
A decision looks at all jobs, of which few have changed since the last one. So what the scheduler's view is made of stands here in
columns, a row for each job in the order of submission. A row is written anew when its job has changed (`changed`), or only how
long it still takes (`moved`); what changes with time is reckoned for all rows at once (`columns`).

How a job scales is known from its own measurements, or from those of earlier jobs of its kind. Jobs without any of their own
share one estimate for each kind and model, which is made anew when something new is known of the kind.

GPUs have numbers of their own here, since which bit stands for which GPU changes with the servers that are in view.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from ...protocol.model import GpuAddress, JobId, ServerId
from ...scheduler.kinds import Demand, GpuSort, most_of_each
from ...scheduler.sets import union
from ...scheduler.speedup_curve import peak
from ...scheduler.view import (
    UNKNOWN_S,
    Columns,
    Curves,
    Floats,
    Gpus,
    Ints,
    Limit,
    ServerInView,
    gpus_by_sort,
    limit_for,
)
from ..jobs.generations import ending
from ..jobs.job import Job
from ..jobs.throughput import Estimated, KindRecord

FIRST_ROWS = 256

V = TypeVar("V")

# What is known of a job's throughput; the array tells on how many servers each share is placed.
Estimate = Callable[[Job, Ints], Estimated]
Earlier = Callable[[str], KindRecord | None]


@dataclass
class _Columns:
    """What is kept of each row. Names as in `view.Columns`, where they mean the same."""

    submitted_s: Floats
    least: Ints
    most: Ints
    asked_least: Ints  # by the specification
    asked_most: Ints
    priority: Ints
    deadline_s: Floats
    soft: Ints
    share: Ints
    steps_left: Floats  # nan: not known
    steps_done: Floats
    attained_gpu_s: Floats  # up to `counted_s`
    executed_s: Floats  # likewise
    changes: Ints
    running: Ints  # GPUs that have trained since then
    counted_s: Floats
    waiting_since_s: Floats
    curve: Ints  # row of `Curves.speedup`
    demand: Ints  # which of `Rows.demands`
    peak: Ints  # the most GPUs that it can use, as far as its curve is known; 0: it is not
    joins: Ints  # 0: it is not expected to call `elastic.join()`, 1: it is, 2: it has
    live: Ints

    @classmethod
    def empty(cls, rows: int) -> _Columns:
        kinds = {"Floats": float, "Ints": np.int64}
        return cls(**{each.name: np.zeros(rows, dtype=kinds[str(each.type)]) for each in fields(cls)})

    def moved(self, rows: Ints, capacity: int) -> _Columns:
        """These rows first, and room for others."""
        found = _Columns.empty(capacity)
        for each in fields(self):
            getattr(found, each.name)[: len(rows)] = getattr(self, each.name)[rows]
        return found


@dataclass
class _Kind:
    """Jobs of one kind and model without measurements of their own."""

    rows: dict[JobId, None] = field(default_factory=dict)
    earlier: KindRecord | None = None
    told: Estimated | None = None
    curve: int = -1
    peaks: dict[tuple[int, int], int] = field(
        default_factory=dict
    )  # most GPUs that are of use, by the least and most allowed


@dataclass(frozen=True)
class Held:
    """Where a job's processes are, and are to be: numbers of GPUs."""

    own: tuple[int, ...]
    running: tuple[int, ...]
    held: tuple[int, ...]  # and where more are to start
    first: int | None


NOWHERE = Held((), (), (), None)


@dataclass(frozen=True)
class Place:
    """The same as sets of GPUs in view."""

    of: Held
    own: Gpus
    first: Gpus
    running: Gpus
    held: Gpus


class Rows:
    """All live jobs, for the scheduler."""

    def __init__(self, name_of: Callable[[GpuAddress], str] = lambda gpu: "") -> None:
        """`name_of`: what a GPU is called."""
        self._name_of = name_of
        self._kept = _Columns.empty(FIRST_ROWS)
        self._jobs: list[Job | None] = []  # by row
        self._names: list[JobId] = []  # likewise
        self._speedup: Floats = np.zeros((FIRST_ROWS, 2))  # by curve
        self._hull: Floats = np.zeros((FIRST_ROWS, 2))  # by curve: the hull of these speedups
        self._alone: Floats = np.zeros(FIRST_ROWS)  # by curve: steps per second with one GPU; 0: not known
        self._free_curves = list(range(FIRST_ROWS))
        self._row: dict[JobId, int] = {}
        self._changed: dict[JobId, Job] = {}
        self._moved: dict[JobId, Job] = {}
        self._kinds: dict[tuple[str, str], _Kind] = {}
        self._kind_of: dict[JobId, tuple[str, str]] = {}  # of those that share an estimate
        self._measured: dict[str, dict[JobId, Job]] = {}  # the others, by kind
        self._own_curve: dict[JobId, int] = {}  # of these
        self._earlier: dict[str, KindRecord | None] = {}  # by kind, as `_measured` was estimated with it
        self._demands: list[Demand] = []  # what jobs ask of GPUs, each once
        self._number_of: dict[Demand, int] = {}  # of these
        self._seen: tuple[ServerInView, ...] = ()  # the servers in view, when this was found out:
        self._sorts: dict[GpuSort, Gpus] = {}  # the GPUs of each sort
        self._limits: dict[int, Limit] = {}  # by number of the demand
        self._there: tuple[ServerInView, ...] = ()  # the servers that are there, when this was found out:
        self._most_there: dict[int, int] = {}  # by number of the demand: the largest share that a job could have
        self._servers: Ints = np.zeros(0, dtype=np.int64)  # by share
        self._numbers: dict[tuple[ServerId, int], int] = {}  # of GPUs
        self._views: dict[ServerId, tuple[tuple[int, ...], tuple[int, ...]]] = {}  # indices of GPUs, and their numbers
        self._order: list[int] = []  # numbers of the GPUs in view, by bit
        self._bits: list[Gpus] = []  # by number
        self._places: dict[JobId, Place] = {}
        self.held: dict[JobId, Held] = {}  # of those that have GPUs, or processes
        self.manual: dict[JobId, Job] = {}
        self.ending: dict[JobId, Job] = {}
        self.gangs: dict[JobId, Job] = {}
        self.withheld: dict[JobId, Job] = {}  # that users keep from running

    def changed(self, job: Job) -> None:
        """Anything about `job` may be otherwise."""
        self._changed[job.id] = job

    def moved(self, job: Job) -> None:
        """`job` has come further, and nothing else."""
        self._moved[job.id] = job

    def number(self, gpu: GpuAddress) -> int:
        """Stands for a GPU in `held`."""
        return self.number_at(gpu.server, gpu.index)

    def number_at(self, server: ServerId, index: int) -> int:
        return self._numbers.setdefault((server, index), len(self._numbers))

    def numbers_of(self, server: ServerInView) -> tuple[int, ...]:
        """The same for all GPUs of a server that are in view."""
        known = self._views.get(server.server)
        if known is None or known[0] is not server.gpus:
            known = (server.gpus, tuple(self.number_at(server.server, index) for index in server.gpus))
            self._views[server.server] = known
        return known[1]

    def places(self, servers: Iterable[ServerInView]) -> Mapping[JobId, Place]:
        """Where jobs are among the GPUs of these servers, as sets, whose bits stand for these GPUs in their order."""
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

    def _place(self, held: Held) -> Place:
        bits = self._bits
        own = union([bits[number] for number in held.own])  # most jobs run where they are to be, and nowhere else
        running = own if held.running == held.own else union([bits[number] for number in held.running])
        there = running if held.held == held.running else union([bits[number] for number in held.held])
        first = bits[held.first] if held.first is not None else 0
        return Place(of=held, own=own, first=first, running=running, held=there)

    # -- up to date

    @property
    def behind(self) -> int:
        """How many jobs have changed whose rows have not been written anew."""
        return len(self._changed)

    def catch_up(
        self, servers: Callable[[int], Ints], earlier: Earlier, estimate: Estimate, limit: int | None = None
    ) -> None:
        """Write the rows anew of what has changed, of at most `limit` jobs. `servers`: how many each share up to one takes at
        least."""
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
        """The same for what is known of throughputs."""
        most = int(self._kept.asked_most[: len(self._jobs)].max(initial=1))
        fewest = servers(1 << (most - 1).bit_length())  # so that it seldom changes
        again = dict(changed)
        if fewest.tobytes() != self._servers.tobytes():
            self._servers = fewest
            self._speedup, self._hull = (np.zeros((len(self._speedup), len(fewest))) for _ in range(2))
            again = {job.id: job for job in self._jobs if job is not None}
            for kind in self._kinds.values():
                kind.told = None
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
        _mark(self.held, name, held, held != NOWHERE)
        _mark(self.manual, name, job, job.record.manual_share is not None)
        _mark(self.ending, name, job, bool(job.workers) and ending(job))
        _mark(self.gangs, name, job, job.gang)
        _mark(self.withheld, name, job, job.is_withheld)
        self._classify(job)

    def _write(self, row: int, job: Job) -> None:
        kept, spec, table = job.record, job.spec, self._kept
        last = kept.shares[-1] if kept.shares else None
        most = job.most_gpus
        table.submitted_s[row] = job.submission.submitted_s
        table.least[row], table.most[row] = min(spec.gpus.min, most), most
        table.asked_least[row], table.asked_most[row] = spec.gpus.min, spec.gpus.max
        table.priority[row] = spec.priority
        table.deadline_s[row] = math.nan if job.is_withheld else job.planned_by_s  # nothing is planned for it
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
        """Rows of jobs that are over are given up when they are most of all."""
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
        """Does it share an estimate with others of its kind?"""
        shares = not job.record.measured and not job.spec.throughput
        if shares == (job.id in self._kind_of) and (shares or job.id in self._measured.get(job.kind, ())):
            return
        self._unclassify(job)
        if shares:
            key = (job.kind, job.spec.model.casefold())
            self._kind_of[job.id] = key
            if key not in self._kinds:
                self._kinds[key] = _Kind(curve=self._new_curve())
            self._kinds[key].rows[job.id] = None
            self._kept.curve[self._row[job.id]] = self._kinds[key].curve
        else:
            self._measured.setdefault(job.kind, {})[job.id] = job
            job.estimated = None  # of its kind
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
        """The jobs that share an estimate. `again`: those whose rows have been written anew."""
        for key, kind in self._kinds.items():
            known = earlier(key[0])
            if kind.told is None or kind.earlier is not known:
                kind.earlier, kind.told = known, None
                for name in kind.rows:
                    self._estimate_alike(self._row[name], kind, estimate)
        for name in again:
            alike = self._kind_of.get(name)
            if alike is not None:
                self._estimate_alike(self._row[name], self._kinds[alike], estimate)

    def _estimate_alike(self, row: int, kind: _Kind, estimate: Estimate) -> None:
        job = self._jobs[row]
        assert job is not None
        if kind.told is None:
            job.estimated = None
            kind.told = estimate(job, self._servers)
            kind.peaks.clear()
            self._tell_curve(kind.curve, kind.told)
        job.estimated = kind.told
        self._tell_peak(row, kind.told, kind.peaks)

    def _estimate_measured(self, again: Mapping[JobId, Job], earlier: Earlier, estimate: Estimate) -> None:
        """Each of the others."""
        chosen = {name: job for name, job in again.items() if name in self._own_curve}
        for of_kind, jobs in self._measured.items():
            known = earlier(of_kind)
            if self._earlier.get(of_kind) is not known or of_kind not in self._earlier:
                self._earlier[of_kind] = known
                chosen.update(jobs)
        for name, job in chosen.items():
            before = job.estimated
            told = estimate(job, self._servers)
            if told is not before:
                self._tell_curve(self._own_curve[name], told)
            self._tell_peak(self._row[name], told, {})

    def _tell_curve(self, curve: int, told: Estimated) -> None:
        self._speedup[curve], self._hull[curve] = told.speedup, told.hull
        self._alone[curve] = told.curve[1] if told.known else 0.0

    def _tell_peak(self, row: int, told: Estimated, peaks: dict[tuple[int, int], int]) -> None:
        """Write how many GPUs a job can use. `peaks`: those found already for this estimate."""
        table = self._kept
        if not told.known:
            table.peak[row] = 0
            return
        least, most = int(table.least[row]), min(int(table.most[row]), len(told.curve) - 1)
        if (least, most) not in peaks:
            peaks[least, most] = max(1, peak(told.hull, least, most))
        table.peak[row] = peaks[least, most]

    # -- what the scheduler sees

    @property
    def any_deadline(self) -> bool:
        """Has any job that is not over a deadline?"""
        return bool(self._with_deadline().any())

    @property
    def any_promise(self) -> bool:
        """Has any of them a hard one?"""
        hard: npt.NDArray[np.bool_] = self._kept.soft[: len(self._jobs)] == 0
        return bool((self._with_deadline() & hard).any())

    def _with_deadline(self) -> npt.NDArray[np.bool_]:
        rows = slice(0, len(self._jobs))
        found: npt.NDArray[np.bool_] = np.isfinite(self._kept.deadline_s[rows]) & (self._kept.live[rows] > 0)
        return found

    @property
    def fixed(self) -> dict[JobId, Job]:
        """The jobs that no policy decides about: those that are ending, and gangs. They keep their GPUs."""
        return {**self.ending, **self.gangs}

    def jobs(self, without: frozenset[JobId]) -> tuple[tuple[Job, ...], Ints]:
        """The jobs that are neither fixed nor withheld nor among these, in the order of submission, and their rows."""
        rows = np.flatnonzero(self._kept.live[: len(self._jobs)])
        hidden = [self._row[name] for name in (*self.fixed, *self.withheld, *without) if name in self._row]
        if hidden:
            rows = np.setdiff1d(rows, hidden, assume_unique=False)
        return cast("tuple[Job, ...]", tuple(map(self._jobs.__getitem__, rows.tolist()))), rows  # a live row has a job

    def where(self, names: Collection[JobId], rows: Ints) -> list[tuple[int, JobId]]:
        """The positions of those of these jobs that are among `rows`, which ascend; in the order of submission."""
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
        """Copies of these rows. `total`: GPUs in view; `there`: all servers that are present; `first`: the most GPUs for a job
        that nothing is known of, None: as many as it can use."""
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
            submitted_s=np.minimum(kept["submitted_s"], now),  # clocks are set back
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
        """The most GPUs that jobs with these demands could have of these servers, if they were alone."""
        if there != self._there:
            self._there, self._most_there = there, {}
        numbers = np.unique(demands)
        if new := [number for number in numbers.tolist() if number not in self._most_there]:
            told = most_of_each([self._demands[number] for number in new], [server.stock for server in there])
            self._most_there |= dict(zip(new, told, strict=True))
        most: Ints = np.array([self._most_there[number] for number in numbers.tolist()], dtype=np.int64)
        return most[np.searchsorted(numbers, demands)]

    def limits(self, rows: Ints, servers: tuple[ServerInView, ...]) -> tuple[tuple[Limit, ...], Ints | None]:
        """Which GPUs these rows may use: limits, and which of them is whose; none, where all jobs may use all GPUs."""
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
        if all(limit.options == everything and not limit.demand.per_server for limit in found):
            return (), None
        return found, np.searchsorted(numbers, asked)

    def demands(self, rows: Ints) -> tuple[tuple[Demand, ...], Ints]:
        """What these rows ask of GPUs, and which of that is whose."""
        numbers, whose = np.unique(self._kept.demand[rows], return_inverse=True)
        return tuple([self._demands[number] for number in numbers.tolist()]), whose

    def unjoined(self, rows: Ints, expected: bool) -> npt.NDArray[np.bool_]:
        """Which of these jobs have not called `elastic.join()`; `expected`: also of those that are expected to."""
        found: npt.NDArray[np.bool_] = self._kept.joins[rows] < (2 if expected else 1)
        return found

    def _lengths_s(self, kept: Mapping[str, Any]) -> tuple[Floats, Floats]:
        """What jobs have done, and how long they still take, on one GPU; UNKNOWN_S: not known.

        Of a job that has not been measured what it has done is not known: its GPU-seconds stand for that.
        """
        alone, done_s = self._alone[kept["curve"]], kept["attained_gpu_s"].copy()
        left_s: Floats = np.full(len(alone), UNKNOWN_S)
        np.divide(kept["steps_done"], alone, out=done_s, where=alone > 0)
        np.divide(kept["steps_left"], alone, out=left_s, where=(alone > 0) & ~np.isnan(kept["steps_left"]))
        return done_s, left_s


def demand_of(job: Job, name_of: Callable[[GpuAddress], str]) -> Demand:
    """What `job` asks of its GPUs; with workers, or steps done, they are to be like those that it has begun on."""
    kept = job.record
    begun = kept.progressed or bool(job.workers) or kept.saved_step is not None
    first = None if kept.gpu_name else next(iter(job.workers), None)  # recorded by an earlier version
    here = name_of(first.gpu) if first is not None else ""
    return Demand.of(job.spec, kept.gpu_name or here if begun else "")


def left_s(job: Job, told: Estimated, share: int) -> float:
    """How long it still takes with so many GPUs; UNKNOWN_S: not known."""
    steps = job.steps_left
    return UNKNOWN_S if math.isnan(steps) or not told.known else steps / float(told.curve[share])


def _mark(table: dict[JobId, V], name: JobId, value: V, there: bool) -> None:
    if there:
        table[name] = value
    else:
        table.pop(name, None)
