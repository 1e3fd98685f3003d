"""`chronus`: leases by a mixed integer program (Chronus, SoCC'21), as ElasticFlow 6.1 uses it: by deadlines, not
elastic.

The source is ElasticFlow's description of Chronus, not Chronus' own paper, which was not at hand: Chronus "maximizes
the number of SLO jobs that can meet deadlines and minimizes the average JCT of best-effort jobs", and is rigid. Time is
cut into leases, and jobs are preempted only at the beginning of a lease. At each beginning the program chooses the jobs
with deadlines to serve. A chosen job gets as many leases before its deadline as it needs, with its requested GPUs; the
number of chosen jobs is greatest. Of equally many, jobs that need fewer GPU-leases are preferred. GPUs that are left go
to jobs without deadlines (or with a lost deadline), the shortest first, and within a lease to any job that fits, jobs
with deadlines first.

The program (0/1 for "job j is chosen", a number of leases for "job j between two marks") is exact between marks that
are deadlines. Where there are more than `MARKS` deadlines, marks lie at quantiles of them and a job has to be over by
the last mark before its deadline. That keeps the program small enough to be solved at each lease. Within a span of
leases, jobs fit together whenever their GPU-leases do if their GPU counts divide each other. Others may not fit, and
are then passed over.
"""

from __future__ import annotations

import importlib.util
import math
import random
from typing import Annotated, Any

import msgspec
import numpy as np

from ...protocol.errors import OperatorError
from ..arrays import Floats, Ints
from ..view import UNKNOWN_S, JobTable, Reason
from .base import Shares, no_shares, waits_for
from .reviews import EARLY_S, LATE_S

MARKS = 16  # spans of leases in the program
NODES = 200  # limit of nodes in the solver's tree, as a time limit would depend on the machine
GAP = 0.01  # relative distance from the optimum at which the solver may stop


class ChronusParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`lease_s`: how many seconds a job has its GPUs before it may be interrupted. `jobs`: how many jobs with deadlines
    are in the program at most; those with the earliest deadlines are chosen."""

    lease_s: Annotated[float, msgspec.Meta(gt=LATE_S)] = 1200.0
    jobs: Annotated[int, msgspec.Meta(ge=1)] = 200


class Chronus:
    """Rigid, in leases: a mixed integer program chooses the most jobs that can keep their deadlines; the others follow,
    the shortest first. It needs the solver of scipy."""

    name = "chronus"
    needs_lengths = True
    Parameters = ChronusParameters

    def __init__(self, parameters: ChronusParameters) -> None:
        self.parameters = parameters
        if importlib.util.find_spec("scipy") is None:
            raise OperatorError("policy chronus needs the solver of scipy: pip install 'elasticctl[solver]'")

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        lease_s = self.parameters.lease_s
        turn = math.floor((now + EARLY_S) / lease_s)
        want = jobs.requested_gpus
        rate = jobs.speedup(slice(None), np.minimum(want, jobs.curves.most)) if len(jobs) else np.empty(0)
        takes_s = jobs.left_s / np.maximum(rate, 1e-12)
        fits = want <= gpus
        can = fits & (jobs.left_s < UNKNOWN_S) & (now + takes_s <= jobs.deadline_s + LATE_S)
        first = np.empty(0, dtype=np.int64)
        if now - turn * lease_s <= LATE_S:
            first = self._chosen(jobs, np.flatnonzero(can), takes_s, gpus, now)
            order = self._order(jobs, can, takes_s)
        else:
            order = np.concatenate([jobs.running, self._order(jobs, can & (jobs.share == 0), takes_s)])
        given, free = no_shares(jobs), gpus
        for row in [*first.tolist(), *order.tolist()]:
            if not given[row] and want[row] <= free:
                given[row] = want[row]
                free -= int(want[row])

        def why(row: int) -> Reason | None:
            return waits_for(int(want[row]), free, gpus, "left by jobs that have leases") if not given[row] else None

        waiting = bool((fits & (given == 0)).any())
        return Shares(given, why, (turn + 1) * lease_s if waiting else math.inf)

    def _order(self, jobs: JobTable, can: Any, takes_s: Floats) -> Ints:
        """Return the order of the jobs for the GPUs that are left: those that can keep a deadline, the earliest first;
        then the shortest."""
        keys = np.where(can, jobs.deadline_s, takes_s)
        found: Ints = np.lexsort((keys, ~can))
        return found

    def _chosen(self, jobs: JobTable, rows: Ints, takes_s: Floats, gpus: int, now: float) -> Ints:
        """Return the jobs with a lease from now on, the most urgent first."""
        if not len(rows):
            return rows
        rows = rows[np.argsort(jobs.deadline_s[rows], kind="stable")][: self.parameters.jobs]
        lease_s = self.parameters.lease_s
        need = np.ceil(takes_s[rows] / lease_s - 1e-9).astype(np.int64)
        due = np.floor((jobs.deadline_s[rows] - now) / lease_s + 1e-9).astype(np.int64)  # leases before each deadline
        short = need > due  # the job ends in its last lease, before its deadline and before the lease is over
        due = np.where(short, need, due)
        leases = _program(jobs.requested_gpus[rows], need, due, gpus)
        now_too = np.flatnonzero(leases > 0)
        slack = (due - need)[now_too]
        return rows[now_too[np.argsort(slack, kind="stable")]]


def _program(want: Ints, need: Ints, due: Ints, gpus: int) -> Ints:
    """Return how many leases of the first span (a single lease) each job gets.

    `due` and `need` are numbers of leases.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    marks = np.unique(np.concatenate([[1], np.quantile(due, np.linspace(0, 1, MARKS), method="lower")]))
    spans = np.diff(marks, prepend=0)  # number of leases in each span
    count, width = len(want), len(spans)
    may = marks[None, :] <= due[:, None]  # by job and span
    most = np.where(may, np.minimum(spans[None, :], need[:, None]), 0)
    columns = count + count * width  # whether each job is chosen, then leases by job and span
    place = count + np.arange(count * width).reshape(count, width)
    jobs = np.arange(count)
    rows = np.concatenate([jobs, np.repeat(jobs, width), count + np.tile(np.arange(width), count)])
    at = np.concatenate([jobs, place.ravel(), place.ravel()])
    values = np.concatenate([-need, np.ones(count * width), np.repeat(want, width)]).astype(np.float64)
    matrix = coo_array((values, (rows, at)), shape=(count + width, columns)).tocsr()
    low = np.concatenate([np.zeros(count), np.full(width, -np.inf)])
    high = np.concatenate([np.zeros(count), gpus * spans.astype(np.float64)])
    price = need * want / (float((need * want).sum()) + 1.0)
    late = np.arange(width) / (width * float(need.sum()) * count + 1.0)  # of equal choices, prefer the earlier begin
    cost = np.concatenate([-1.0 + price / (count + 1), np.tile(late / (count + 1), count)])
    found = milp(
        cost,
        integrality=np.ones(columns),
        bounds=Bounds(np.zeros(columns), np.concatenate([np.ones(count), most.ravel()])),
        constraints=LinearConstraint(matrix, low, high),
        options={"node_limit": NODES, "mip_rel_gap": GAP},
    )
    if found.x is None:
        return np.zeros(count, dtype=np.int64)
    leases: Ints = np.rint(found.x[place[:, 0]]).astype(np.int64)
    return leases
