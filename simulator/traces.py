"""Public job traces, identified by their columns (`FORMATS`). The order of columns does not matter; others are ignored.

Traces made for simulations state GPUs and seconds, and an invalid value is an error:

* AFS's Philly clusters with models (PCS): ``vc,job,submit_s,duration_s,gpus,model``, with ``deadline_s`` where wanted
* ElasticFlow's: ``job_id,submission_time,duration,num_gpu``, with ``cluster,model_name,batch_size,deadline`` where made
  up
* the inputs of ElasticFlow's artifact, and Tiresias': ``job_id,submit_time,duration,num_gpu`` with
  ``model_name,batch_size,ddl``
* Philly as in Pollux' artifact: ``timestamp,duration,num_gpus``, in no order
* Pollux' and Sia's workloads: ``name,time,application,num_replicas,batch_size``, which state how far jobs train and not
  their duration
* Gavel's: tab separated, in the columns of its `parse_trace`, with a number of steps in place of a duration
* EasyScale's workload: ``name,time,application,max_parallelism,epochs``, in no strict order, some names twice

Logs of clusters also contain jobs that cannot be simulated. These are left out and counted (`Trace.left_out`): jobs
without GPUs, and those that never started or have not ended. A fraction of a GPU counts as a whole one, since jobs do
not share GPUs here: the fractions of a job are summed, and the sum is rounded up. Durations are from start to end. In
Acme's Kalos, for one, the column ``duration`` includes the time in the queue.

* Helios' ``cluster_log.csv``, Acme's ``trace_seren.csv`` and ``trace_kalos.csv``: ``job_id,gpu_num,submit_time,
  start_time,end_time``
* Alibaba PAI's ``pai_task_table`` (2020), without a header: the tasks of a job run at the same time, and so count as
  one job. The table has no submission, so jobs count as submitted when they start
* Alibaba's ``openb_pod_list`` (2023): ``name,num_gpu,gpu_milli,gpu_spec,creation_time,scheduled_time,deletion_time``
* Philly's ``cluster_job_log`` and Slurm's ``sacct -P`` (`logs`)

Any of them may have a column ``told_s``: the duration that a job has reported with its requested GPUs; empty: none. And
one ``priority``: low, normal, high or a whole number, as in a job file; empty: normal. For clusters with several types
of GPUs: ``gpu_type`` (A100, or A100|V100 for either), ``gpu_memory_gib``, ``gpus_per_server``; empty: any. For servers
with counted cores and memory: ``cpus`` and ``memory_gib`` of each worker, that is for each GPU; empty: none.

Users and accounts (Slurm's word; virtual clusters in Philly's and Helios' logs) are read where a format has them, else from
the columns ``user`` and ``account``. A second table may state them by job (`Owners`), such as PAI's ``pai_job_table``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ..protocol.errors import UserError
from ..protocol.limits import MAX_PRIORITY, PRIORITIES
from ..scheduler.amounts import GIB, NO_NEED, Amounts, Need
from ..scheduler.arrays import Floats, Ints
from ..scheduler.kinds import Demand
from ..scheduler.profiles.tables import MOST, Table, listed
from . import logs
from .owners import ELSEWHERE, OF_FORMAT, By, Owners


@dataclass(frozen=True)
class Format:
    """Names of a trace's columns; "": there is none. A table that has all but the optional ones is of this format."""

    name: str
    submit: str
    gpus: str
    duration: str = ""
    job: str = ""
    others: tuple[str, ...] = ()  # further required columns
    model: str = ""  # optional, as the rest
    batch: str = ""
    deadline: str = ""
    ordered: bool = True  # jobs stand in the order of submission
    unique: bool = True  # each job has a name of its own
    parts: tuple[str, ...] = ()  # rows that differ in these columns belong to separate traces
    log: bool = False  # of a cluster: with jobs that cannot be simulated
    start: str = ""  # with `end`, in place of `duration`
    end: str = ""
    each: str = ""  # a job's GPUs are `gpus` times this column,
    whole: float = 1.0  # of which so many are one GPU
    types: str = "gpu_type"  # of which GPUs a job may use
    user: str = "user"
    account: str = "account"
    apart: bool = False  # each account counts and orders its jobs by itself
    merged: bool = False  # rows of the same name are one job

    @property
    def required(self) -> tuple[str, ...]:
        columns = (self.job, self.submit, self.duration, self.start, self.end, self.gpus, self.each, *self.others)
        return tuple(dict.fromkeys(column for column in columns if column))


PHILLY = Format("philly", "submit_s", "gpus", "duration_s", "job", model="model", deadline="deadline_s", parts=("vc",))
ELASTICFLOW = Format(
    "elasticflow",
    "submission_time",
    "num_gpu",
    "duration",
    "job_id",
    model="model_name",
    batch="batch_size",
    deadline="deadline",
    parts=("cluster",),
)
ARTIFACT = Format(
    "elasticflow-artifact",
    "submit_time",
    "num_gpu",
    "duration",
    "job_id",
    model="model_name",
    batch="batch_size",
    deadline="ddl",
)
PHILLY_RAW = Format("philly-raw", "timestamp", "num_gpus", "duration", ordered=False)
POLLUX = Format(
    "pollux",
    "time",
    "num_replicas",
    job="name",
    others=("application", "batch_size"),
    model="application",
    batch="batch_size",
    parts=("set", "workload"),
)
EASYSCALE = Format(
    "easyscale",
    "time",
    "max_parallelism",
    job="name",
    others=("application", "epochs"),
    model="application",
    ordered=False,
    unique=False,
)
GAVEL = Format("gavel", "arrival_time", "scale_factor", others=("total_steps",), model="job_type", ordered=False)
HELIOS = Format(
    "helios", "submit_time", "gpu_num", job="job_id", log=True, start="start_time", end="end_time", account="vc"
)
PAI = Format(
    "alibaba-pai",
    "start_time",
    "plan_gpu",
    job="job_name",
    log=True,
    start="start_time",
    end="end_time",
    each="inst_num",
    whole=100.0,
    types="",  # its gpu_type is that of the GPUs that a task got
    merged=True,
)
OPENB = Format(
    "alibaba-2023",
    "creation_time",
    "num_gpu",
    job="name",
    log=True,
    start="scheduled_time",
    end="deletion_time",
    each="gpu_milli",
    whole=1000.0,
    types="gpu_spec",
)
PHILLY_LOG = Format("philly-log", "submitted_time", "gpus", "run_s", "jobid", log=True, account="vc")
SACCT = Format(  # requeued jobs appear again
    "sacct", "Submit", "gpus", "run_s", "JobID", log=True, unique=False, user="User", account="Account"
)
TOLD, PRIORITY = "told_s", "priority"  # columns that any format may have
MEMORY, PER_SERVER = "gpu_memory_gib", "gpus_per_server"  # likewise
WORKER_CPUS, WORKER_MEMORY = "cpus", "memory_gib"
FORMATS = (
    *(PHILLY, ELASTICFLOW, ARTIFACT, PHILLY_RAW, POLLUX, EASYSCALE, GAVEL),
    *(HELIOS, PAI, OPENB, PHILLY_LOG, SACCT),
)
NO_GPUS = "without GPUs"
NO_SUBMISSION = "without a submission"
NO_SPAN = "without a start or an end"
NO_TIME = "of 0 seconds"
BACKWARDS = "with an end before the start"
EARLY = "with a start long before the submission"
CLOCKS_S = 3600.0  # by which clocks of a log may differ, as at the end of daylight saving time
NO_COUNT = "with an unknown number of GPUs"


@dataclass(frozen=True)
class Trace:
    """Jobs of a file, a row each, in its order. Times are those of the file (s)."""

    table: Table
    form: Format
    names: tuple[str, ...]
    submit_s: Floats
    gpus: Ints  # requested
    duration_s: Floats | None  # with `gpus`; None: not in the file
    models: Sequence[str] | None
    batches: Floats | None
    deadline_s: Floats  # nan: none
    told_s: Floats | None = None  # reported duration with `gpus`; nan: none; None: not in the file
    priority: Ints | None = None  # a greater one goes first; None: not in the file
    demands: Sequence[Demand] | None = None  # None: not in the file
    left_out: Mapping[str, int] = field(default_factory=dict)  # numbers of jobs of a log, by the reason
    rounded_up: int = 0  # number of jobs that requested a fraction of a GPU
    untyped: int = 0  # number of jobs that requested types of GPUs and may use any
    unheld: int = 0  # number of jobs that requested cores or memory, which are not counted
    owners: Mapping[By, Sequence[str]] = field(default_factory=dict)  # user and account of each job, if known
    owner_columns: Mapping[By, str] = field(default_factory=dict)  # where these stand
    known_owners: Mapping[By, Sequence[str]] = field(default_factory=dict)  # those of rows that are left out, too

    def __len__(self) -> int:
        return len(self.names)

    def check_owners(self, by: By, needs: str, every: bool = False) -> None:
        """Raise UserError if jobs have no user, or no account. `needs`: what needs one; `every`: each job must have one."""
        if by not in self.owners:
            column, there = getattr(self.form, by.value), ", ".join(self.table.columns)
            reason = f"{needs} needs a column {column}; there are {there}; {ELSEWHERE[by]}"
            raise UserError(f"{self.table.source}: line 1: {reason}")
        if every and "" in self.owners[by]:
            raise self.table.wrong(
                self.owners[by].index(""),
                self.owner_columns[by],
                f"{needs} needs the {by.value} of each job; here is none",
            )

    def up_to(self, gpus: int) -> Trace:
        """Return the jobs that requested no more GPUs. Raises UserError if there is none."""
        rows = np.flatnonzero(self.gpus <= gpus)
        if len(rows) == len(self):
            return self
        if not len(rows):
            raise UserError(f"{self.table.source}: every job requested more GPUs than the {gpus} of the cluster")
        return self._only(rows)

    def on_any_type(self) -> Trace:
        """Return the jobs without the types that a log names, for servers that have none."""
        if self.demands is None or not self.form.log:
            return self
        demands = [replace(one, types=()) for one in self.demands]
        asked = sum(1 for one in self.demands if one.types)
        return replace(self, demands=demands if any(one != Demand() for one in demands) else None, untyped=asked)

    def without_needs(self) -> Trace:
        """Return the jobs without the cores and memory that they request, for servers on which these are not counted."""
        asked = sum(1 for one in self.demands or () if one.need)
        if self.demands is None or not asked:
            return self
        demands = [replace(one, need=NO_NEED) for one in self.demands]
        return replace(self, demands=demands if any(one != Demand() for one in demands) else None, unheld=asked)

    def first(self, count: int) -> Trace:
        """Return the jobs that were submitted first, at most `count`."""
        return self._only(np.sort(np.argsort(self.submit_s, kind="stable")[:count]))

    def _only(self, rows: Ints) -> Trace:
        chosen = rows.tolist()
        return replace(
            self,
            table=self.table.only(rows),
            names=tuple([self.names[row] for row in chosen]),
            submit_s=self.submit_s[rows],
            gpus=self.gpus[rows],
            duration_s=None if self.duration_s is None else self.duration_s[rows],
            models=None if self.models is None else [self.models[row] for row in chosen],
            batches=None if self.batches is None else self.batches[rows],
            deadline_s=self.deadline_s[rows],
            told_s=None if self.told_s is None else self.told_s[rows],
            priority=None if self.priority is None else self.priority[rows],
            demands=None if self.demands is None else [self.demands[row] for row in chosen],
            owners={by: [each[row] for row in chosen] for by, each in self.owners.items()},
        )


def load(path: Path | Table, where: Mapping[str, Sequence[str]] | None = None, owners: Owners = OF_FORMAT) -> Trace:
    """Return the trace in a file or table, restricted to rows with one of the values in `where` in each named column.

    Raises UserError if the file is not such a trace.
    """
    table = logs.complete(path) if isinstance(path, Table) else logs.read(path)
    form = next((form for form in FORMATS if all(column in table for column in form.required)), None)
    if form is None:
        known = "; ".join(",".join(form.required) for form in FORMATS)
        columns = ", ".join(table.columns)
        reason = f"not a job trace that is known: its columns are {columns}; wanted are those of one of {known}"
        raise UserError(f"{table.source}: line 1: {reason}")
    form, table = _with_owners(table, form, owners)
    named = {by: column for by, column in ((By.USER, form.user), (By.ACCOUNT, form.account)) if column in table}
    everyone = {
        by: tuple(value for value in dict.fromkeys(table.columns[column]) if not logs.absent(value))
        for by, column in named.items()
    }
    table = table.where(where or {})
    found = _load_log(table, form) if form.log else _load_whole(table, form)
    of = {by: found.table.columns[column] for by, column in named.items()}
    texts = {by: ["" if logs.absent(value) else value for value in values] for by, values in of.items()}
    return replace(found, owners=texts, owner_columns=named, known_owners=everyone)


def _with_owners(table: Table, form: Format, owners: Owners) -> tuple[Format, Table]:
    """Return the trace with the columns in which users and accounts stand, and its format with their names."""
    if owners.users is not None:
        table = owners.joined(table, form.job, form.user, form.account)
    if owners.account is None:
        return form, table
    if owners.account not in table:
        known = ", ".join(table.columns)
        raise UserError(f"{table.source}: line 1: no column {owners.account!r} that names accounts; there are {known}")
    parts = tuple(column for column in form.parts if column != owners.account)
    return replace(form, account=owners.account, parts=parts, apart=parts != form.parts), table


def _load_whole(table: Table, form: Format) -> Trace:
    """Return the jobs of a trace that was made for simulations."""
    _check_one_part(table, form)
    submit_s = table.times(form.submit)
    if form.ordered:
        _check_order(table, form, submit_s)
    duration_s = _durations(table, form.duration) if form.duration else None
    return _trace(table, form, submit_s, table.whole(form.gpus), duration_s)


def _check_order(table: Table, form: Format, submit_s: Floats) -> None:
    """Raise UserError unless the jobs, or those of each account, stand in the order of submission."""
    accounts = table.columns[form.account] if form.apart else [""] * len(table)
    last: dict[str, int] = {}
    for row, account in enumerate(accounts):
        before = last.get(account, row)
        if submit_s[row] < submit_s[before]:
            here, earlier = table.columns[form.submit][row], table.columns[form.submit][before]
            reason = f"{here} is before {earlier} in line {table.lines[before]}; jobs stand in the order of submission"
            raise table.wrong(row, form.submit, reason)
        last[account] = row


def _trace(table: Table, form: Format, submit_s: Floats, gpus: Ints, duration_s: Floats | None) -> Trace:
    return Trace(
        table=table,
        form=form,
        names=_names(table, form),
        submit_s=submit_s,
        gpus=gpus,
        duration_s=duration_s,
        models=table.texts(form.model) if form.model in table else None,
        batches=table.numbers(form.batch, least=1) if form.batch in table else None,
        deadline_s=_deadlines(table, form.deadline, submit_s),
        told_s=_told(table),
        priority=_priorities(table),
        demands=_demands(table, form.types),
    )


def _load_log(table: Table, form: Format) -> Trace:
    """Return the jobs of a log that can be simulated, with the numbers of the others."""
    gpus = _filled(table, form.gpus, Table.numbers, absent=0.0 if form.each else np.nan)
    if form.each:
        gpus = gpus * _filled(table, form.each, Table.numbers, absent=0.0) / form.whole
    submit_s = _filled(table, form.submit, Table.times)
    if form.duration:
        start_s = np.zeros(len(table))
        end_s = _filled(table, form.duration, lambda part, column: part.numbers(column, least=-MOST))
    else:
        start_s, end_s = (_filled(table, column, Table.times) for column in (form.start, form.end))
    if form.merged:
        first, job = np.unique(np.array(table.texts(form.job)), return_index=True, return_inverse=True)[1:]
        start_s, end_s = np.where(gpus > 0, start_s, np.inf), np.where(gpus > 0, end_s, -np.inf)
        gpus = np.bincount(job, gpus).astype(np.float64)
        start_s = _over(np.minimum, start_s, job, np.inf)
        end_s = _over(np.maximum, end_s, job, -np.inf)
        order = np.argsort(first)
        table, gpus, start_s, end_s = table.only(first[order]), gpus[order], start_s[order], end_s[order]
        submit_s = np.where(np.isfinite(start_s), start_s, np.nan)
    left_out: dict[str, int] = {}
    keep = np.ones(len(table), dtype=np.bool_)
    for reason, out in (
        (NO_GPUS, gpus == 0),
        (NO_SPAN, np.isnan(end_s - start_s)),
        (NO_COUNT, np.isnan(gpus)),
        (NO_SUBMISSION, np.isnan(submit_s)),
        (BACKWARDS, end_s < start_s),
        (EARLY, start_s < submit_s - CLOCKS_S if form.start else keep & False),
        (NO_TIME, end_s == start_s),
    ):
        if count := int(np.count_nonzero(keep & out)):
            left_out[reason] = count
        keep &= ~out
    if not keep.any():
        counts = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        raise UserError(f"{table.source}: no job can be simulated: {counts}")
    rows = np.flatnonzero(keep)
    table, gpus = table.only(rows), gpus[rows]
    rounded = np.ceil(gpus - 1e-6)  # 0.1 ten times is 1
    found = _trace(table, form, submit_s[rows], rounded.astype(np.int64), (end_s - start_s)[rows])
    return replace(found, left_out=left_out, rounded_up=int(np.count_nonzero(rounded - gpus > 1e-6)))


def _over(least_or_most: np.ufunc, values: Floats, job: Ints, none: float) -> Floats:
    """Return the least or the greatest value of each job's rows; nan where one is missing."""
    found = np.full(int(job.max()) + 1, none)
    with np.errstate(invalid="ignore"):  # nan is meant
        least_or_most.at(found, job, values)
    return found


def _filled(table: Table, column: str, read: Callable[[Table, str], Floats], absent: float = np.nan) -> Floats:
    """Return the values of a log's column, with `absent` where it says that there is none."""
    rows = [row for row, value in enumerate(table.columns[column]) if not logs.absent(value)]
    found = np.full(len(table), absent)
    if rows:
        values, lines = table.columns[column], table.lines
        part = Table(table.source, {column: [values[row] for row in rows]}, [lines[row] for row in rows])
        found[rows] = read(part, column)
    return found


def _durations(table: Table, column: str) -> Floats:
    seconds = table.numbers(column)
    if not seconds.all():
        raise table.wrong(int(seconds.argmin()), column, "0 seconds; a job takes longer than that")
    return seconds


def _told(table: Table) -> Floats | None:
    """Return the reported durations; nan where the column is empty."""
    if TOLD not in table:
        return None
    return _filled(table, TOLD, _durations)


def _priorities(table: Table) -> Ints | None:
    """Return the priorities as numbers; None: not in the file."""
    if PRIORITY not in table:
        return None
    found = []
    for row, value in enumerate(table.columns[PRIORITY]):
        number = PRIORITIES.get(value or "normal")
        if number is None:
            try:
                number = int(value)
            except ValueError:
                number = MAX_PRIORITY + 1
        if abs(number) > MAX_PRIORITY:
            reason = f"{value!r} is not low, normal, high or a whole number from {-MAX_PRIORITY} to {MAX_PRIORITY}"
            raise table.wrong(row, PRIORITY, reason)
        found.append(number)
    return np.array(found, dtype=np.int64)


def _demands(table: Table, types: str) -> list[Demand] | None:
    """Return the GPUs that each job may use; None: not in the file. types: the column with their types."""
    columns = (MEMORY, PER_SERVER, WORKER_CPUS, WORKER_MEMORY)
    if not any(column in table for column in (types, *columns)):
        return None
    nothing = [""] * len(table)
    filled = {column: [value or "0" for value in table.columns.get(column, nothing)] for column in columns}
    numbers = Table(table.source, filled, table.lines)
    per_server = numbers.whole(PER_SERVER, least=0).tolist()
    gib, cpus, worker_gib = (numbers.numbers(column).tolist() for column in (MEMORY, WORKER_CPUS, WORKER_MEMORY))
    of_types = [tuple(filter(None, words.split("|"))) for words in table.columns.get(types, nothing)]
    return [
        Demand(of_types[row], int(gib[row] * GIB), per_server=per_server[row], need=_need(cpus[row], worker_gib[row]))
        for row in range(len(table))
    ]


def _need(cpus: float, gib: float) -> Need:
    each = Amounts(round(1000 * cpus), int(gib * GIB))
    return Need(each) if each else NO_NEED


def _deadlines(table: Table, column: str, submit_s: Floats) -> Floats:
    """Return the deadlines; nan where the column is empty. Raises UserError for one before the job's submission."""
    if column not in table:
        return np.full(len(table), np.nan)
    deadline_s = _filled(table, column, Table.times)
    early = deadline_s < submit_s
    if early.any():
        row = int(early.argmax())
        raise table.wrong(row, column, f"{table.columns[column][row]} is before the job's submission")
    return deadline_s


def _names(table: Table, form: Format) -> tuple[str, ...]:
    """Return a distinct name for each job."""
    if not form.job:
        width = len(str(len(table)))
        return tuple(f"job-{row:0{width}d}" for row in range(len(table)))
    names = table.texts(form.job)
    if len(set(names)) == len(names):
        return tuple(names)
    if form.apart:
        names = [f"{account}/{name}" for account, name in zip(table.columns[form.account], names, strict=True)]
    seen: Counter[str] = Counter()
    distinct = []
    for row, name in enumerate(names):
        if seen[name] and form.unique:
            first = table.lines[names.index(name)]
            raise table.wrong(row, form.job, f"{name!r} stands in line {first} already")
        seen[name] += 1
        distinct.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return tuple(distinct)


def _check_one_part(table: Table, form: Format) -> None:
    columns = [column for column in form.parts if column in table]
    if not columns:
        return
    parts = list(dict.fromkeys(zip(*(table.columns[column] for column in columns), strict=True)))
    if len(parts) > 1:
        pick = " ".join(f"--where {column}={value}" for column, value in zip(columns, parts[0], strict=True))
        others = listed(" ".join(part) for part in parts[1:])
        both = f"; --account {columns[0]} makes them accounts of one cluster" if len(columns) == 1 else ""
        raise UserError(f"{table.source}: {len(parts)} traces in one file: pick one with {pick} (or {others}){both}")
