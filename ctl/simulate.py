"""`elasticctl simulate`: a trace of jobs under one or several policies, in virtual time."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from ..protocol.errors import UserError
from ..protocol.model import JobId
from ..protocol.texts import gpu_count, many
from . import pictures, render
from . import simulation_tables as tables
from .context import check_output, console, say

if TYPE_CHECKING:
    from ..scheduler.scheduler import Scheduler
    from ..simulator.owners import By
    from ..simulator.runs import Result, Setup

    Run = tuple[str, int]  # label and seed
    Runs = list[tuple[Setup, dict[str, Result]]]  # for each seed: the setup, and results by policy

DEFAULT_POLICY = "max-min"
CURVES = ("known", "measured")
DEFAULT_SERVERS, DEFAULT_GPUS = 16, 4  # as in `simulator.files`, which is not imported for --help
LONGEST_STORY = 100


class _Simulate(TyperCommand):
    """`simulate TRACE`, which also dispatches `simulate compare A B`."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        if args[:1] != ["compare"]:
            return super().make_context(info_name, args, parent, **extra)
        from .compare import command

        return command().make_context(f"{info_name} compare", args[1:], parent, **extra)


def add_to(app: typer.Typer) -> None:
    """Register this file's command."""
    app.command(
        cls=_Simulate,
        epilog="The trace, and the throughputs, are plain or gzip'd; docs/research.md lists the known formats. The "
        "same seed gives the same result. `elasticctl simulate compare A.json B.json` sets two results of --json side by side.",
    )(simulate)


def simulate(
    trace: Annotated[Path, typer.Argument(help="File of jobs.", show_default=False)],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Name of a policy, a policy file (.yaml, .py), or `all`; may be repeated (default {DEFAULT_POLICY}).",
            show_default=False,
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=VALUE", help="Only these rows of the trace; may be repeated.", show_default=False),
    ] = None,
    servers: Annotated[
        int | None, typer.Option(min=1, max=65_536, help=f"Servers (default {DEFAULT_SERVERS}).", show_default=False)
    ] = None,
    gpus_per_server: Annotated[
        int | None, typer.Option(min=1, max=1024, help=f"GPUs of each (default {DEFAULT_GPUS}).", show_default=False)
    ] = None,
    cluster: Annotated[
        Path | None, typer.Option(help="File of servers, in place of --servers.", show_default=False)
    ] = None,
    profiles: Annotated[
        Path | None,
        typer.Option(
            help="File of measured throughputs; without it every job scales linearly up to its request.",
            show_default=False,
        ),
    ] = None,
    gpu_type: Annotated[
        str | None, typer.Option(help="Which type of GPU in --profiles, if it has several.", show_default=False)
    ] = None,
    packing: Annotated[
        bool,
        typer.Option("--packing/--no-packing", help="Only shares that keep jobs off each other's network (AFS 4.4)."),
    ] = False,
    placement: Annotated[
        str | None,
        typer.Option(help="How jobs get their GPUs: fewest-servers (default) or buddy.", show_default=False),
    ] = None,
    admission: Annotated[
        str | None, typer.Option(help="Which jobs are taken in: all (default) or bounded.", show_default=False)
    ] = None,
    cap_at_request: Annotated[
        bool, typer.Option("--cap-at-request", help="No job gets more GPUs than it requested.")
    ] = False,
    curves: Annotated[
        str,
        typer.Option(help="What policies see of throughputs: known, or only what has been measured so far (measured)."),
    ] = "known",
    random_models: Annotated[
        bool,
        typer.Option("--random-models", help="Every job gets a model at random, also where the trace names one."),
    ] = False,
    told: Annotated[
        float | None,
        typer.Option(help="Which part of the jobs tell how long they take (default: all).", show_default=False),
    ] = None,
    errors: Annotated[
        str | None,
        typer.Option(metavar="LOW,HIGH", help="They tell so many times what they take: 0.5,2.", show_default=False),
    ] = None,
    early: Annotated[
        float | None,
        typer.Option(help="Which part of those who tell end early: up to 100 times too long.", show_default=False),
    ] = None,
    overhead: Annotated[
        str, typer.Option(help="What changing a job's GPUs costs: none, background, stop-resume, or a file.")
    ] = "none",
    seed: Annotated[int, typer.Option(min=0, help="For all that is random.")] = 0,
    seeds: Annotated[
        int, typer.Option(min=1, max=1000, help="Repeat with so many seeds, from --seed on: means with 95 % intervals.")
    ] = 1,
    drop_larger: Annotated[
        bool, typer.Option("--drop-larger", help="Leave out jobs that request more GPUs than there are.")
    ] = False,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Policies simulated at a time (default: processors).", show_default=False)
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Order the policies by this column, the best first.", show_default=False),
    ] = None,
    jobs: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A row for each job: a .csv or .parquet file.", show_default=False),
    ] = None,
    timeline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A row for each event: a .csv or .parquet file.", show_default=False),
    ] = None,
    as_json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="The results as JSON; - is stdout.", show_default=False)
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help=f"Draw the results: a file ending in {', '.join(pictures.SUFFIXES)}.", show_default=False),
    ] = None,
    failures: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Failures of servers and GPUs: a trace (.csv), or rates (.yaml).", show_default=False
        ),
    ] = None,
    quotas: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Apply the quotas of a policy file (docs/quotas.md).", show_default=False),
    ] = None,
    quotas_by: Annotated[
        str | None,
        typer.Option(
            metavar="user|account",
            help="To whom quotas apply: each user (default where the trace has users) or each account.",
            show_default=False,
        ),
    ] = None,
    users: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Table with the user of each job, such as PAI's pai_job_table.csv.", show_default=False
        ),
    ] = None,
    account: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column of the trace that names accounts.", show_default=False),
    ] = None,
    begin: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="When the first job is submitted, for reservations of policy files: 2026-11-30T08:00+01:00.",
            show_default=False,
        ),
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="user|account", help="Show results by user or account, too; may be repeated.", show_default=False
        ),
    ] = None,
    explain: Annotated[
        str | None, typer.Option(metavar="JOB", help="Tell what each policy decided about a job.", show_default=False)
    ] = None,
) -> None:
    """Replay a trace of jobs under one or several policies."""
    _check_outputs(as_json, plot, jobs, timeline)
    sorted_by = tables.column(sort) if sort is not None else None
    if seeds > 1 and (plot is not None or explain is not None):
        raise UserError("--seeds: a picture and an explanation are of one seed; leave out --plot and --explain")
    from ..simulator import files, owners

    grouped = [owners.by(one, "--by") for one in dict.fromkeys(by or [])]
    quotas_for = None if quotas_by is None else owners.by(quotas_by, "--quotas-by")
    stages = files.stages(packing, placement, admission, "--", files.quotas(quotas))
    schedulers = files.schedulers(policy or [DEFAULT_POLICY], stages, "--")
    conditions = files.conditions(where or [])
    view = files.cluster(cluster, servers, gpus_per_server, "--")
    costs = files.overhead(overhead, "--")
    if gpu_type is not None and profiles is None:
        raise UserError("--gpu-type: says which rows of --profiles FILE to take, and there is no --profiles")
    if curves not in CURVES:
        raise UserError(f"--curves: {curves!r} is not one of {', '.join(CURVES)}")

    from ..simulator.replay import prepare
    from ..simulator.telling import telling

    tells = telling(told, errors, early)
    prepared = prepare(
        trace,
        view,
        where=conditions,
        profiles=profiles,
        gpu_type=gpu_type,
        costs=costs,
        stages=stages,
        schedulers=schedulers,
        owners=owners.Owners(users, account),
        quotas_from=str(quotas),
        quotas_by=quotas_for,
        cap_at_request=cap_at_request,
        random_models=random_models,
        drop_larger=drop_larger,
        curves_known=curves == "known",
        seeds=range(seed, seed + seeds),
        explain=None if explain is None else JobId(explain),
        tells=tells,
        failures=files.failures(failures),
        begins_s=files.begins_s(begin, "--begin"),
    )
    if profiles is None:
        say(
            "elasticctl: no --profiles: every job scales linearly up to its request and not beyond it, so that no policy can "
            "show what elastic shares are worth"
        )
    for remark in prepared[0].remarks():
        say(f"elasticctl: {remark}")
    setups = [one.setup for one in prepared]
    for one in grouped:
        prepared[0].trace.check_owners(one, f"--by {one.value}")
    from ..scheduler.priorities import ignored

    priority = setups[0].assigned.workload.priority
    greatest = 0 if priority is None else int(abs(priority).max(initial=0))
    for scheduler in schedulers.values():
        if note := ignored(scheduler.policy, greatest):
            say(f"elasticctl: {note}")
    found = _run_all(setups, schedulers, processes)
    inputs = {
        "profiles": str(profiles) if profiles else None,
        "where": conditions,
        "cap_at_request": cap_at_request,
        "dropped_larger": prepared[0].dropped_larger,
        "left_out": dict(prepared[0].trace.left_out),
        "curves": curves,
        "random_models": random_models,
        "failures": str(failures) if failures else None,
        "tells": asdict(tells) if tells is not None else None,
        "users": str(users) if users else None,
        "account": account,
        "begin": begin,
    }
    document = _document(trace, schedulers, inputs, found, sorted_by, grouped)
    if seeds > 1 and not tables.differ(document):
        say("elasticctl: --seeds: every seed gave the same result: nothing in this simulation is random")
    if as_json != "-":
        for table in tables.tables(document):
            console().print(table)
        for name, one in document["by"].items():
            _print_groups(name, one)
    if explain is not None:
        _tell_stories(setups[0], found[0][1], sys.stderr if as_json == "-" else sys.stdout)
    if as_json is not None:
        _write_json(as_json, document)
    _write_rows(jobs, timeline, found)
    if plot is not None:
        gpus, count = setups[0].gpus, len(setups[0].assigned.workload)
        _draw(plot, found[0][1], f"{trace.name}: {many(count, 'job')} on {gpu_count(gpus)}", gpus)
    idle = [label for label in schedulers if all(one[label].never_started for _, one in found)]
    for label in idle:
        say(f"elasticctl: {label}: no job got a GPU")
    if idle:
        raise typer.Exit(1)


# -- options


def _check_outputs(as_json: str | None, plot: Path | None, jobs: Path | None, timeline: Path | None) -> None:
    """Check the output files before hours of simulation, not after."""
    written = {"--json": None if as_json in (None, "-") else Path(str(as_json))}
    rows = {"--jobs": jobs, "--timeline": timeline}
    for option, path in {**written, **rows}.items():
        if path is not None:
            check_output(option, path)
    for option, path in rows.items():
        if path is not None:
            from ..simulator.results import check_file

            try:
                check_file(path)
            except UserError as error:
                raise UserError(f"{option}: {error}") from None
    if plot is not None:
        pictures.check(plot)


# -- results


def _run_all(setups: Sequence[Setup], schedulers: Mapping[str, Scheduler], processes: int | None) -> Runs:
    """Run each policy with each seed."""
    from ..simulator.replay import run_seeds

    jobs = len(setups) * len(setups[0].assigned.workload)
    with _progress({(label, setup.seed): label for setup in setups for label in schedulers}, jobs) as tell:
        return run_seeds(setups, schedulers, tell, processes)


@contextmanager
def _progress(labels: Mapping[Run, str], jobs: int) -> Iterator[Callable[[Mapping[Run, int]], None]]:
    """Yield a function that takes the number of finished jobs of each run; it draws a bar for each policy if stderr is
    a terminal. `labels`: of the runs; `jobs`: of all runs of a policy.
    """
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks = {label: bars.add_task(label, total=jobs) for label in dict.fromkeys(labels.values())}

        def tell(done: Mapping[Run, int]) -> None:
            ended = dict.fromkeys(tasks, 0)
            for run, over in done.items():
                ended[labels[run]] += over
            for label, over in ended.items():
                bars.update(tasks[label], completed=over)

        yield tell


def _document(
    trace: Path,
    schedulers: Mapping[str, Scheduler],
    inputs: Mapping[str, Any],
    found: Runs,
    sorted_by: tables.Column | None,
    grouped: Sequence[By],
) -> dict[str, Any]:
    from ..simulator.replay import own_setups
    from ..simulator.results import over_seeds

    setup = found[0][0]
    own = own_setups(setup, schedulers)
    by_seed = {label: [render.plain(results[label].metrics) for _, results in found] for label in schedulers}
    summed = {label: over_seeds(each) if len(found) > 1 else (each[0], None) for label, each in by_seed.items()}
    order = list(schedulers)
    if sorted_by is not None:
        order.sort(key=lambda label: sorted_by.rank(summed[label][0]))
    repeated: dict[str, Any] = {}
    if len(found) > 1:
        repeated = {
            "seeds": [one.seed for one, _ in found],
            "interval_95": {label: summed[label][1] for label in order},
            "by_seed": {label: by_seed[label] for label in order},
        }
    return {
        "trace": str(trace),
        "jobs": len(setup.assigned.workload),
        "gpus": setup.gpus,
        "servers": len(setup.cluster),
        **inputs,
        **_stage_names(setup),
        "own_stages": {label: _stage_names(one) for label, one in own.items()},
        "overhead": setup.costs.name,
        "seed": setup.seed,
        "policies": {label: summed[label][0] for label in order},
        **repeated,
        "by": {by.value: {label: _groups(found, label, by) for label in order} for by in grouped},
    }


def _groups(found: Runs, label: str, by: By) -> dict[str, Any]:
    """Return a policy's results by user or account; with several seeds their means with the intervals."""
    from ..simulator import groups
    from ..simulator.results import over_seeds

    each = [groups.measure(setup, results[label], by) for setup, results in found]
    jain, _ = over_seeds([{"jain_index": groups.jain_index(one)} for one in each])
    summed = {name: over_seeds([render.plain(one[name]) for one in each]) for name in each[0]}
    halves = {"interval_95": {name: half for name, (_, half) in summed.items()}} if len(found) > 1 else {}
    return {**jain, "groups": {name: means for name, (means, _) in summed.items()}, **halves}


def _print_groups(by: str, found: Mapping[str, Any]) -> None:
    for table in tables.groups_tables(by, found):
        console().print(table)
    index = ", ".join(
        f"{label} {tables.JAIN.show(one['jain_index'])}" for label, one in found.items() if one["jain_index"]
    )
    print(f"Jain's index over {by}s: {index or '-'}")
    if (left_out := max(len(one["groups"]) for one in found.values()) - tables.MOST_GROUPS) > 0:
        say(f"elasticctl: --by {by}: {left_out} more {by}s with fewer GPU-hours: --json FILE has all")


def _stage_names(setup: Setup) -> dict[str, Any]:
    quotas = {"quotas": render.plain(setup.quotas), "quotas_by": setup.quotas_by.value} if setup.quotas.any else {}
    reserved = {"reservations": render.plain(setup.reservations)} if setup.reserved() else {}
    names = {"packing": setup.packing, "placement": setup.placement.name, "admission": setup.admission.name}
    return {**names, **quotas, **reserved}


def _tell_stories(setup: Setup, results: Mapping[str, Result], file: Any) -> None:
    """Print each policy's decisions about the job to explain."""
    row = setup.explained_row()
    assert row is not None
    load = setup.assigned.workload
    submitted_s = float(load.submit_s[row])
    requested = gpu_count(int(load.requested_gpus[row]))
    request = f"{requested} requested, from {load.min_gpus[row]} to {load.max_gpus[row]} allowed"
    print(
        f"\n{load.names[row]}: {load.models[load.curve[row]]}, {request}, {render.span(float(load.work_s[row]))} on one",
        file=file,
    )
    for label, result in results.items():
        print(f"  under {label}, since its submission:", file=file)
        for moment in result.story[:LONGEST_STORY]:
            why = f": {render.printable(moment.why)}" if moment.why else ""
            gets = f"has {gpu_count(moment.gpus)}" if moment.gpus else "waits"
            packed = f" ({_packing(moment.wanted_gpus, moment.gpus)})" if moment.gpus != moment.wanted_gpus else ""
            print(f"    {render.span(moment.time_s - submitted_s):>8}  {gets}{packed}{why}", file=file)
        if len(result.story) > LONGEST_STORY:
            print(f"              and {len(result.story) - LONGEST_STORY} changes more", file=file)
        ended = float(result.end_s[row])
        if result.refused[row]:
            print("              refused by the admission, or by a quota", file=file)
            continue
        print(
            f"    {render.span(ended - submitted_s):>8}  over" if ended == ended else "              never ended",
            file=file,
        )


def _packing(wanted: int, gpus: int) -> str:
    return f"{gpu_count(wanted)} from the policy, {'raised' if gpus > wanted else 'lowered'} by packing"


def _write_json(name: str, document: dict[str, Any]) -> None:
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    if name == "-":
        print(text, end="")
        return
    with _complete(Path(name)) as part:
        part.write_text(text, encoding="utf-8")


def _write_rows(jobs: Path | None, timeline: Path | None, found: Runs) -> None:
    """Write a row for each job, and for each event, under each policy and with each seed."""
    from ..simulator import results

    each = [(setup, label, result) for setup, one in found for label, result in one.items()]
    if jobs is not None:
        with _complete(jobs) as part:
            rows = ((_whose(setup, label), results.job_rows(setup, result)) for setup, label, result in each)
            results.write(part, rows)
    if timeline is not None:
        with _complete(timeline) as part:
            results.write(
                part, ((_whose(setup, label), results.timeline_rows(result)) for setup, label, result in each)
            )


def _whose(setup: Setup, label: str) -> dict[str, Any]:
    return {"policy": label, "seed": setup.seed}


def _draw(path: Path, results: Mapping[str, Result], title: str, gpus: int) -> None:
    from ..simulator.plots import draw

    with _complete(path) as part:
        draw(part, results, title, gpus)


@contextmanager
def _complete(path: Path) -> Iterator[Path]:
    """Yield a file beside `path` that replaces it when complete, so that no reader ever sees half of it."""
    if path.exists() and not path.is_file():  # a device or a pipe
        yield path
        return
    with tempfile.TemporaryDirectory(prefix=".elasticctl-", dir=path.absolute().parent) as directory:
        part = Path(directory) / path.name
        yield part
        os.replace(part, path)
