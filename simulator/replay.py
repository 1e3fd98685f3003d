"""Simulations from Python: `simulate` replays a trace under some policies, as `elasticctl simulate` does.

from elasticd.simulator import simulate

found = simulate("trace.csv", ["fifo", "afs-l"], profiles="throughputs.csv", servers=2, gpus_per_server=4)
found["afs-l"].metrics.avg_jct_s
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..protocol.errors import UserError
from ..protocol.model import JobId
from ..protocol.texts import many
from ..scheduler.options import WrongOption
from ..scheduler.own import PolicyError
from ..scheduler.profiles import curves as measured
from ..scheduler.scheduler import Scheduler, Stages, load_scheduler, load_stages
from . import results, traces
from .assign import assign
from .clusters import Cluster
from .costs import Costs, preset
from .metrics import Metrics
from .runs import Result, Setup, run_all
from .telling import Telling
from .traces import Trace
from .typed import differs
from .workload import servers as alike


@dataclass(frozen=True)
class Prepared:
    """A workload on a cluster, and remarks on jobs of the trace that are not simulated as it says.

    `dropped_larger`: number of jobs that are left out because they were too large for the cluster.
    """

    setup: Setup
    dropped_larger: int
    trace: Trace

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
        if self.dropped_larger:
            requests = "requests" if self.dropped_larger == 1 else "request"
            jobs = many(self.dropped_larger, "job")
            said.append(f"--drop-larger: left out {jobs} that {requests} more GPUs than the cluster has")
        return said


def prepare(
    trace: Path,
    cluster: Cluster,
    *,
    where: Mapping[str, Sequence[str]] | None = None,
    profiles: Path | None = None,
    gpu_type: str | None = None,
    costs: Costs,
    stages: Stages,
    cap_at_request: bool = False,
    random_models: bool = False,
    drop_larger: bool = False,
    curves_known: bool = True,
    seeds: Sequence[int] = (0,),
    explain: JobId | None = None,
    tells: Telling | None = None,
) -> list[Prepared]:
    """Return one workload for each seed; files are read once.

    `tells`: which jobs report their lengths, in place of the trace's reports.

    Raises UserError, naming file and line, if something cannot be simulated.
    """
    tables = measured.load(profiles, gpu_type) if profiles is not None else None
    gpus = sum(len(server.gpus) for server in cluster)
    whole = traces.load(trace, where or {})
    names = dict.fromkeys(sort.name for server in cluster for sort in server.sorts)
    if not any(names):
        whole = whole.on_any_type()
    jobs = whole.up_to(gpus) if drop_larger else whole
    types = list(names) if gpu_type is None and len(names) > 1 else []
    found = []
    for seed in seeds:
        assigned = assign(jobs, gpus, tables, seed, cap_at_request, random_models, curves_known, types)
        if not curves_known and differs(assigned.workload, cluster):
            raise UserError(
                "curves: measured: not in clusters with several types of GPUs, nor for jobs that ask for GPUs"
            )
        if tells is not None:
            load = assigned.workload
            assigned = replace(assigned, workload=replace(load, told_s=tells.told_s(load.work_s, seed)))
        setup = Setup(
            assigned, cluster, costs, seed, stages.packing, explain, stages.placement, stages.admission, curves_known
        )
        found.append(Prepared(setup, len(whole) - len(jobs), jobs))
    return found


@dataclass(frozen=True)
class Replay:
    """Results of one policy on a trace.

    `metrics`: the figures of the command's table and JSON; times in seconds (`metrics.Metrics`).
    """

    setup: Setup
    result: Result

    @property
    def metrics(self) -> Metrics:
        return self.result.metrics

    def jobs(self) -> results.Rows:
        """Return lists by column, an entry for each job, as for ``pandas.DataFrame(...)``: see `results.job_rows`."""
        return results.job_rows(self.setup, self.result)

    def timeline(self) -> results.Rows:
        """Return lists by column, an entry for each event: see `results.timeline_rows`."""
        return results.timeline_rows(self.result)


def simulate(
    trace: str | Path,
    policies: Sequence[str | Mapping[str, Any]] = ("max-min",),
    *,
    servers: int = 16,
    gpus_per_server: int = 4,
    where: Mapping[str, Sequence[str]] | None = None,
    profiles: str | Path | None = None,
    gpu_type: str | None = None,
    costs: str | Costs = "none",
    packing: bool = False,
    placement: str | None = None,
    admission: str | None = None,
    cap_at_request: bool = False,
    random_models: bool = False,
    drop_larger: bool = False,
    curves: str = "known",
    tells: Telling | None = None,
    seed: int = 0,
    processes: int = 1,
) -> dict[str, Replay]:
    """Replay a trace of jobs under some policies, in virtual time.

    trace: a file of jobs, CSV, plain or gzip'd (docs/research.md has the known columns). policies: names, Python files
    with a user's own policy (docs/research.md), or documents as in a policy file, such as ``{"policy": "elastic",
    "parameters": {...}}``. where: only rows with one of these values in these columns. profiles: a file of measured
    throughputs; without it every job scales linearly up to its request. costs: the costs of changing a job's GPUs, as
    the name of a preset or `Costs`. curves: the policies' view of throughputs, "known" or "measured". tells: which jobs
    report their lengths, and with which errors; without it the trace's reports, or the truth. processes: policies
    simulated at a time; with more than one the calling program must be importable (``if __name__ == "__main__"``).

    Returns the results by policy, in the order given; the same arguments give the same results, except `wall_s` and the
    times of decisions. Raises UserError for a trace, a policy or an option that cannot be simulated, with file and line
    where available.
    """
    if curves not in ("known", "measured"):
        raise UserError(f"curves: {curves!r} is not known or measured")
    try:
        stages = load_stages("simulate", admission, "network" if packing else None, placement)
    except WrongOption as error:
        raise UserError(f"{error.field}: {error.text}") from None
    schedulers = dict(_scheduler(one, stages) for one in policies)
    if len(schedulers) < len(policies):
        raise UserError("policies: two of them have the same name")
    (prepared,) = prepare(
        Path(trace),
        alike(servers, gpus_per_server),
        where=where,
        profiles=Path(profiles) if profiles is not None else None,
        gpu_type=gpu_type,
        costs=preset(costs, "costs") if isinstance(costs, str) else costs,
        stages=stages,
        cap_at_request=cap_at_request,
        random_models=random_models,
        drop_larger=drop_larger,
        curves_known=curves == "known",
        seeds=[seed],
        tells=tells,
    )
    own = own_setups(prepared.setup, schedulers)
    found = run_all(
        prepared.setup, {name: one.policy for name, one in schedulers.items()}, processes=processes, own=own
    )
    return {name: Replay(own.get(name, prepared.setup), result) for name, result in found.items()}


def own_setups(setup: Setup, schedulers: Mapping[str, Scheduler]) -> dict[str, Setup]:
    """Return the setups of policies with other stages than those of `setup`."""
    found = {}
    for name, one in schedulers.items():
        stages = one.stages
        if (stages.packing, stages.placement, stages.admission) != (setup.packing, setup.placement, setup.admission):
            found[name] = replace(setup, packing=stages.packing, placement=stages.placement, admission=stages.admission)
    return found


def _scheduler(policy: str | Mapping[str, Any], stages: Stages) -> tuple[str, Scheduler]:
    """Return a scheduler, with the name of its result. Raises UserError if it cannot be loaded."""
    file = isinstance(policy, str) and policy.endswith(".py")
    try:
        if isinstance(policy, str) and file:
            path = Path(policy).absolute()
            return path.stem, load_scheduler({"policy": str(path)}, policy, stages, str(path.parent))
        document = {"policy": policy} if isinstance(policy, str) else dict(policy)
        return str(document.get("policy")), load_scheduler(document, "", stages)
    except WrongOption as error:
        raise UserError(f"policies: {error.text}") from None
    except PolicyError as error:
        raise UserError(f"policies: {error}") from None
