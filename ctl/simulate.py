"""`elasticctl simulate`: a trace of jobs under one or several policies, in virtual time."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..protocol.errors import UserError
from ..protocol.model import JobId
from ..protocol.texts import gpu_count
from . import render
from .context import console, say

if TYPE_CHECKING:
    from rich.table import Table

    from ..scheduler.scheduler import Scheduler, Stages
    from ..simulator.clusters import Cluster
    from ..simulator.costs import Costs
    from ..simulator.runs import Result, Setup

DEFAULT_POLICY = "max-min"
CURVES = ("known", "measured")
DEFAULT_SERVERS, DEFAULT_GPUS = 16, 4  # the cluster of AFS 5.1
PICTURES = (".png", ".pdf", ".svg")
LONGEST_STORY = 100


def add_to(app: typer.Typer) -> None:
    """Register this file's command."""
    app.command(
        epilog="The trace, and the throughputs, are CSV, plain or gzip'd; docs/users.md says which columns are known. The same "
        "seed gives the same result."
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
    overhead: Annotated[
        str, typer.Option(help="What changing a job's GPUs costs: none, background, stop-resume, or a file.")
    ] = "none",
    seed: Annotated[int, typer.Option(min=0, help="For all that is random.")] = 0,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Policies simulated at a time (default: processors).", show_default=False)
    ] = None,
    as_json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="The results as JSON; - is stdout.", show_default=False)
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help=f"Draw the results: a file ending in {', '.join(PICTURES)}.", show_default=False)
    ] = None,
    explain: Annotated[
        str | None, typer.Option(metavar="JOB", help="Tell what each policy decided about a job.", show_default=False)
    ] = None,
) -> None:
    """Replay a trace of jobs under one or several policies."""
    _check_outputs(as_json, plot)
    stages = _stages(packing, placement, admission)
    schedulers = _schedulers(policy or [DEFAULT_POLICY], stages)
    chosen = {label: scheduler.policy for label, scheduler in schedulers.items()}
    conditions = _conditions(where or [])
    view = _cluster(cluster, servers, gpus_per_server)
    costs = _costs(overhead)

    from ..scheduler.profiles import curves as measured
    from ..simulator import assign, traces
    from ..simulator.runs import Setup, run_all

    if gpu_type is not None and profiles is None:
        raise UserError("--gpu-type: says which rows of --profiles FILE to take, and there is no --profiles")
    if curves not in CURVES:
        raise UserError(f"--curves: {curves!r} is not one of {', '.join(CURVES)}")
    tables = measured.load(profiles, gpu_type) if profiles is not None else None
    gpus = sum(len(server.gpus) for server in view)
    known = curves == "known"
    assigned = assign.assign(
        traces.load(trace, conditions), gpus, tables, seed, cap_at_request, random_models, peaks_known=known
    )
    job = None if explain is None else JobId(explain)
    setup = Setup(
        assigned, view, costs, seed, stages.packing, job, stages.placement, stages.admission, curves_known=known
    )
    own = {label: _with(setup, one.stages) for label, one in schedulers.items() if one.stages != stages}
    if tables is None:
        say("elasticctl: no --profiles: every job scales linearly up to its request")
    with _progress(chosen, len(assigned.workload)) as tell:
        results = run_all(setup, chosen, tell, processes, own)
    inputs = {
        "profiles": str(profiles) if profiles else None,
        "where": conditions,
        "cap_at_request": cap_at_request,
        "curves": curves,
        "random_models": random_models,
    }
    document = _document(trace, setup, own, inputs, results)
    if as_json != "-":
        console().print(_table(results))
    if explain is not None:
        _tell_stories(setup, results, sys.stderr if as_json == "-" else sys.stdout)
    if as_json is not None:
        _write_json(as_json, document)
    if plot is not None:
        _draw(plot, results, f"{trace.name}: {len(assigned.workload)} jobs on {gpus} GPUs", gpus)


# -- what is asked for


def _stages(packing: bool, placement: str | None, admission: str | None) -> Stages:
    """What stands around every policy whose file does not say otherwise."""
    from ..scheduler.options import WrongOption
    from ..scheduler.scheduler import load_stages

    try:
        return load_stages("simulate", admission, "network" if packing else None, placement)
    except WrongOption as error:
        raise UserError(f"--{error.field}: {error.text}") from None


def _schedulers(names: Sequence[str], stages: Stages) -> dict[str, Scheduler]:
    """The policies by label: the name, or for a file its name without the ending."""
    from ..scheduler.options import WrongOption
    from ..scheduler.policies import NAMES
    from ..scheduler.scheduler import load_scheduler
    from .policy import is_file, load

    found: dict[str, Scheduler] = {}
    for name in [name for given in names for name in (NAMES if given == "all" else [given])]:
        if is_file(name):
            label, loaded = Path(name).stem, load(Path(name), stages)
        else:
            try:
                label, loaded = name, load_scheduler({"policy": name}, "", stages)
            except WrongOption as error:
                raise UserError(f"--policy: {error.text}") from None
        if label in found:
            raise UserError(f"--policy: {label} is given twice")
        found[label] = loaded
    return found


def _with(setup: Setup, stages: Stages) -> Setup:
    """For a policy whose file names stages."""
    return replace(setup, packing=stages.packing, placement=stages.placement, admission=stages.admission)


def _conditions(texts: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in texts:
        column, equals, value = text.partition("=")
        if not equals or not column:
            raise UserError(f"--where: {text!r} is not COLUMN=VALUE")
        found.setdefault(column, []).append(value)
    return found


def _cluster(file: Path | None, servers: int | None, gpus: int | None) -> Cluster:
    if file is None:
        from ..simulator.workload import servers as alike

        return alike(servers or DEFAULT_SERVERS, gpus or DEFAULT_GPUS)
    if servers is not None or gpus is not None:
        raise UserError("--cluster says which servers there are; leave out --servers and --gpus-per-server")
    from ..runtime import config
    from ..simulator import clusters

    return clusters.build(config.load(file, clusters.ClusterFile, UserError), str(file))


def _costs(name: str) -> Costs:
    from ..simulator import costs

    if "/" not in name and not name.endswith((".yaml", ".yml")):
        return costs.preset(name, "--overhead")
    from ..runtime import config

    return costs.build(config.load(Path(name), costs.CostsFile, UserError), name)


def _check_outputs(as_json: str | None, plot: Path | None) -> None:
    """Before hours of simulation, not after."""
    for option, path in (("--json", None if as_json in (None, "-") else Path(str(as_json))), ("--plot", plot)):
        if path is None:
            continue
        if path.is_dir():
            raise UserError(f"{option}: {path} is a directory, not a file")
        if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            raise UserError(f"{option}: {path.parent} is not a directory that can be written to")
    if plot is None:
        return
    if plot.suffix not in PICTURES:
        raise UserError(f"--plot: {plot} must end in {', '.join(PICTURES)}")
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise UserError("--plot: matplotlib is not installed: pip install 'elasticctl[plots]'")


# -- what is answered


@contextmanager
def _progress(policies: Mapping[str, object], jobs: int) -> Iterator[Any]:
    """A bar for each policy on stderr where that is a terminal; yields what is told how many jobs are over."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks = {label: bars.add_task(label, total=jobs) for label in policies}

        def tell(done: Mapping[str, int]) -> None:
            for label, ended in done.items():
                bars.update(tasks[label], completed=ended)

        yield tell


def _document(
    trace: Path, setup: Setup, own: Mapping[str, Setup], inputs: Mapping[str, Any], results: Mapping[str, Result]
) -> dict[str, Any]:
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
        "policies": {label: render.plain(result.metrics) for label, result in results.items()},
    }


def _stage_names(setup: Setup) -> dict[str, Any]:
    return {"packing": setup.packing, "placement": setup.placement.name, "admission": setup.admission.name}


def _table(results: Mapping[str, Result]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("POLICY", no_wrap=True)
    deadlines = any(result.metrics.deadline_ratio is not None for result in results.values())
    names = ["DONE", "DROPPED", "AVG JCT", "P50", "P99", "QUEUEING", "MAKESPAN", *(["DEADLINES"] if deadlines else [])]
    for name in (*names, "QUEUE", "EFFICIENCY", "BLOCKING", "GPUS USED", "CHANGES", "WALL"):
        table.add_column(name, justify="right", no_wrap=True)
    for label, result in results.items():
        m = result.metrics
        times = (m.avg_jct_s, m.p50_jct_s, m.p99_jct_s, m.avg_queueing_s, m.makespan_s)
        table.add_row(
            label,
            str(m.finished),
            str(m.dropped),
            *("-" if value is None else render.span(value) for value in times),
            *([_number(m.deadline_ratio, "{:.1%}")] if deadlines else []),
            _number(m.avg_queue_length, "{:.1f}"),
            _number(m.avg_cluster_efficiency, "{:.3f}"),
            _number(m.avg_blocking_index, "{:.3g}"),
            _number(m.gpu_utilization, "{:.1%}"),
            str(m.reconfigurations),
            f"{m.wall_s:.1f}s",
        )
    return table


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _tell_stories(setup: Setup, results: Mapping[str, Result], file: Any) -> None:
    """What each policy decided about the job that is to be explained."""
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


def _draw(path: Path, results: Mapping[str, Result], title: str, gpus: int) -> None:
    from ..simulator.plots import draw

    with _complete(path) as part:
        draw(part, results, title, gpus)


@contextmanager
def _complete(path: Path) -> Iterator[Path]:
    """A file beside `path` that takes its place when it is complete, so that nobody ever reads half of it."""
    if path.exists() and not path.is_file():  # a device or a pipe
        yield path
        return
    with tempfile.TemporaryDirectory(prefix=".elasticctl-", dir=path.absolute().parent) as directory:
        part = Path(directory) / path.name
        yield part
        os.replace(part, path)
