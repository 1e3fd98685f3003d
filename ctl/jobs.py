"""Commands about jobs: submit, status, history, scale, profile, cancel, wait."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ..protocol.errors import RequestRefused, UserError
from ..protocol.messages import (
    Cancel,
    Cancelled,
    GetEnded,
    GetJob,
    GetJobs,
    JobFound,
    Jobs,
    JobView,
    Profile,
    Profiling,
    Scale,
    Scaled,
    Submit,
    Submitted,
)
from ..protocol.model import JobPhase, Resize, job_number
from ..protocol.texts import gpu_count
from . import render
from .context import DECIDED_WITHIN_S, JSON, Context, console, of, print_json, say
from .waiting import Waiting, limit_s

if TYPE_CHECKING:
    from rich.console import RenderableType

WATCH_S = 0.5
MEASURED_WITHIN_S = 10.0
RESIZED_WITHIN = "15m"  # longer than a worker may take to its `elastic.join()`
PROFILED_WITHIN = "1h"
MOST_ENDED = 1000  # that are over, of those that `status --all` shows


def add_to(app: typer.Typer) -> None:
    """Register this file's commands."""
    app.command(
        context_settings={"allow_extra_args": True, "ignore_unknown_options": False},
        epilog="Give a job file, or a command after --. Of your environment PATH, VIRTUAL_ENV, CONDA_PREFIX, PYTHONPATH, "
        "LD_LIBRARY_PATH, HOME, LANG and USER travel with the job, nothing else: use --env or the file.",
    )(submit)
    for command in (status, history, scale, profile, cancel, wait):
        app.command()(command)


def submit(
    context: typer.Context,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="JOB.yaml | -- COMMAND...", help="A job file, or after -- the command itself.", show_default=False
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the job.", show_default=False)] = None,
    gpus: Annotated[str | None, typer.Option(help="GPUs: 4, or a range 1:8.", show_default=False)] = None,
    virtual_workers: Annotated[
        int | None, typer.Option(help="What the result depends on; default: the most GPUs.", show_default=False)
    ] = None,
    max_steps: Annotated[int | None, typer.Option(help="End after so many steps.", show_default=False)] = None,
    priority: Annotated[str | None, typer.Option(help="low, normal, high, or a number.", show_default=False)] = None,
    env: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE for the job; may be repeated.", show_default=False)
    ] = None,
    checkpoint_every: Annotated[
        str | None, typer.Option(help="Such as 30s or 10m (the default).", show_default=False)
    ] = None,
    determinism: Annotated[
        str | None, typer.Option(help="none, static, elastic (the default) or heterogeneous.", show_default=False)
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Check, show the job as it would be, end. Does not ask when it would start yet."
        ),
    ] = False,
    wait_for_end: Annotated[bool, typer.Option("--wait", help="Wait for the end; exit with the job's code.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Show the logs until the end; exit with the job's code.")
    ] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Submit a job and print its id."""
    import os

    from .jobfile import Overrides, build

    file, command = _file_or_command(arguments or [])
    overrides = Overrides(
        name=name,
        gpus=gpus,
        virtual_workers=virtual_workers,
        max_steps=max_steps,
        priority=priority,
        env=tuple(env or ()),
        checkpoint_every=checkpoint_every,
        determinism=determinism,
        command=command,
    )
    spec = build(file, overrides, Path.cwd(), os.environ)
    if dry_run:
        _show_spec(render.plain(spec), as_json)
        return
    shared = of(context)
    job = shared.ask(Submit(spec=spec), Submitted).job
    if as_json:
        print_json({"job": job})
    else:
        print(job, flush=True)
    if follow:
        from .logs import follow_job

        follow_job(shared, job)
    if follow or wait_for_end:
        raise typer.Exit(_exit_code(_until_final(shared, job)))


def _file_or_command(arguments: list[str]) -> tuple[Path | None, tuple[str, ...]]:
    """Told apart by the first word: a job file ends in .yaml or .yml."""
    if not arguments:
        raise UserError("submit: give a job file, or a command after --")
    if arguments[0].endswith((".yaml", ".yml")):
        if len(arguments) > 1 and "--" not in sys.argv:
            raise UserError(f"submit: one job file at a time; {arguments[1]!r} is too many")
        return Path(arguments[0]), tuple(arguments[1:])
    if "--" not in sys.argv and len(arguments) == 1:
        raise UserError(f"submit: {arguments[0]!r} is not a job file (.yaml); put a command after --")
    return None, tuple(arguments)


def _show_spec(spec: dict[str, object], as_json: bool) -> None:
    if as_json:
        print_json(spec)
        return
    import yaml

    print(yaml.safe_dump(spec, sort_keys=False), end="")


def status(
    context: typer.Context,
    job: Annotated[str | None, typer.Argument(help="One job in full.", show_default=False)] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep showing until Ctrl-C.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help=f"Also the last {MOST_ENDED} finished, failed and cancelled jobs.")
    ] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show the jobs, or one job in full."""
    shared = of(context)
    if watch and as_json:
        raise UserError("--watch and --json exclude each other: call `status --json` again and again")
    if watch:
        _watch(lambda: _snapshot(shared, job, everything))
    elif job is not None:
        if as_json:
            print_json(render.plain(shared.job(job)))
        else:
            console().print(_snapshot(shared, job, everything)[1])
    else:
        jobs = _jobs(shared, everything)
        if as_json:
            print_json({"jobs": render.plain(jobs.jobs), "time_s": jobs.time_s, "policy": jobs.policy})
        else:
            console().print(_table(jobs, everything))
        if jobs.next:
            say(f"elasticctl: more jobs are over than the {MOST_ENDED} shown: `elasticctl history` pages through them")


def _jobs(shared: Context, everything: bool) -> Jobs:
    """The jobs that are not over, and those that ended last, in the order of submission."""
    live = shared.client.jobs(GetJobs())
    if not everything:
        return live
    ended = shared.client.jobs(GetEnded(), MOST_ENDED)
    jobs = {view.job: view for view in (*live.jobs, *ended.jobs)}  # one that has ended meanwhile is in both
    shown = sorted(jobs.values(), key=lambda view: job_number(view.job))
    return msgspec.structs.replace(ended, jobs=tuple(shown))


def history(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many jobs.")] = 50,
    before: Annotated[
        str | None, typer.Option(metavar="JOB", help="Only jobs that ended before this one.", show_default=False)
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show the jobs that are over, the last one first: by the day on which they ended, then by submission."""
    shared = of(context)
    answer = shared.client.jobs(GetEnded(before_job=before or ""), limit)
    if as_json:
        more = answer.jobs[-1].job if answer.next else None
        print_json({"jobs": render.plain(answer.jobs), "time_s": answer.time_s, "more_before": more})
        return
    if not answer.jobs:
        print("no jobs that are over" if before is None else f"no jobs that ended before {before}")
        return
    console().print(render.job_table(answer.jobs, answer.time_s))
    if answer.next:
        say(f"elasticctl: more: elasticctl history --before {answer.jobs[-1].job}")


def _snapshot(shared: Context, job: str | None, everything: bool) -> tuple[object, RenderableType]:
    """What is so (the same as long as only time passes), and how it looks."""
    from rich.text import Text

    if job is not None:
        answer = shared.ask(GetJob(job=job), JobFound)
        return answer.job, Text("\n".join(render.job_lines(answer.job, answer.time_s)))
    jobs = _jobs(shared, everything)
    return jobs.jobs, _table(jobs, everything)


def _table(jobs: Jobs, everything: bool) -> RenderableType:
    from rich.text import Text

    if not jobs.jobs:
        return Text("no jobs" if everything else "no unfinished jobs (status --all shows all)")
    return render.job_table(jobs.jobs, jobs.time_s)


def _watch(snapshot: Callable[[], tuple[object, RenderableType]]) -> None:
    """Show until Ctrl-C: in place on a terminal, elsewhere a new text when something has changed."""
    if sys.stdout.isatty():
        from rich.live import Live

        with Live(console=console(), auto_refresh=False) as live:
            while True:
                live.update(snapshot()[1], refresh=True)
                time.sleep(WATCH_S)
    shown: object = None
    while True:
        facts, text = snapshot()
        if facts != shown:
            console().print(text)
            sys.stdout.flush()
            shown = facts
        time.sleep(WATCH_S)


def scale(
    context: typer.Context,
    job: Annotated[str, typer.Argument(help="Which job.", show_default=False)],
    share: Annotated[
        str, typer.Argument(help="How many GPUs; `auto` gives the job back to the policy.", show_default=False)
    ],
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return as soon as the order is given.")] = False,
    timeout: Annotated[
        str, typer.Option(help="Wait no longer than this; the order stands all the same.")
    ] = RESIZED_WITHIN,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Set a job's share by hand, wait until it trains, and say how long training paused."""
    shared = of(context)
    wanted, within_s = _share(share), limit_s(timeout)
    before = shared.job(job)
    if wanted is not None and (before.share_gpus, before.manual_share) == (wanted, wanted):
        document = {"job": before.job, "share_gpus": wanted, "generation": before.generation, "changed": False}
        _answer(as_json, document, f"{before.job} has {gpu_count(wanted)} already")
        return
    order = shared.ask(Scale(job=before.job, share=wanted), Scaled, DECIDED_WITHIN_S)
    if wanted is not None and order.share < wanted:
        say(f"elasticctl: {order.job}: {order.share} of {gpu_count(wanted)} can be had now")
    document = {"job": order.job, "share_gpus": order.share, "generation": order.generation}
    by = "by its policy" if wanted is None else "by hand"
    if no_wait or not order.share:
        _answer(as_json, document, f"{order.job}: set {by}, ordered {gpu_count(order.share)}")
    elif order.generation <= before.generation and before.share_gpus == order.share:
        _answer(
            as_json,
            {**document, "changed": False},
            f"{order.job} has {gpu_count(order.share)} already, now set {by}",
        )
    else:
        _report(as_json, _until_resized(shared, order, wanted, before.share_gpus > 0, within_s), order)


def _report(as_json: bool, view: JobView, order: Scaled) -> None:
    """What came of an order, and what it cost."""
    document = {"job": view.job, "share_gpus": view.share_gpus, "generation": view.generation}
    resize = _measured(view, order)
    if resize is None:
        _answer(as_json, document, f"{view.job} has {gpu_count(view.share_gpus)}")
    else:
        document |= {"paused_s": resize.paused_s, **render.plain(resize)}
        _answer(as_json, document, render.describe_resize(view.job, resize))


def _measured(view: JobView, order: Scaled) -> Resize | None:
    """The switch that brought the present share, if its leader has reported it. A step between (a union) is not the end."""
    return next(
        (r for r in reversed(view.resizes) if r.generation >= order.generation and r.workers_after == view.share_gpus),
        None,
    )


def _share(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"scale: {text!r} is neither a number of GPUs (at least 1) nor auto")
    return int(text)


def _until_resized(
    shared: Context, order: Scaled, wanted: int | None, trained: bool, within_s: float | None
) -> JobView:
    """Poll until the order, or a later one, is in use and, where the job `trained` before, has been measured.

    Raises RequestRefused if the job ends, somebody sets another share meanwhile, or it takes longer than `within_s`.
    """
    waiting = Waiting(f"{order.job} to train on {gpu_count(order.share)}", within_s)
    if sys.stderr.isatty():
        say(f"{order.job}: ordered {gpu_count(order.share)}; it trains on while new workers prepare")
    committed_at: float | None = None
    while True:
        view = shared.job(order.job)
        if view.phase.final:
            raise RequestRefused(f"{render.outcome(view)}, before it was resized")
        if view.manual_share != wanted:
            now = "given back to the policy" if view.manual_share is None else f"set to {view.manual_share} GPUs"
            raise RequestRefused(f"{view.job} was {now} meanwhile")
        if view.generation >= order.generation and view.share_gpus == view.wanted_gpus:
            committed_at = committed_at or time.monotonic()
            waited_s = time.monotonic() - committed_at
            if _measured(view, order) or not trained or waited_s > MEASURED_WITHIN_S:
                return view
        waiting.pause(view.reason)


def profile(
    context: typer.Context,
    job: Annotated[str, typer.Argument(help="Which job; it must be running.", show_default=False)],
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return as soon as it has begun.")] = False,
    timeout: Annotated[
        str, typer.Option(help="Wait no longer than this; the measuring goes on all the same.")
    ] = PROFILED_WITHIN,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Measure a running job with fewer and fewer of its GPUs, give them back, and show its throughput by share.

    It trains on meanwhile, and keeps its GPUs: nobody else gets those that it leaves idle.
    """
    shared = of(context)
    within_s = limit_s(timeout)
    order = shared.ask(Profile(job=job), Profiling, DECIDED_WITHIN_S)
    shares = ", ".join(map(str, order.shares))
    if no_wait:
        _answer(as_json, {"job": order.job, "shares": list(order.shares)}, f"{order.job}: measuring with {shares} GPUs")
        return
    if sys.stderr.isatty():
        say(f"{order.job}: measuring with {shares} GPUs")
    waiting = Waiting(f"{order.job} to be measured", within_s)
    while (view := shared.job(order.job)).measuring_gpus is not None:
        waiting.pause(view.reason)
    lines = "\n".join(render.point_line(point) for point in view.curve)
    _answer(as_json, {"job": view.job, "curve": render.plain(view.curve)}, lines)


def cancel(
    context: typer.Context,
    jobs: Annotated[list[str], typer.Argument(help="Which jobs.", show_default=False)],
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """End jobs."""
    shared = of(context)
    cancelled = [shared.ask(Cancel(job=job), Cancelled).job for job in jobs]
    _answer(as_json, {"cancelled": cancelled}, "\n".join(f"{job} cancelled" for job in cancelled))


def wait(
    context: typer.Context,
    jobs: Annotated[list[str], typer.Argument(help="Which jobs.", show_default=False)],
    timeout: Annotated[
        str | None, typer.Option(help="Wait no longer than this (10m, 2h) for each.", show_default=False)
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Wait for the end of jobs; exit with the first code that is not 0."""
    shared, within_s = of(context), limit_s(timeout)
    names = [shared.job(job).job for job in jobs]  # unknown ones are noticed before any waiting
    views = [_until_final(shared, name, within_s) for name in names]
    if as_json:
        print_json({"jobs": render.plain(views)})
    else:
        for view in views:
            print(render.outcome(view))
    raise typer.Exit(next((code for view in views if (code := _exit_code(view))), 0))


def _until_final(shared: Context, job: str, within_s: float | None = None) -> JobView:
    """Poll until `job` is over. Raises RequestRefused if that takes longer than `within_s`."""
    waiting = Waiting(f"the end of {job}", within_s)
    while not (view := shared.job(job)).phase.final:
        waiting.pause(view.reason)
    return view


def _exit_code(view: JobView) -> int:
    """The job's own code; killed by a signal or cancelled: 1."""
    if view.phase is JobPhase.FINISHED:
        return 0
    return view.exit_code if view.exit_code is not None and 0 < view.exit_code < 256 else 1


def _answer(as_json: bool, document: dict[str, object], text: str) -> None:
    if as_json:
        print_json(document)
    else:
        print(text)
