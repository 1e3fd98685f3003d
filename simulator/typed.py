"""GPU types and failed GPUs in simulations: the GPUs that each job may use, and its speed on those that it has.

A job stays on one type for its whole life, as on real clusters (`scheduler.kinds`), unless its demand mixes types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace

import numpy as np

from ..scheduler.arrays import Floats, Ints
from ..scheduler.companion import plan
from ..scheduler.kinds import Demand
from ..scheduler.sets import union
from ..scheduler.view import Gpus, JobTable, Limit, ServerInView, gpus_by_sort, limit_for
from .workload import Workload


def differs(workload: Workload, cluster: Sequence[ServerInView]) -> bool:
    """Return whether some job may not use every GPU, or GPUs differ in speed."""
    return workload.demands is not None or len({sort.name for one in cluster for sort, _ in one.by_sort}) > 1


class Typed:
    """The jobs' limits and GPUs. Jobs are given by number (`jobs`)."""

    def __init__(self, workload: Workload, cluster: Sequence[ServerInView], fixed: Set[int] = frozenset()) -> None:
        """fixed: jobs that keep their GPUs until they end."""
        self.gpus: dict[int, Gpus] = {}  # of all jobs that have some
        self.down: Gpus = 0  # out of order
        self.reserved: Gpus = 0  # out of use for a while (`reserved`)
        self._workload = workload
        self._fixed = fixed
        self._sorts = gpus_by_sort(cluster)
        self._types: dict[str, Gpus] = {}
        for sort, gpus in self._sorts.items():
            self._types[sort.name] = self._types.get(sort.name, 0) | gpus
        self._demands = list(workload.demands or [Demand()] * len(workload))
        self._known: dict[Demand, tuple[Gpus, ...]] = {}  # options of demands, with all GPUs
        self._mixes: dict[tuple[int, int, tuple[tuple[str, int], ...]], int] = {}

    @property
    def kept(self) -> dict[int, Gpus]:
        """The GPUs of the jobs that keep theirs until they end."""
        return {job: self.gpus[job] for job in self._fixed if job in self.gpus}

    def limits(self, jobs: JobTable) -> tuple[tuple[Limit, ...], Ints | None]:
        """Return the distinct limits of the jobs, and for each row the index of its limit; None: there is no job."""
        if not len(jobs):
            return (), None
        kept = self.kept
        away = self.down | self.reserved | union(kept.values())
        own = [(self._demands[number], kept.get(number, 0)) for number in jobs.rows.tolist()]
        numbers = {limited: at for at, limited in enumerate(dict.fromkeys(own))}
        limits = [
            Limit(
                demand, (gpus,) if gpus else tuple(filter(None, [option & ~away for option in self._options(demand)]))
            )
            for demand, gpus in numbers
        ]
        return tuple(limits), np.array([numbers[one] for one in own], np.int64)

    def _options(self, demand: Demand) -> tuple[Gpus, ...]:
        if demand not in self._known:
            self._known[demand] = limit_for(demand, self._sorts).options
        return self._known[demand]

    def fail(self, down: Gpus) -> dict[int, tuple[Gpus, Gpus]]:
        """Take GPUs that are out of order from the jobs. Return the GPUs before and after, of all jobs that had some.

        A job keeps the others unless these are fewer than its least share, or its servers must have equal shares.
        """
        self.down, moves = down, {}
        for job, held in sorted(self.gpus.items()):
            if held & down:
                left = held & ~down
                if left.bit_count() < self._workload.min_gpus[job] or self._demands[job].per_server:
                    left = 0
                moves[job] = held, left
        self.gpus = {job: moves[job][1] if job in moves else held for job, held in self.gpus.items()}
        self.gpus = {job: held for job, held in self.gpus.items() if held}
        return moves

    def leave(self, job: int) -> None:
        """Remove a finished job."""
        self.gpus.pop(job, None)

    def change(self, placed: Mapping[int, Gpus]) -> dict[int, tuple[Gpus, Gpus]]:
        """Replace all placements. Return the GPUs before and after, of all jobs that now have others."""
        moves = {
            job: (self.gpus.get(job, 0), placed.get(job, 0))
            for job in sorted({*self.gpus, *placed})
            if self.gpus.get(job, 0) != placed.get(job, 0)
        }
        self.gpus = dict(placed)
        for job, (before, after) in moves.items():
            if not before and not self._demands[job].mixes and not self._demands[job].began_on:
                (name,) = (name for name, gpus in self._types.items() if gpus & after)
                self._demands[job] = replace(self._demands[job], began_on=name)
        return moves

    def curve(self, job: int, gpus: Gpus, add: Callable[[Floats], int]) -> int:
        """Return the curve of a job on these GPUs. add: makes a curve for GPUs of several types.

        On several types virtual workers are hosted by speed (`companion`). Of what is lost to communication on a whole share of
        one type, the same part is lost.
        """
        curves, own = self._workload.curves, int(self._workload.curve[job])
        counts = {name: (gpus & some).bit_count() for name, some in self._types.items() if gpus & some}
        on = {name: int(curves.on[name][own]) if name in curves.on else own for name in counts}
        if len(set(on.values())) == 1:
            return next(iter(on.values()))
        virtual_workers, share = int(self._workload.requested_gpus[job]), min(gpus.bit_count(), curves.most)
        mix = own, virtual_workers, tuple(sorted(counts.items()))
        if mix not in self._mixes:
            speeds = {name: float(curves.speedup[curve, 1]) for name, curve in on.items()}
            ideal = virtual_workers / -(-virtual_workers // share)
            kept = float(curves.speedup[own, share]) / float(curves.speedup[own, 1]) / ideal
            self._mixes[mix] = add(np.full(curves.most + 1, plan(virtual_workers, speeds, counts).throughput * kept))
        return self._mixes[mix]
