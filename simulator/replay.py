"""Simulations from Python: `simulate` replays a trace under some policies, as `elasticctl simulate` does.

from elasticd.simulator import simulate

found = simulate("trace.csv", ["fifo", "afs-l"], profiles="throughputs.csv", servers=2, gpus_per_server=4)
found["afs-l"].metrics.avg_jct_s
found.summary()  # a DataFrame with a row for each policy
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from ..protocol.errors import UserError
from ..protocol.model import JobId
from ..protocol.texts import many
from ..scheduler.kinds import never_fits
from ..scheduler.profiles import curves as measured
from ..scheduler.profiles.tables import Table
from ..scheduler.scheduler import Scheduler, Stages
from . import files, groups, quota_checks, results, traces
from .assign import assign
from .clusters import MOST_GPUS, Cluster
from .costs import Costs
from .explain import Moment
from .failures import FAIL, Outages, Rates
from .files import Choice
from .metrics import Metrics
from .owners import OF_FORMAT, By, Owners
from .owners import by as owned_by
from .runs import Result, Setup, run_all
from .telling import Telling, telling
from .traces import Trace
from .typed import differs

if TYPE_CHECKING:
    from pandas import DataFrame

Columns = Mapping[str, Sequence[Any]]  # a table without pandas
MISSING = frozenset({"nan", "NaT", "<NA>"})  # of pandas
MOST_SEEDS, MOST_PROCESSES, MOST_GPUS_PER_SERVER = 1 << 62, 65_536, 1024


@dataclass(frozen=True)
class Prepared:
    """A workload on a cluster, and remarks on jobs of the trace that are not simulated as it says.

    `dropped_larger`: number of jobs that are left out because they were too large for the cluster.
    """

    setup: Setup
    dropped_larger: int
    trace: Trace
    notes: tuple[str, ...] = ()

    def remarks(self) -> list[str]:
        trace, said = self.trace, []
        if trace.left_out:
            said.append("left out " + ", ".join(f"{many(count, 'job')} {why}" for why, count in trace.left_out.items()))
        if trace.rounded_up:
            asked = (
                "asks for fractions of GPUs and gets" if trace.rounded_up == 1 else "ask for fractions of GPUs and get"
            )
            said.append(f"{many(trace.rounded_up, 'job')} {asked} whole ones: jobs do not share GPUs in simulations")
        if trace.untyped:
            asks = "asks" if trace.untyped == 1 else "ask"
            said.append(f"{many(trace.untyped, 'job')} {asks} for GPU types, which the simulated servers do not have")
        if trace.unheld:
            asks = "asks" if trace.unheld == 1 else "ask"
            jobs = many(trace.unheld, "job")
            said.append(f"{jobs} {asks} for cores or memory, which the simulated servers do not state (--cluster)")
        if self.dropped_larger:
            requests = "requests" if self.dropped_larger == 1 else "request"
            jobs = many(self.dropped_larger, "job")
            said.append(f"--drop-larger: left out {jobs} that {requests} more GPUs than the cluster has")
        return [*said, *self.notes]


def prepare(
    trace: Path | Table,
    cluster: Cluster,
    *,
    where: Mapping[str, Sequence[str]] | None = None,
    profiles: Path | Table | None = None,
    gpu_type: str | None = None,
    costs: Costs,
    stages: Stages,
    schedulers: Mapping[str, Scheduler] = MappingProxyType({}),
    owners: Owners = OF_FORMAT,
    quotas_from: str = files.QUOTAS,
    quotas_by: By | None = None,
    cap_at_request: bool = False,
    random_models: bool = False,
    drop_larger: bool = False,
    curves_known: bool = True,
    seeds: Sequence[int] = (0,),
    explain: JobId | None = None,
    tells: Telling | None = None,
    failures: Rates | Table | None = None,
    begins_s: float | None = None,
) -> list[Prepared]:
    """Return one workload for each seed; files are read once.

    `tells`: which jobs report their lengths, in place of the trace's reports. `schedulers`: those that are to run, some
    with quotas of their own; `quotas_from`: where the quotas of `stages` stand. `begins_s`: Unix time of the first
    submission, for reservations.

    Raises UserError, naming file and line, if something cannot be simulated.
    """
    tables = measured.load(profiles, gpu_type) if profiles is not None else None
    gpus = sum(len(server.gpus) for server in cluster)
    whole = traces.load(trace, where or {}, owners)
    names = dict.fromkeys(sort.name for server in cluster for sort in server.sorts)
    if tables is not None and gpu_type is None and len(names) == 1:
        tables = tables.of_type(next(iter(names)))
    if not any(names):
        whole = whole.on_any_type()
    if not any(server.capacity for server in cluster):
        whole = whole.without_needs()
    jobs = whole.up_to(gpus) if drop_larger else whole
    types = list(names) if gpu_type is None and len(names) > 1 else []
    by = quota_checks.owner(jobs, quotas_by)
    notes = (*_never_fit(jobs, cluster), *_notes(jobs, gpus, by, stages, quotas_from, schedulers, begins_s is not None))
    reserves = begins_s is not None and any(one.stages.reservations for one in schedulers.values())
    found = []
    for seed in seeds:
        assigned = assign(jobs, gpus, tables, seed, cap_at_request, random_models, curves_known, types)
        if not curves_known and (failures is not None or reserves or differs(assigned.workload, cluster)):
            raise UserError(
                "curves: measured: not with failures, reservations or several types of GPUs, nor for jobs that ask for GPUs, "
                "cores or memory"
            )
        if tells is not None:
            load = assigned.workload
            assigned = replace(assigned, workload=replace(load, told_s=tells.told_s(load.work_s, seed)))
        setup = Setup(
            assigned,
            cluster,
            costs,
            seed,
            stages.packing,
            explain,
            stages.placement,
            stages.admission,
            failures,
            curves_known,
            stages.quotas,
            by,
            begins_s,
        )
        if failures is not None:
            Outages(failures, cluster, seed)  # a mistake in a trace is found before hours of simulation
        found.append(Prepared(setup, len(whole) - len(jobs), jobs, notes))
    return found


def _never_fit(trace: Trace, cluster: Cluster) -> tuple[str, ...]:
    """Return a remark on the jobs that the servers could not run, even if they were alone."""
    if trace.demands is None:
        return ()
    stocks = [server.stock for server in cluster]
    why = {one: never_fits(one, max(one.per_server, 1), stocks) for one in dict.fromkeys(trace.demands)}
    never = [row for row, one in enumerate(trace.demands) if why[one]]
    if not never:
        return ()
    name, first = trace.names[never[0]], why[trace.demands[never[0]]]
    return (f"{many(len(never), 'job')} can never start; {name}: {first}",)


def _notes(
    trace: Trace,
    gpus: int,
    by: By,
    stages: Stages,
    quotas_from: str,
    schedulers: Mapping[str, Scheduler],
    begins: bool,
) -> tuple[str, ...]:
    """Return remarks on quotas and reservations. Raises UserError if the quotas of a scheduler do not suit the trace."""
    said: dict[str, None] = {}
    for label, one in schedulers.items():
        own = one.stages.quotas
        if own.any:
            source = quotas_from if own is stages.quotas else one.source or label
            quota_checks.check(own, by, trace, source)
            said |= dict.fromkeys(filter(None, [quota_checks.remark(own, by, trace, gpus)]))
        if one.stages.reservations and not begins:
            why = "--begin TIME says when the first job of the trace is submitted"
            said[f"{label}: its reservations by time are not simulated: {why}"] = None
    return tuple(said)


@dataclass(frozen=True, repr=False)
class Replay:
    """Results of one policy on a trace.

    `metrics`: the figures of the command's table and JSON; times in seconds (`metrics.Metrics`). With several seeds
    `seeds` has the results of each, and the others are those of the first.
    """

    setup: Setup
    result: Result
    seeds: tuple[Replay, ...] = ()

    @property
    def metrics(self) -> Metrics:
        return self.result.metrics

    def __repr__(self) -> str:
        found = self.metrics
        return (
            f"<Replay of {many(len(self.result.end_s), 'job')}: {found.finished} finished, avg_jct_s={found.avg_jct_s}>"
        )

    def jobs(self) -> results.Rows:
        """Return lists by column, an entry for each job, as for ``pandas.DataFrame(...)``: see `results.job_rows`."""
        return results.job_rows(self.setup, self.result)

    def timeline(self) -> results.Rows:
        """Return lists by column, an entry for each event: see `results.timeline_rows`."""
        return results.timeline_rows(self.result)

    def by(self, by: str) -> results.Rows:
        """Return lists by column, an entry for each user or account (`by`): see `groups.GroupMetrics`."""
        grouped = owned_by(by, "by")
        return groups.rows(grouped, groups.measure(self.setup, self.result, grouped))

    def explain(self) -> results.Rows:
        """Return lists by column, an entry for each change of the job to explain: ``time_s`` (seconds since the first
        submission), ``gpus``, ``wanted_gpus`` (of the policy, before packing), ``why`` (it had no more)."""
        if self.setup.explain is None:
            raise UserError("explain: no job was named: simulate(..., explain=JOB)")
        return {name: [getattr(one, name) for one in self.result.story] for name in Moment.__dataclass_fields__}


class Replays(dict[str, Replay]):
    """Results by policy, and all of them as one ``pandas.DataFrame`` (``pip install 'elasticctl[pandas]'``).

    `remarks`: sentences on jobs of the trace that were left out or changed.
    """

    def __init__(self, found: Mapping[str, Replay], remarks: Sequence[str] = ()) -> None:
        super().__init__(found)
        self.remarks = tuple(remarks)

    def summary(self) -> DataFrame:
        """Return a row for each policy, with the figures of `metrics` as columns; with several seeds their means, and
        half the width of each 95 % interval as ``NAME_interval_95``."""
        rows = {}
        for label, one in self.items():
            means, halves = results.over_seeds([msgspec.structs.asdict(each.metrics) for each in one.seeds or (one,)])
            widths = {f"{name}_interval_95": half for name, half in halves.items()} if one.seeds else {}
            rows[label] = {**means, **widths}
        found = _pandas().DataFrame.from_dict(rows, orient="index")
        return found.rename_axis("policy")

    def jobs(self) -> DataFrame:
        """Return a row for each policy, seed and job, as `--jobs` writes them."""
        return self._frame(Replay.jobs)

    def timeline(self) -> DataFrame:
        """Return a row for each policy, seed and event, as `--timeline` writes them."""
        return self._frame(Replay.timeline)

    def by(self, by: str) -> DataFrame:
        """Return a row for each policy, seed and user or account (`by`: ``"user"``, ``"account"``), as `--by` shows them."""
        return self._frame(lambda one: one.by(by))

    def explain(self) -> DataFrame:
        """Return each policy's decisions about the job to explain."""
        return self._frame(Replay.explain)

    def _frame(self, rows: Callable[[Replay], results.Rows]) -> DataFrame:
        labelled = [
            ({"policy": label, "seed": each.setup.seed}, rows(each))
            for label, one in self.items()
            for each in one.seeds or (one,)
        ]
        return _pandas().DataFrame(results.labelled_rows(labelled))


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise UserError("pandas is not installed: pip install 'elasticctl[pandas]'") from None
    return pandas


def simulate(
    trace: str | Path | Columns | DataFrame,
    policy: Choice | Sequence[Choice] | Mapping[str, Choice] = "max-min",
    *,
    servers: int | None = None,
    gpus_per_server: int | None = None,
    cluster: str | Path | Mapping[str, Any] | None = None,
    where: Mapping[str, Any] | None = None,
    profiles: str | Path | Columns | DataFrame | None = None,
    gpu_type: str | None = None,
    overhead: str | Path | Mapping[str, Any] | Costs = "none",
    packing: bool = False,
    placement: str | None = None,
    admission: str | None = None,
    cap_at_request: bool = False,
    random_models: bool = False,
    drop_larger: bool = False,
    curves: str = "known",
    told: float | None = None,
    errors: str | Sequence[float] | None = None,
    early: float | None = None,
    seed: int = 0,
    seeds: int = 1,
    explain: str | int | None = None,
    failures: str | Path | Mapping[str, Any] | Columns | DataFrame | None = None,
    quotas: str | Path | Mapping[str, Any] | None = None,
    quotas_by: str | None = None,
    users: str | Path | Columns | DataFrame | None = None,
    account: str | None = None,
    begin: str | None = None,
    processes: int = 1,
) -> Replays:
    """Replay a trace of jobs under some policies, in virtual time. Arguments have the names of the options of
    `elasticctl simulate`, and mean the same.

    trace, profiles: a file, a DataFrame, or lists by column, with the columns of docs/research.md. policy: a name,
    ``"all"``, a policy file (``.yaml``, ``.py``), a document as in a policy file such as ``{"policy": "elastic",
    "parameters": {...}}``, or several of them: in a list, or in a mapping by the labels that their results get. where:
    only rows with this value, or one of these, in these columns. servers (16) and gpus_per_server (4), or cluster: a
    file, or a document such as ``{"servers": [{"gpus": 8, "count": 2}]}``. overhead: a preset, a file, a document such
    as ``{"base": "background", "default": {"pause_s": 0.2}}``, or `Costs`. errors: ``"0.5,2"`` or ``(0.5, 2)``.
    failures: a trace as for `trace`, or rates as a YAML file or a document. quotas: a policy file, or a document such
    as ``{"quotas": {"users": {"alice": {"gpus": 4}}}}``, for users or accounts (quotas_by). users: a table with the
    user of each job. account: the column of the trace that names accounts. begin: when its first job is submitted
    (``2026-11-30T08:00+01:00``), for reservations of policy files. explain: a job for `Replay.explain`.
    processes: simulated at a time; with more than one the calling program must be importable (``if __name__ ==
    "__main__"``).

    Returns the results by policy, in the order given; the same arguments give the same results, except `wall_s` and the
    times of decisions. Raises UserError for a trace, a policy or an option that cannot be simulated, with file and line
    where available.
    """
    if curves not in ("known", "measured"):
        raise UserError(f"curves: {curves!r} is not known or measured")
    seed, seeds = _whole("seed", seed, 0, MOST_SEEDS), _whole("seeds", seeds, 1, 1000)
    processes = _whole("processes", processes, 1, MOST_PROCESSES)
    if seeds > 1 and explain is not None:
        raise UserError("explain: an explanation is of one seed; leave out seeds")
    stages = files.stages(packing, placement, admission, "", files.quotas(quotas))
    named = isinstance(policy, Mapping) and "policy" in policy
    several = [policy] if isinstance(policy, str | Path) or named else policy
    schedulers = files.schedulers(several, stages, "")  # type: ignore[arg-type]
    prepared = prepare(
        _table(trace, "trace"),
        files.cluster(
            cluster,
            None if servers is None else _whole("servers", servers, 1, MOST_GPUS),
            None if gpus_per_server is None else _whole("gpus_per_server", gpus_per_server, 1, MOST_GPUS_PER_SERVER),
            "",
        ),
        where=None if where is None else {column: _values(of) for column, of in where.items()},
        profiles=None if profiles is None else _table(profiles, "profiles"),
        gpu_type=gpu_type,
        costs=files.overhead(overhead, ""),
        stages=stages,
        schedulers=schedulers,
        owners=Owners(None if users is None else _table(users, "users"), account),
        quotas_from=str(quotas) if isinstance(quotas, str | Path) else files.QUOTAS,
        quotas_by=None if quotas_by is None else owned_by(quotas_by, "quotas_by"),
        cap_at_request=cap_at_request,
        random_models=random_models,
        drop_larger=drop_larger,
        curves_known=curves == "known",
        seeds=range(seed, seed + seeds),
        explain=None if explain is None else JobId(str(explain)),
        tells=telling(told, errors if errors is None else ",".join(_values(errors)), early),
        failures=_failures(failures),
        begins_s=files.begins_s(begin, "begin"),
    )
    runs = run_seeds([one.setup for one in prepared], schedulers, processes=processes)
    found = {}
    for label in schedulers:
        each = [Replay(own_setups(setup, schedulers).get(label, setup), result[label]) for setup, result in runs]
        found[label] = replace(each[0], seeds=tuple(each)) if seeds > 1 else each[0]
    return Replays(found, prepared[0].remarks())


def _table(given: str | Path | Columns | DataFrame, source: str) -> Path | Table:
    """Return a file's path, or columns as a table. source: its name in errors."""
    if isinstance(given, str | Path):
        return Path(given)
    columns = given if isinstance(given, Mapping) else given.to_dict("list")
    texts = {str(name): [_text(one) for one in of] for name, of in columns.items()}
    lengths = {len(values) for values in texts.values()}
    if len(lengths) != 1 or 0 in lengths:
        raise UserError(f"{source}: wanted are columns of equal length, with at least one row")
    return Table(source, texts, range(1, lengths.pop() + 1))


def _text(value: object) -> str:
    """Return a value of a table as text; "": there is none. Spans of time are in seconds."""
    seconds = getattr(value, "total_seconds", None)
    found = "" if value is None else str(value if seconds is None else seconds())
    return "" if found in MISSING else found


def _values(given: object) -> list[str]:
    """Return one value, or several, as texts."""
    if isinstance(given, Iterable) and not isinstance(given, str):
        return [str(one) for one in given]
    return [str(given)]


def _failures(given: str | Path | Mapping[str, Any] | Columns | DataFrame | None) -> Rates | Table | None:
    """Return failures as `files.failures` does; a table of them, too."""
    if given is None or isinstance(given, str | Path) or (isinstance(given, Mapping) and FAIL not in given):
        return files.failures(given)
    table = _table(given, "failures")
    assert isinstance(table, Table)
    return table


def _whole(name: str, value: object, least: int, most: int) -> int:
    """Return a whole number, also of NumPy. Raises UserError, naming the argument."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = least - 1
    if not least <= number <= most:
        raise UserError(f"{name}: {value!r} is not a whole number from {least} to {most}")
    return number


def run_seeds(
    setups: Sequence[Setup],
    schedulers: Mapping[str, Scheduler],
    progress: Callable[[Mapping[tuple[str, int], int]], None] = lambda _: None,
    processes: int | None = None,
) -> list[tuple[Setup, dict[str, Result]]]:
    """Run each policy with each seed. progress: called with the number of ended jobs by label and seed."""
    own = {setup.seed: own_setups(setup, schedulers) for setup in setups}
    runs = {(label, setup.seed): own[setup.seed].get(label, setup) for setup in setups for label in schedulers}
    found = run_all(setups[0], {run: schedulers[run[0]].policy for run in runs}, progress, processes, runs)
    return [(one, {label: found[label, one.seed] for label in schedulers}) for one in setups]


def own_setups(setup: Setup, schedulers: Mapping[str, Scheduler]) -> dict[str, Setup]:
    """Return the setups of policies with other stages than those of `setup`."""
    found = {}
    for name, one in schedulers.items():
        stages = one.stages
        own = replace(
            setup,
            packing=stages.packing,
            placement=stages.placement,
            admission=stages.admission,
            quotas=stages.quotas,
            reservations=stages.reservations,
        )
        if own.stages != setup.stages:
            found[name] = own
    return found
