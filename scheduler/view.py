"""The scheduler's input, a frozen view of the cluster, and the reasons that it returns.

Jobs are a table of columns (numpy) with one row for each unfinished job, in the order of submission. A decision
examines every waiting job, and there may be tens of thousands. So whole columns are compared at once, and only the few
jobs that matter are examined one by one. A column is cut out of the larger one when a policy first reads it, because
most policies read few.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, Protocol

import msgspec
import numpy as np

from ..protocol.model import GpuAddress, GpuPlace, JobId, Server, ServerId
from .amounts import Amounts, Capacity, Need
from .arrays import Floats, Ints
from .curves import Curves
from .kinds import ANY, Demand, GpuSort, Stock
from .length_statistics import NOTHING_ENDED, Ended
from .nearness import Near, cut, leaves, tree
from .schedule import Schedule
from .sets import union
from .waiting_queue import WaitingQueue

UNKNOWN_S = 1e9  # finite, so that sums stay finite; about 32 years

Schedules = Mapping[JobId, Schedule]  # the last decision's schedules of the jobs with promised deadlines
NO_SCHEDULES: Schedules = MappingProxyType({})

Gpus = int  # a set of GPUs: bit i stands for GPU i of the view, where the servers' GPUs follow each other


@dataclass
class Columns:
    """All known facts about some jobs, one array per fact.

    The length of every array is the number of jobs; GPU counts are shares.
    """

    names: Sequence[JobId]
    submitted_s: Floats  # Unix time
    min_gpus: Ints
    max_gpus: Ints  # at most the share with the greatest throughput
    requested_gpus: Ints  # the share under a rigid policy
    priority: Ints
    share: Ints
    left_s: Floats  # remaining time on one GPU, as reported; UNKNOWN_S without a report, which counts as very long
    told_s: Floats  # total time on one GPU, as the job reported; nan without a report
    done_s: Floats  # the finished part of that time
    attained_gpu_s: Floats
    executed_s: Floats  # time with at least one GPU
    waiting_since_s: Floats  # submission, or loss of the last GPU; nan while the job has GPUs
    curve: Ints  # row of `Curves.speedup`
    deadline_s: Floats  # Unix time by which the job must end; nan without a deadline
    soft: Ints  # 1 if the job is still useful after a missed deadline (ElasticFlow 4.4), else 0
    still_until_s: Floats  # a job with GPUs starts or resizes, and does no work, until this Unix time
    changes: Ints  # changes of its GPUs after it first got some; losing all of them is one

    def cut(self, rows: slice) -> Columns:
        """Return the same arrays restricted to these rows, as views without copies. `names` stays complete."""
        return Columns(self.names, *[getattr(self, one.name)[rows] for one in fields(self) if one.name != "names"])


class Kept(Protocol):
    """Keeper of the jobs' order from one decision to the next."""

    def line(self, order: Order, jobs: JobTable) -> WaitingQueue | None:
        """Return the table's jobs without GPUs in this order; None if sorting them again is cheaper."""
        ...


_COLUMNS = frozenset(one.name for one in fields(Columns)) - {"names"}


class Order(Hashable, Protocol):
    """Jobs are served in ascending order of their keys, which are finite; each gets all GPUs that it wants or none."""

    def ranks(self, jobs: JobTable, rows: Ints | slice, now: float) -> tuple[Floats, Ints]:
        """Return the keys of these jobs, and how many GPUs each wants.

        For a waiting job neither may depend on the time, or on anything but this job's own columns.
        """
        ...


class JobTable:
    """Some rows of `Columns`, in the order of submission, with an entry in each column for each row of the table."""

    submitted_s: Floats
    min_gpus: Ints
    max_gpus: Ints
    requested_gpus: Ints
    priority: Ints
    share: Ints
    left_s: Floats  # only for policies that declare `needs_lengths`
    told_s: Floats  # likewise only for policies that declare `needs_lengths`
    done_s: Floats
    attained_gpu_s: Floats
    executed_s: Floats
    waiting_since_s: Floats
    curve: Ints
    deadline_s: Floats
    soft: Ints
    still_until_s: Floats
    changes: Ints

    schedules: Schedules  # a plan that met all deadlines at the last decision; a newer plan replaces it
    running: Ints  # the rows of jobs with GPUs, in ascending order
    most_needed: int  # no job's minimum is larger

    def __init__(
        self,
        columns: Columns,
        rows: Ints,
        curves: Curves,
        lengths: bool = True,
        at: Ints | slice | None = None,
        ended: Ended = NOTHING_ENDED,
        kept: Kept | None = None,
        schedules: Schedules = NO_SCHEDULES,
    ) -> None:
        """Build the table of the jobs `rows` (numbers within `columns.names`).

        `lengths`: whether the policy may see how long jobs take. `at`: positions of the jobs in the columns, if these
        differ from `rows`. `ended`: finished jobs. `kept`: the keeper of these jobs' order. `schedules`: as the attribute.
        A caller that already knows `running` and `most_needed` may set them.
        """
        self.rows = rows
        self.curves = curves
        self.ended = ended
        self._columns = columns
        self._lengths = lengths
        self._at: Ints | slice = rows if at is None else at
        self.schedules = schedules
        self._kept = kept
        self._bounded = False  # whether the maximums differ from those of the columns

    def __len__(self) -> int:
        return len(self.rows)

    def __getattr__(self, name: str) -> Any:
        """Cut a column out of the larger one when it is first read."""
        if name not in _COLUMNS:
            return self._found(name)
        assert self._lengths or name not in ("left_s", "told_s"), (
            "left_s and told_s are for policies that declare needs_lengths = True"
        )
        found = self.__dict__[name] = getattr(self._columns, name)[self._at]
        if self._kept is None:  # otherwise the larger column is read-only already
            found.setflags(write=False)
        return found

    def _found(self, name: str) -> Any:
        found: Any
        if name == "running":
            found = self.share.nonzero()[0]
        elif name == "most_needed":
            found = int(self.min_gpus.max(initial=0))
        else:
            raise AttributeError(f"jobs have no column {name!r}")
        self.__dict__[name] = found
        return found

    def name(self, row: int) -> JobId:
        return self._columns.names[int(self.rows[row])]

    def without_lengths(self) -> JobTable:
        """Return the same table, with the columns read so far except those that reveal lengths."""
        table = JobTable.__new__(JobTable)
        table.__dict__.update(self.__dict__)
        table.__dict__.pop("left_s", None)
        table.__dict__.pop("told_s", None)
        table._lengths = False
        return table

    def line(self, order: Order) -> WaitingQueue | None:
        """Return the jobs without GPUs in this order; None if no keeper holds that order."""
        return None if self._kept is None else self._kept.line(order, self)

    def within(self, most: Ints) -> JobTable:
        """Return the same jobs with maximums of at most `most` GPUs, which is no less than each job's minimum."""
        table = self._of(self.rows, self._at, self._lengths)
        table.max_gpus = np.minimum(self.max_gpus, most)
        table.max_gpus.setflags(write=False)
        table._bounded = True
        return table

    def _bound(self, table: JobTable, keep: Ints | None = None) -> JobTable:
        """Copy this table's maximums to `table`, for all rows or for the rows `keep`, and return `table`."""
        if self._bounded:
            table.max_gpus = self.max_gpus if keep is None else self.max_gpus[keep]
            table.max_gpus.setflags(write=False)
            table._bounded = True
        return table

    def assuming(self, left_s: Floats) -> JobTable:
        """Return the same jobs with `left_s` as their remaining times on one GPU, in seconds."""
        table = self._of(self.rows, self._at, True)
        table.left_s = left_s
        table.told_s = self.done_s + left_s
        return self._bound(table)

    def cut(self, keep: Ints) -> JobTable:
        """Return a table of these rows alone."""
        at = keep + self._at.start if isinstance(self._at, slice) else self._at[keep]
        return self._bound(self._of(self.rows[keep], at, self._lengths), keep)

    def _of(self, rows: Ints, at: Ints | slice, lengths: bool) -> JobTable:
        """Return a table of other rows of the same columns."""
        return JobTable(self._columns, rows, self.curves, lengths, at, self.ended, schedules=self.schedules)

    def speedup(self, rows: Any, gpus: Any) -> Any:
        """Return T(gpus) / T(1) of these rows."""
        return self.curves.speedup[self.curve[rows], gpus]

    def hull(self, rows: Any, gpus: Any) -> Any:
        """Return the hulls of these rows' curves at `gpus`."""
        curves = self.curve[rows]
        return self.curves.hulls(curves)[curves, gpus]


@lru_cache(maxsize=256)  # many servers of a cluster are identical
def _nearness(indices: tuple[int, ...], places: tuple[GpuPlace, ...]) -> tuple[Near, tuple[int, ...]]:
    near = tree(indices, places)
    return near, leaves(near, len(indices)) if near else ()


@dataclass(frozen=True)
class ServerInView:
    """A working server with its usable GPUs.

    Properties of the GPUs are in the GPUs' order; an empty tuple means unknown.

    One is built when the server's agent reports the server, not for each decision.
    """

    server: ServerId
    gpus: tuple[int, ...]
    sorts: tuple[GpuSort, ...] = ()
    near: Near = ()  # sets of GPUs that are close to each other; empty: all are equally close
    leaves: tuple[int, ...] = ()  # number of each GPU along the tree of `near`; empty: the GPUs' own numbers
    rack: str = ""
    capacity: Capacity | None = None  # cores and memory for the jobs in view; None: not counted

    @classmethod
    def of(cls, server: Server) -> ServerInView:
        """Build the server from its agent's report."""
        indices = tuple(gpu.index for gpu in server.gpus)
        near, numbers = _nearness(indices, tuple(gpu.place for gpu in server.gpus))
        return cls(
            server=server.server,
            gpus=indices,
            sorts=tuple(GpuSort(gpu.name, gpu.memory_bytes) for gpu in server.gpus),
            near=near,
            leaves=numbers,
            rack=server.rack,
            capacity=Capacity.of(server),
        )

    @classmethod
    def of_kinds(cls, server: ServerId, kinds: Kinds) -> ServerInView:
        """Build a server whose GPUs are numbered from 0, and equally close to each other."""
        sorts = tuple(sort for sort, count in kinds.gpus for _ in range(count))
        return cls(server=server, gpus=tuple(range(len(sorts))), sorts=sorts, capacity=kinds.capacity)

    @property
    def kinds(self) -> Kinds:
        sorts = self.sorts or (GpuSort(),) * len(self.gpus)
        return Kinds(tuple((sort, len([*run])) for sort, run in itertools.groupby(sorts)), self.capacity)

    def only(self, kept: Sequence[int]) -> ServerInView:
        """Return the server restricted to the GPUs at these positions."""
        return ServerInView(
            server=self.server,
            gpus=tuple(self.gpus[at] for at in kept),
            sorts=tuple(self.sorts[at] for at in kept) if self.sorts else (),
            near=cut(self.near, kept) if self.near else (),
            leaves=tuple(self.leaves[at] for at in kept) if self.leaves else (),
            rack=self.rack,
            capacity=self.capacity,
        )

    def less(self, taken: Amounts) -> ServerInView:
        """Return the server without cores and memory of jobs that are not in view."""
        return self if not taken or self.capacity is None else replace(self, capacity=self.capacity.less(taken))

    @cached_property
    def addresses(self) -> tuple[GpuAddress, ...]:
        """Addresses of the server's GPUs, in their order."""
        return tuple(GpuAddress(server=self.server, index=index) for index in self.gpus)

    @cached_property
    def by_sort(self) -> tuple[tuple[GpuSort, int], ...]:
        """Positions of the server's GPUs of each sort, as sets."""
        sorts = self.sorts or (GpuSort(),) * len(self.gpus)
        return tuple(
            (sort, sum(1 << at for at, one in enumerate(sorts) if one == sort)) for sort in dict.fromkeys(sorts)
        )

    @cached_property
    def stock(self) -> Stock:
        return Stock.of(self.sorts or [GpuSort()] * len(self.gpus), self.capacity, self.server)


@dataclass(frozen=True)
class Kinds:
    """What distinguishes the GPUs of a server for jobs' demands: the numbers of GPUs of each sort, in the GPUs' order."""

    gpus: tuple[tuple[GpuSort, int], ...]
    capacity: Capacity | None = None


@dataclass(frozen=True)
class Limit:
    """The GPUs of a view that some jobs may use: all GPUs of a job belong to one of the `options`."""

    demand: Demand
    options: tuple[Gpus, ...]


def gpus_by_sort(servers: Iterable[ServerInView]) -> dict[GpuSort, Gpus]:
    """Return the GPUs of each sort, as sets within a view of these servers."""
    found: dict[GpuSort, Gpus] = {}
    begin = 0
    for server in servers:
        for sort, mask in server.by_sort:
            found[sort] = found.get(sort, 0) | mask << begin
        begin += len(server.gpus)
    return found


def limit_for(demand: Demand, sorts: Mapping[GpuSort, Gpus]) -> Limit:
    """Return the limit of jobs with this demand, given the GPUs of each sort."""
    return Limit(demand, tuple(union(sorts[sort] for sort in option) for option in demand.options(sorts)))


class Use(enum.Enum):
    """Reason why GPUs of a present server are outside of the view."""

    FIXED = "of jobs that cannot be resized"
    STARTING = "of jobs that are expected to become elastic"
    LENT = "lent"
    RESERVED = "reserved by the policy file"
    BARRED = "not to be used"  # cordoned, drained or unhealthy
    UNKNOWN = "of jobs that are not known"


@dataclass(frozen=True)
class Excluded:
    """GPUs that no job in view can have, with their servers."""

    use: Use
    servers: tuple[ServerInView, ...]


@dataclass(frozen=True)
class Reservation:
    """GPUs that are held for the job of a row (module `reservation`)."""

    row: int
    gpus: int  # the share with which the job starts
    got: int  # GPUs among them that no other job keeps
    ready: bool  # whether the job can start; its limit is then exactly the held GPUs
    held: Gpus  # no job that would keep them starts on these GPUs
    confined: frozenset[int]  # rows with limits that exclude the held GPUs


@dataclass(frozen=True)
class Transient:
    """By row, the idle GPUs that a job does not get, as borrowers will take them too soon; and the reason."""

    away: Mapping[int, Gpus]
    told: Mapping[int, str]


class ClusterView(msgspec.Struct, frozen=True, dict=True):
    """The cluster at one moment. `now` is Unix time in seconds; servers are sorted by name."""

    now: float
    jobs: JobTable
    servers: tuple[ServerInView, ...]
    placements: Mapping[int, Gpus]  # by row: GPUs of the jobs that have some
    manual_shares: Mapping[int, int] = msgspec.field(default_factory=dict)  # by row: manual shares (GPUs)
    limits: tuple[Limit, ...] = ()
    limit_of: Ints | None = None  # by row: index into `limits`; None: every job may use every GPU
    absent: tuple[ServerInView, ...] = ()  # known servers that are not connected
    whole: tuple[ServerInView, ...] = ()  # present servers with the GPUs of jobs that cannot be resized, if such exist
    reservation: Reservation | None = None  # its effect on jobs is contained in `limits`
    excluded: tuple[Excluded, ...] = ()  # GPUs of present servers that no job in view can have; `whole` includes them
    transient: Transient | None = None  # its effect on jobs is contained in `limits`

    @cached_property
    def total_gpus(self) -> int:
        return sum([len(server.gpus) for server in self.servers])

    @property
    def known(self) -> tuple[ServerInView, ...]:
        """All servers with all of their GPUs, as far as these are known."""
        return (*(self.whole or self.servers), *self.absent)

    def limit(self, row: int) -> Limit | None:
        """Return the limit of a job; None if the job may use every GPU."""
        return self.limits[int(self.limit_of[row])] if self.limit_of is not None else None

    def confined(self, away: Mapping[int, Gpus], only: Mapping[int, Gpus] = MappingProxyType({})) -> ClusterView:
        """Return the view in which jobs may not use the GPUs `away`, or may use the GPUs `only`; both by row."""
        limits = list(self.limits) or [Limit(ANY, ((1 << self.total_gpus) - 1,))]
        limit_of = self.limit_of.copy() if self.limit_of is not None else np.zeros(len(self.jobs), dtype=np.int64)
        numbers: dict[tuple[int, Gpus, Gpus], int] = {}
        for row in sorted({*away, *only}):
            key = (int(limit_of[row]), away.get(row, 0), only.get(row, -1))
            if key not in numbers:
                numbers[key] = len(limits)
                before = limits[key[0]]
                options = (key[2],) if row in only else before.options
                left = dict.fromkeys(option & ~key[1] for option in options)
                limits.append(Limit(before.demand, tuple(one for one in left if one)))
            limit_of[row] = numbers[key]
        return msgspec.structs.replace(self, limits=tuple(limits), limit_of=limit_of)

    @cached_property
    def needs(self) -> Mapping[int, Need]:
        """Cores and memory that the workers of each job request, by row in ascending order; only jobs that request any."""
        codes = [code for code, limit in enumerate(self.limits) if limit.demand.need]
        if not codes or self.limit_of is None:
            return {}
        rows = np.flatnonzero(np.isin(self.limit_of, codes)).tolist()
        return {row: self.limits[int(self.limit_of[row])].demand.need for row in rows}

    def per_server(self, row: int) -> int:
        """Return the fixed number of GPUs that a job has on each of its servers; 0 if the number is free."""
        limit = self.limit(row)
        return limit.demand.per_server if limit is not None else 0

    def usable(self, row: int, like: Gpus) -> Gpus:
        """Return the GPUs that a job may have in addition to, or instead of, `like`, which are GPUs allowed to it."""
        limit = self.limit(row)
        if limit is None:
            return (1 << self.total_gpus) - 1
        return next((option for option in limit.options if not like & ~option), 0)


class ReasonCode(enum.Enum):
    """Reason why a job has fewer GPUs than it could use."""

    NO_FREE_GPUS = "no-free-gpus"
    BEHIND_ANOTHER = "behind-another"
    CLUSTER_TOO_SMALL = "cluster-too-small"
    MANUAL = "manual"
    PACKED = "packed"
    LIMITED = "limited"
    RESERVED = "reserved"
    RESOURCES = "resources"  # too few cores, or too little memory
    QUOTA = "quota"  # other jobs are entitled to the GPUs that it could use
    TRANSIENT = "transient"  # idle GPUs will be taken before growing onto them pays
    PROMISED = "promised"  # the job begins later and still ends by its deadline
    PROMISE_BROKEN = "promise-broken"  # the job will miss its deadline


class Taken(enum.Enum):
    """The GPUs that count as taken for a waiting job."""

    GIVEN = "given"  # GPUs that this decision gives to the other jobs
    MINIMUMS = "minimums"  # the minimums of jobs that go first
    HELD = "held"  # GPUs that jobs have at present


@dataclass(frozen=True)
class Lack:
    """A job waits for `wanted` GPUs, and too few are not `taken`.

    `what` follows the number of those: "left by jobs that go first".

    A policy may have seen only a part of the jobs and GPUs. So the numbers that users see are counted again, over the
    whole cluster (`shortage`).
    """

    wanted: int
    what: str
    taken: Taken


@dataclass(frozen=True)
class Reason:
    """A reason for a job's share.

    `text` is a sentence for users. `lack`: for a job that waits for GPUs, the statement without numbers.
    """

    code: ReasonCode
    text: str
    lack: Lack | None = None
