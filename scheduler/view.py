"""What the scheduler sees: a frozen view of the cluster, and the reasons it gives back.

Jobs stand in a table of columns (numpy), one row per job that is not over, in the order of submission. A decision looks at every
waiting job, and there may be tens of thousands of them: whole columns are compared at once, and only the few jobs that matter are
looked at one by one. Columns are cut out of larger ones when a policy first asks for them, since most ask for few.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from ..protocol.model import GpuAddress, GpuPlace, JobId, Server, ServerId
from .ended import NOTHING_ENDED, Ended
from .hull import concave
from .kinds import Demand, GpuSort, Stock
from .nearness import Near, cut, leaves, tree
from .order import Line, Order
from .sets import union

if TYPE_CHECKING:
    from .deadlines.schedule import Schedule

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

UNKNOWN_S = 1e9  # finite, so that it can be reckoned with; half a lifetime

Schedules = Mapping[JobId, "Schedule"]  # of jobs whose deadlines are promised: the plan of the last decision
NO_SCHEDULES: Schedules = MappingProxyType({})

Gpus = int  # a set of GPUs: bit i stands for GPU i of the view, whose servers follow each other


@dataclass
class Columns:
    """All that is known of some jobs. Their number is the length of every array; GPU counts are shares."""

    names: Sequence[JobId]
    submitted_s: Floats  # Unix time
    min_gpus: Ints
    max_gpus: Ints  # not beyond the share of greatest throughput
    requested_gpus: Ints  # what a rigid policy gives
    priority: Ints
    share: Ints
    left_s: Floats  # how long it still takes on one GPU, as told; UNKNOWN_S: it has not told, which counts as very long
    told_s: Floats  # how long it takes in all on one GPU, as told; nan: it has not told
    done_s: Floats  # how much of that it has done so far
    attained_gpu_s: Floats
    executed_s: Floats  # time with any GPU
    waiting_since_s: Floats  # its submission, or when it lost its last GPU; nan while it has some
    curve: Ints  # row of `Curves.speedup`
    deadline_s: Floats  # it is to be over by then, as `submitted_s`; nan: it has no deadline
    soft: Ints  # 1: it is of use, too, if its deadline is missed (ElasticFlow 4.4); else 0
    still_until_s: Floats  # it has GPUs, and does not work until then, as it starts or changes; in the past: it works
    changes: Ints  # of its GPUs so far, after it first got some; being taken all of them is one

    def cut(self, rows: slice) -> Columns:
        """Parts of the same arrays, not copies. Names stay those of all."""
        return Columns(self.names, *[getattr(self, one.name)[rows] for one in fields(self) if one.name != "names"])


@dataclass(frozen=True)
class Curves:
    """How throughput grows with GPUs: `speedup[c, n]` is T(n) / T(1) of curve c; `speedup[c, 0]` is 0.

    It is what jobs really get, as far as is known: it need not be concave. Rules that rest on that take the hull.
    """

    speedup: Floats
    hull: Floats | None = None  # likewise of the hulls, where they are known already

    @property
    def most(self) -> int:
        """The largest share that they tell of."""
        return int(self.speedup.shape[1]) - 1

    @cached_property
    def _rows(self) -> dict[int, list[float]]:
        return {}

    def row(self, curve: int) -> list[float]:
        """T(n) / T(1) for n from 0 on: for loops over single shares, for which arrays are slow."""
        found = self._rows.get(curve)
        if found is None:
            found = self._rows[curve] = self.speedup[curve].tolist()
        return found

    @cached_property
    def _hulls(self) -> Floats:
        return np.full(self.speedup.shape, np.nan) if self.hull is None else self.hull

    @cached_property
    def _hull_rows(self) -> dict[tuple[int, int], list[float]]:
        return {}

    def hulls(self, curves: Ints) -> Floats:
        """The hulls of these curves (`hull.concave`), in their rows; what stands in others is not said."""
        found = self._hulls
        unknown = curves[np.isnan(found[curves, 0])]
        for curve in np.unique(unknown).tolist() if len(unknown) else ():
            found[curve] = concave(self.speedup[curve : curve + 1])[0]
        return found

    def hull_row(self, curve: int, most: int) -> list[float]:
        """The hull of the first `most` GPUs of a curve, from 0 on."""
        found = self._hull_rows.get((curve, most))
        if found is None:
            hull = self.hulls(np.array([curve]))[curve, : most + 1]
            if hull[most] != self.speedup[curve, most]:  # it is held up by what lies behind
                hull = concave(self.speedup[curve : curve + 1, : most + 1])[0]
            found = self._hull_rows[curve, most] = hull.tolist()
        return found

    @cached_property
    def derived(self) -> dict[Any, dict[Any, Any]]:
        """What policies have worked out of these curves alone, each by its own key; empty again when more is known of one."""
        return {}

    def correct(self, curve: int, speedup: Floats) -> None:
        """More is known of a curve than before."""
        self.speedup[curve] = speedup
        self.derived.clear()
        self._rows.pop(curve, None)
        self._hulls[curve] = np.nan
        self._hull_rows.clear()


_COLUMNS = frozenset(one.name for one in fields(Columns)) - {"names"}


class Kept(Protocol):
    """Somebody who keeps jobs from one decision to the next."""

    def line(self, order: Order, jobs: JobTable) -> Line | None:
        """The jobs of the table that have no GPUs, in this order; None: it takes less to put them in order anew."""
        ...


class JobTable:
    """Some rows of `Columns`, in the order of submission. Columns are as there, an entry for each row of the table."""

    submitted_s: Floats
    min_gpus: Ints
    max_gpus: Ints
    requested_gpus: Ints
    priority: Ints
    share: Ints
    left_s: Floats  # only for policies that declare `needs_lengths`
    told_s: Floats  # likewise
    done_s: Floats
    attained_gpu_s: Floats
    executed_s: Floats
    waiting_since_s: Floats
    curve: Ints
    deadline_s: Floats
    soft: Ints
    still_until_s: Floats
    changes: Ints

    schedules: Schedules  # a plan with which all deadlines held at the last decision; a newer one takes its place
    running: Ints  # the rows of jobs that have GPUs, in ascending order
    most_needed: int  # no job's minimum is beyond this

    def __init__(
        self,
        columns: Columns,
        rows: Ints,
        curves: Curves,
        lengths: bool = True,
        at: Ints | slice | None = None,
        ended: Ended = NOTHING_ENDED,
        kept: Kept | None = None,
    ) -> None:
        """`rows`: which jobs, by number of `columns.names`. `lengths`: may the policy see how long jobs take?

        `at`: where they stand in the columns, if not in `rows`. `ended`: the jobs that are over. `kept`: who keeps these jobs in
        order. Who knows `running` and `most_needed` already may set them.
        """
        self.rows = rows
        self.curves = curves
        self.ended = ended
        self._columns = columns
        self._lengths = lengths
        self._at: Ints | slice = rows if at is None else at
        self.schedules: Schedules = NO_SCHEDULES
        self._kept = kept
        self._bounded = False  # its maximums are others than those of the columns

    def __len__(self) -> int:
        return len(self.rows)

    def __getattr__(self, name: str) -> Any:
        """A column that has not been asked for yet is cut out of the larger one."""
        if name not in _COLUMNS:
            return self._found(name)
        assert self._lengths or name not in ("left_s", "told_s"), "a policy that needs lengths must declare it"
        found = self.__dict__[name] = getattr(self._columns, name)[self._at]
        if self._kept is None:  # else the larger one cannot be written to, either
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
        """The same table, with the columns that have been asked for, but for those that tell lengths."""
        table = JobTable.__new__(JobTable)
        table.__dict__.update(self.__dict__)
        table.__dict__.pop("left_s", None)
        table.__dict__.pop("told_s", None)
        table._lengths = False
        return table

    def line(self, order: Order) -> Line | None:
        """The jobs that have no GPUs, in this order; None: nobody keeps them so."""
        return None if self._kept is None else self._kept.line(order, self)

    def within(self, most: Ints) -> JobTable:
        """The same jobs, where none can use more GPUs than this; it is no less than what each needs."""
        table = self._of(self.rows, self._at, self._lengths)
        table.max_gpus = np.minimum(self.max_gpus, most)
        table.max_gpus.setflags(write=False)
        table._bounded = True
        return table

    def _bound(self, table: JobTable, keep: Ints | None = None) -> JobTable:
        """The table of these rows, all or those to `keep`, with the maximums that they have here."""
        if self._bounded:
            table.max_gpus = self.max_gpus if keep is None else self.max_gpus[keep]
            table.max_gpus.setflags(write=False)
            table._bounded = True
        return table

    def assuming(self, left_s: Floats) -> JobTable:
        """The same jobs, as if each still took so long on one GPU."""
        table = self._of(self.rows, self._at, True)
        table.left_s = left_s
        table.told_s = self.done_s + left_s
        return self._bound(table)

    def cut(self, keep: Ints) -> JobTable:
        """These rows of the table alone."""
        at = keep + self._at.start if isinstance(self._at, slice) else self._at[keep]
        return self._bound(self._of(self.rows[keep], at, self._lengths), keep)

    def _of(self, rows: Ints, at: Ints | slice, lengths: bool) -> JobTable:
        """Rows of the same columns."""
        table = JobTable(self._columns, rows, self.curves, lengths, at, self.ended)
        table.schedules = self.schedules
        return table

    def speedup(self, rows: Any, gpus: Any) -> Any:
        """T(gpus) / T(1) of these rows."""
        return self.curves.speedup[self.curve[rows], gpus]

    def hull(self, rows: Any, gpus: Any) -> Any:
        """The same of the hull of each one's curve."""
        curves = self.curve[rows]
        return self.curves.hulls(curves)[curves, gpus]


@lru_cache(maxsize=256)  # many servers of a cluster are alike
def _nearness(indices: tuple[int, ...], places: tuple[GpuPlace, ...]) -> tuple[Near, tuple[int, ...]]:
    near = tree(indices, places)
    return near, leaves(near, len(indices)) if near else ()


@dataclass(frozen=True)
class ServerInView:
    """A server that works, and its GPUs that may be used. What is told of them stands in their order; empty: nothing is known.

    It is made once, when the server's agent has told of it.
    """

    server: ServerId
    gpus: tuple[int, ...]
    sorts: tuple[GpuSort, ...] = ()
    near: Near = ()  # which of them are near each other; empty: all alike
    leaves: tuple[int, ...] = ()  # a number for each along the tree of `near`; empty: their own numbers
    rack: str = ""

    @classmethod
    def of(cls, server: Server) -> ServerInView:
        """With all that its agent has told."""
        indices = tuple(gpu.index for gpu in server.gpus)
        near, numbers = _nearness(indices, tuple(gpu.place for gpu in server.gpus))
        return cls(
            server=server.server,
            gpus=indices,
            sorts=tuple(GpuSort(gpu.name, gpu.memory_bytes) for gpu in server.gpus),
            near=near,
            leaves=numbers,
            rack=server.rack,
        )

    def only(self, kept: Sequence[int]) -> ServerInView:
        """The server with the GPUs at these positions alone."""
        return ServerInView(
            server=self.server,
            gpus=tuple(self.gpus[at] for at in kept),
            sorts=tuple(self.sorts[at] for at in kept) if self.sorts else (),
            near=cut(self.near, kept) if self.near else (),
            leaves=tuple(self.leaves[at] for at in kept) if self.leaves else (),
            rack=self.rack,
        )

    @cached_property
    def addresses(self) -> tuple[GpuAddress, ...]:
        """Of its GPUs, in their order."""
        return tuple(GpuAddress(server=self.server, index=index) for index in self.gpus)

    @cached_property
    def by_sort(self) -> tuple[tuple[GpuSort, int], ...]:
        """The positions of its GPUs of each sort, as sets."""
        sorts = self.sorts or (GpuSort(),) * len(self.gpus)
        return tuple(
            (sort, sum(1 << at for at, one in enumerate(sorts) if one == sort)) for sort in dict.fromkeys(sorts)
        )

    @cached_property
    def stock(self) -> Stock:
        return Stock.of(self.sorts or [GpuSort()] * len(self.gpus))


@dataclass(frozen=True)
class Limit:
    """Which GPUs of a view some jobs may use: all GPUs of a job are of one of the `options`."""

    demand: Demand
    options: tuple[Gpus, ...]


def gpus_by_sort(servers: Iterable[ServerInView]) -> dict[GpuSort, Gpus]:
    """The GPUs of each sort, as sets of a view of these servers."""
    found: dict[GpuSort, Gpus] = {}
    begin = 0
    for server in servers:
        for sort, mask in server.by_sort:
            found[sort] = found.get(sort, 0) | mask << begin
        begin += len(server.gpus)
    return found


def limit_for(demand: Demand, sorts: Mapping[GpuSort, Gpus]) -> Limit:
    """Which of these GPUs jobs may use that ask for this."""
    return Limit(demand, tuple(union(sorts[sort] for sort in option) for option in demand.options(sorts)))


class Use(enum.Enum):
    """Why GPUs of a server that is there are in nobody's view."""

    FIXED = "of jobs that cannot be resized"
    STARTING = "of jobs that are expected to become elastic"
    LENT = "lent"
    RESERVED = "reserved by the policy file"
    BARRED = "not to be used"  # cordoned, drained, or something is wrong there
    UNKNOWN = "of jobs that are not known"


@dataclass(frozen=True)
class Aside:
    """GPUs that nobody in view can have, on the servers where they are."""

    use: Use
    servers: tuple[ServerInView, ...]


@dataclass(frozen=True)
class Reservation:
    """GPUs are held for the job of a row (`reservation`)."""

    row: int
    gpus: int  # it starts with so many
    got: int  # so many of them are held by nobody who would keep them
    ready: bool  # it can start: its limit is what is held for it
    held: Gpus  # nobody begins there who would keep them
    confined: frozenset[int]  # rows whose limits leave that out


class ClusterView(msgspec.Struct, frozen=True, dict=True):
    """`now` is Unix time in seconds; servers stand by name."""

    now: float
    jobs: JobTable
    servers: tuple[ServerInView, ...]
    placements: Mapping[int, Gpus]  # by row, of the jobs that have GPUs
    manual_shares: Mapping[int, int] = msgspec.field(
        default_factory=dict
    )  # by row, of the jobs whose share has been set by hand
    limits: tuple[Limit, ...] = ()
    limit_of: Ints | None = None  # by row: which of them; None: every job may use every GPU
    absent: tuple[ServerInView, ...] = ()  # servers that are known and not there
    whole: tuple[
        ServerInView, ...
    ] = ()  # the servers that are there, also with GPUs of jobs that nobody may resize, where there are such
    reservation: Reservation | None = None  # its limits stand among the others
    aside: tuple[
        Aside, ...
    ] = ()  # the GPUs of servers that are there which nobody in view can have, by why that is; `whole` has them, too

    @cached_property
    def total_gpus(self) -> int:
        return sum([len(server.gpus) for server in self.servers])

    @property
    def known(self) -> tuple[ServerInView, ...]:
        """All servers, with all GPUs that they have, as far as is known."""
        return (*(self.whole or self.servers), *self.absent)

    def limit(self, row: int) -> Limit | None:
        """None: the job may use every GPU."""
        return self.limits[int(self.limit_of[row])] if self.limit_of is not None else None

    def per_server(self, row: int) -> int:
        """How many GPUs a job has on each of its servers; 0: as they come."""
        limit = self.limit(row)
        return limit.demand.per_server if limit is not None else 0

    def usable(self, row: int, like: Gpus) -> Gpus:
        """The GPUs that a job may have beside, or instead of, these, which it may have."""
        limit = self.limit(row)
        if limit is None:
            return (1 << self.total_gpus) - 1
        return next((option for option in limit.options if not like & ~option), 0)


class ReasonCode(enum.Enum):
    """Why a job has not got what it could use."""

    NO_FREE_GPUS = "no-free-gpus"
    BEHIND_ANOTHER = "behind-another"
    CLUSTER_TOO_SMALL = "cluster-too-small"
    MANUAL = "manual"
    PACKED = "packed"
    LIMITED = "limited"
    RESERVED = "reserved"
    QUOTA = "quota"  # others have a right to what it could use
    PROMISED = "promised"  # it begins later, and still ends by its deadline
    PROMISE_BROKEN = "promise-broken"  # its deadline will be missed


class Taken(enum.Enum):
    """Which GPUs count as taken, for a job that waits."""

    GIVEN = "given"  # what the others get by this decision
    MINIMUMS = "minimums"  # the minimums of jobs that go before it
    HELD = "held"  # what jobs have now


@dataclass(frozen=True)
class Lack:
    """A job waits for `wanted` GPUs; too few are not `taken`. `what` follows the number of those: "left by jobs that go first".

    A policy may have been asked about a part of the jobs and of the GPUs. So the numbers that people are shown are counted anew,
    of the whole cluster (`lacking`).
    """

    wanted: int
    what: str
    taken: Taken


@dataclass(frozen=True)
class Reason:
    """`text` is a sentence for people. `lack`: what it says of a job that waits for GPUs, without the numbers."""

    code: ReasonCode
    text: str
    lack: Lack | None = None
