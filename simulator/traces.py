"""Public job traces, identified by their header (`FORMATS`). The order of columns does not matter; others are ignored.

* AFS's Philly clusters with models (PCS): ``vc,job,submit_s,duration_s,gpus,model``
* ElasticFlow's: ``job_id,submission_time,duration,num_gpu``, with ``cluster,model_name,batch_size,deadline`` where made
  up
* the inputs of ElasticFlow's artifact, and Tiresias': ``job_id,submit_time,duration,num_gpu`` with
  ``model_name,batch_size,ddl``
* Philly as in Pollux' artifact: ``timestamp,duration,num_gpus``, in no order
* Pollux' workloads: ``name,time,application,num_replicas,batch_size``, which state how far jobs train and not their
  duration
* EasyScale's workload: ``name,time,application,max_parallelism,epochs``, in no strict order, some names twice

Any of them may have a column ``told_s``: the duration that a job has reported with its requested GPUs; empty: none. And
one ``priority``: low, normal, high or a whole number, as in a job file; empty: normal. For clusters with several types
of GPUs: ``gpu_type`` (A100, or A100|V100 for either), ``gpu_memory_gib``, ``gpus_per_server``; empty: any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..protocol.errors import UserError
from ..protocol.limits import MAX_PRIORITY, PRIORITIES
from ..scheduler.arrays import Floats, Ints
from ..scheduler.kinds import Demand
from ..scheduler.profiles.tables import Table, listed, read


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

    @property
    def required(self) -> tuple[str, ...]:
        return tuple(column for column in (self.job, self.submit, self.duration, self.gpus, *self.others) if column)


PHILLY = Format("philly", "submit_s", "gpus", "duration_s", "job", model="model", parts=("vc",))
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
TOLD, PRIORITY = "told_s", "priority"  # columns that any format may have
DEMANDS = "gpu_type", "gpu_memory_gib", "gpus_per_server"  # likewise
FORMATS = (PHILLY, ELASTICFLOW, ARTIFACT, PHILLY_RAW, POLLUX, EASYSCALE)


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

    def __len__(self) -> int:
        return len(self.names)

    def up_to(self, gpus: int) -> Trace:
        """Return the jobs that requested no more GPUs. Raises UserError if there is none."""
        rows = np.flatnonzero(self.gpus <= gpus)
        if len(rows) == len(self):
            return self
        if not len(rows):
            raise UserError(f"{self.table.source}: every job requested more GPUs than the {gpus} of the cluster")
        return self._only(rows)

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
        )


def load(path: Path, where: Mapping[str, Sequence[str]] | None = None) -> Trace:
    """Return the trace in `path`, restricted to rows with one of the values in `where` in each named column.

    Raises UserError if the file is not such a trace.
    """
    table = read(path)
    form = next((form for form in FORMATS if all(column in table for column in form.required)), None)
    if form is None:
        known = "; ".join(",".join(form.required) for form in FORMATS)
        columns = ", ".join(table.columns)
        reason = f"not a job trace that is known: its columns are {columns}; wanted are those of one of {known}"
        raise UserError(f"{path}: line 1: {reason}")
    table = table.where(where or {})
    _check_one_part(table, form)
    submit_s = table.times(form.submit)
    if form.ordered and (np.diff(submit_s) < 0).any():
        row = int((np.diff(submit_s) < 0).argmax()) + 1
        before, here = table.columns[form.submit][row - 1], table.columns[form.submit][row]
        reason = f"{here} is before {before} in line {table.lines[row - 1]}; jobs stand in the order of submission"
        raise table.wrong(row, form.submit, reason)
    return Trace(
        table=table,
        form=form,
        names=_names(table, form),
        submit_s=submit_s,
        gpus=table.whole(form.gpus),
        duration_s=_durations(table, form.duration) if form.duration else None,
        models=table.texts(form.model) if form.model in table else None,
        batches=table.numbers(form.batch, least=1) if form.batch in table else None,
        deadline_s=_deadlines(table, form.deadline, submit_s),
        told_s=_told(table),
        priority=_priorities(table),
        demands=_demands(table),
    )


def _durations(table: Table, column: str) -> Floats:
    seconds = table.numbers(column)
    if not seconds.all():
        raise table.wrong(int(seconds.argmin()), column, "0 seconds; a job takes longer than that")
    return seconds


def _told(table: Table) -> Floats | None:
    """Return the reported durations; nan where the column is empty."""
    if TOLD not in table:
        return None
    rows = np.flatnonzero(np.array([value != "" for value in table.columns[TOLD]]))
    told_s = np.full(len(table), np.nan)
    if len(rows):
        told_s[rows] = _durations(table.only(rows), TOLD)
    return told_s


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


def _demands(table: Table) -> list[Demand] | None:
    """Return the GPUs that each job may use; None: not in the file."""
    if not any(column in table for column in DEMANDS):
        return None
    types, memory, each = (table.columns.get(column, [""] * len(table)) for column in DEMANDS)
    filled = {
        column: [value or "0" for value in values] for column, values in zip(DEMANDS[1:], (memory, each), strict=True)
    }
    numbers = Table(table.source, filled, table.lines)
    gib, per_server = numbers.numbers(DEMANDS[1]), numbers.whole(DEMANDS[2], least=0)
    return [
        Demand(tuple(word for word in of.split("|") if word), int(some * (1 << 30)), per_server=count)
        for of, some, count in zip(types, gib.tolist(), per_server.tolist(), strict=True)
    ]


def _deadlines(table: Table, column: str, submit_s: Floats) -> Floats:
    """Return the deadlines; nan: none. Raises UserError for one before the job's submission."""
    if column not in table:
        return np.full(len(table), np.nan)
    deadline_s = table.times(column)
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
        raise UserError(f"{table.source}: {len(parts)} traces in one file: pick one with {pick} (or {others})")
