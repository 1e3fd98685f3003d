"""Commands about jobs: submit, status, scale, profile, wait."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ..protocol.errors import ClusterUnreachable, ElasticError, RequestRefused, UserError
from ..protocol.messages import (
    Forecast,
    Forecasted,
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
from ..protocol.model import JobPhase, JobSpec, Resize, job_number
from ..protocol.texts import gpu_count
from . import completion, render
from .context import (
    DECIDED_WITHIN_S,
    JSON,
    Context,
    agreed,
    console,
    fitted,
    of,
    print_json,
    print_lines,
    say,
    table_lines,
)
from .promises import deadline_line
from .waiting import Waiting, limit_s

if TYPE_CHECKING:
    from collections.abc import Iterable

WATCH_S = 0.5
MEASURED_WITHIN_S = 10.0
RESIZED_WITHIN = "5m"
PROFILED_WITHIN = "1h"
MOST_ENDED = 1000  # finished jobs in `status --all`

MINE = typer.Option("--mine", help="Only jobs that you have submitted.", show_default=False)


def add_to(app: typer.Typer) -> None:
    """Register this file's commands."""
    app.command(
        context_settings={"allow_extra_args": True, "ignore_unknown_options": False},
        epilog="Give a job file, or a command after --. Of your environment PATH, VIRTUAL_ENV, CONDA_PREFIX, PYTHONPATH, "
        "LD_LIBRARY_PATH, HOME, LANG and USER travel with the job, nothing else: use --env or the file.",
    )(submit)
    for command in (status, scale, profile, wait):
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
    gpu_type: Annotated[
        list[str] | None,
        typer.Option(help="Only GPUs of this type, such as A100; several: A100,V100.", show_default=False),
    ] = None,
    gpu_memory: Annotated[
        str | None, typer.Option(help="Only GPUs with so much memory: 40GiB.", show_default=False)
    ] = None,
    gpus_per_server: Annotated[
        int | None, typer.Option(help="Exactly so many on each of its servers.", show_default=False)
    ] = None,
    virtual_workers: Annotated[
        int | None, typer.Option(help="What the result depends on; default: the most GPUs.", show_default=False)
    ] = None,
    max_steps: Annotated[int | None, typer.Option(help="End after so many steps.", show_default=False)] = None,
    until: Annotated[
        str | None,
        typer.Option(
            help="The script ends when a figure that it reports is so much, such as 'accuracy >= 0.95': tells how long it is.",
            show_default=False,
        ),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(help="To be over in 2h, or by a date: '2027-01-31 18:00'.", show_default=False),
    ] = None,
    soft: Annotated[
        bool | None,
        typer.Option("--soft", help="With --deadline: run late rather than be refused.", show_default=False),
    ] = None,
    priority: Annotated[
        str | None,
        typer.Option(
            help="low, normal, high, or a number.",
            show_default=False,
            autocompletion=completion.words("low", "normal", "high"),
        ),
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE for the job; may be repeated.", show_default=False)
    ] = None,
    checkpoint_every: Annotated[
        str | None, typer.Option(help="Such as 30s or 10m (the default).", show_default=False)
    ] = None,
    determinism: Annotated[
        str | None,
        typer.Option(
            help="none, static, elastic (the default) or heterogeneous.",
            show_default=False,
            autocompletion=completion.words("none", "static", "elastic", "heterogeneous"),
        ),
    ] = None,
    processes: Annotated[
        str | None,
        typer.Option(
            metavar="per-gpu|per-server",
            help="How many run the command; default: per-server for torchrun and its like.",
            show_default=False,
        ),
    ] = None,
    restarts: Annotated[
        int | None,
        typer.Option(help="May the command be run again if it is killed, how often? (0)", show_default=False),
    ] = None,
    snapshot: Annotated[
        bool | None,
        typer.Option(
            "--snapshot",
            help="Run in a copy of the working directory as it is now (64 MiB, without what .gitignore names).",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="JOB|DIRECTORY",
            help="Go on from the last checkpoint of a job that is over, as it was submitted but for what else is given; or from "
            "one in a directory.",
            show_default=False,
            autocompletion=completion.ended_jobs,
        ),
    ] = None,
    with_new_code: Annotated[
        bool,
        typer.Option("--with-new-code", help="With --resume: though code or data are not those of the checkpoint."),
    ] = False,
    replay_batches: Annotated[
        str | None,
        typer.Option(
            metavar="JOB|FILE",
            help="Change the batch at the steps at which it changed in that job, or as a file says: the same bits.",
            show_default=False,
            autocompletion=completion.ended_jobs,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check, show the job as a file that can be submitted, and whether its deadline would hold; submit nothing.",
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
    from .jobgpus import GpuOptions
    from .jobscaling import replayed
    from .resubmit import GoingOn
    from .snapshots import Packed

    shared = of(context)
    goes_on = GoingOn(resume, with_new_code, shared.job)
    file, command = (None, ()) if goes_on.source is not None and not arguments else _file_or_command(arguments or [])
    overrides = Overrides(
        name=name,
        gpus=GpuOptions(gpus, tuple(gpu_type or ()), gpu_memory, gpus_per_server),
        virtual_workers=virtual_workers,
        max_steps=max_steps,
        until=until,
        deadline=deadline,
        soft=soft,
        priority=priority,
        env=tuple(env or ()),
        checkpoint_every=checkpoint_every,
        determinism=determinism,
        processes=processes,
        restarts=restarts,
        snapshot=snapshot,
        replay_batches=replayed(replay_batches, shared.job),
        command=command,
    )
    doubts: list[str] = []
    doubt = None if shared.is_this_machine() else doubts.append
    packed = Packed()
    options, where = goes_on.options(file, overrides), goes_on.where(file, _where_we_are())
    built = build(file, options, where, os.environ, doubt, packed.take)
    spec = goes_on.job(file, overrides, built, packed.take)
    doubts += packed.left_out
    from .commands import copies, ignored_lines

    if ignored := ignored_lines(spec.command, Path(spec.workdir)):
        doubts.append(ignored)
    sentence, sure = copies(spec.command, spec.gpus, Path(spec.workdir), spec.env)
    if sure and not dry_run and sys.stdin.isatty() and sys.stderr.isatty():
        agreed(f"{sentence}. Submit it so?", sentence)
    elif sentence:
        doubts.append(sentence)
    if dry_run:
        _say_all([*doubts, *goes_on.unwritten(file, spec, os.environ)])
        _forecast(shared, spec, as_json)
        return
    packed.send(shared, spec)
    answer = shared.ask(Submit(spec=spec), Submitted)
    job = answer.job
    if as_json:
        print_json({"job": job, **({"promise": render.plain(answer.promise)} if answer.promise is not None else {})})
    else:
        print(job, flush=True)
        say(f"elasticctl: {render.submitted(job, spec, joins=not sentence)}")
        if answer.promise is not None:
            say(f"elasticctl: deadline {deadline_line(answer.promise, time.time())}")
    _say_all([*answer.notes, *doubts, *unchecked(spec)])
    if follow:
        from .logs import follow_job

        follow_job(shared, job)
    if follow or wait_for_end:
        view = _until_final(shared, job)
        say("\n".join([f"elasticctl: {render.verdict(view)}", *render.failure_lines(view)]))
        raise typer.Exit(_exit_code(view))


def unchecked(spec: JobSpec) -> list[str]:
    """Return a hint at `elasticctl check` for an elastic job, if no check of this version of its script is on record."""
    if spec.gpus.min == spec.gpus.max:
        return []
    from . import commands
    from .check import record

    found = commands.look_at(spec.command)
    if not commands.joins(found, Path(spec.workdir), spec.env):
        return []
    digest = record.digest_of(commands.sources(found, Path(spec.workdir), spec.env))
    if digest is None or record.read(digest) is not None:
        return []
    script = found.script or f"-- {found.interpreter} -m {found.module}"
    return [f"`elasticctl check {script}` tries at the desk whether its result depends on how many GPUs train it"]


def _forecast(shared: Context, spec: JobSpec, as_json: bool) -> None:
    """Show the job as it would be, and the cluster's forecast. Raises RequestRefused if the cluster would refuse it.

    Without a cluster only a job with a deadline, or a checkpoint to go on from, is an error.
    """
    answer = _forecast_of(shared, spec)
    if isinstance(answer, ElasticError):
        if spec.deadline is not None or spec.resume is not None:
            raise answer
        _show_spec(spec, as_json)
        say(f"elasticctl: whether the job would be admitted is not known: {answer}")
        return
    if as_json:
        told = {"reason": answer.reason, "promise": answer.promise, "offer": answer.offer, "time_s": answer.time_s}
        filled = msgspec.structs.replace(spec, resume=answer.resume or spec.resume)
        print_json({**render.plain(filled), "forecast": render.plain(told)})
    else:
        _show_spec(spec, as_json)
        if answer.resume is not None:
            say(f"elasticctl: goes on from {render.goes_on_from(answer.resume)}")
        if answer.promise is not None:
            say(f"elasticctl: deadline {deadline_line(answer.promise, answer.time_s)}")
    if answer.reason:
        raise RequestRefused(answer.reason)


def _forecast_of(shared: Context, spec: JobSpec) -> Forecasted | ElasticError:
    """Return the forecast, or why no cluster can be asked: none is known or answers, or there is no key for it."""
    try:
        _ = shared.client
    except (ClusterUnreachable, UserError) as error:
        return error
    try:
        return shared.ask(Forecast(spec=spec), Forecasted)
    except ClusterUnreachable as error:
        return error


def _where_we_are() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UserError("submit: the directory where you are does not exist any more; change to another one") from None


def _say_all(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        say(f"elasticctl: {sentence}")


def _file_or_command(arguments: list[str]) -> tuple[Path | None, tuple[str, ...]]:
    """Return the job file or the command, distinguished by the first word: a job file ends in .yaml or .yml."""
    if not arguments:
        raise UserError("submit: give a job file, or a command after --")
    if arguments[0].endswith((".yaml", ".yml")):
        if len(arguments) > 1 and "--" not in sys.argv:
            raise UserError(f"submit: one job file at a time; {arguments[1]!r} is too many")
        return Path(arguments[0]), tuple(arguments[1:])
    if "--" not in sys.argv and len(arguments) == 1:
        raise UserError(
            f"submit: {arguments[0]!r} is not a job file (.yaml); put a command after --, such as -- python train.py"
        )
    return None, tuple(arguments)


def _show_spec(spec: JobSpec, as_json: bool) -> None:
    """Show the job: for programs as the controller receives it, for people as a job file, which can be submitted."""
    if as_json:
        print_json(render.plain(spec))
        return
    from .jobdocument import text_of

    print(text_of(spec), end="")


def status(
    context: typer.Context,
    job: Annotated[
        str | None, typer.Argument(help="One job in full.", show_default=False, autocompletion=completion.any_jobs)
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep showing until Ctrl-C.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help=f"Also the last {MOST_ENDED} finished, failed and cancelled jobs.")
    ] = False,
    mine: Annotated[bool, MINE] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show the jobs, or one job in full."""
    shared = of(context)
    if watch and as_json:
        raise UserError("--watch and --json exclude each other: call `status --json` again and again")
    if watch:
        _watch(lambda: _snapshot(shared, job, everything, mine))
    elif job is not None:
        if as_json:
            print_json(render.plain(shared.job(job)))
        else:
            _print(_snapshot(shared, job, everything, mine)[1])
    else:
        jobs = _jobs(shared, everything, mine)
        if as_json:
            told = {"jobs": jobs.jobs, "time_s": jobs.time_s, "policy": jobs.policy, "refused": jobs.refused}
            print_json({name: render.plain(value) for name, value in told.items()})
        else:
            _print(_table(jobs, everything, mine))
        if jobs.next:
            say(f"elasticctl: more jobs are over than the {MOST_ENDED} shown: `elasticctl history` pages through them")


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)


def _jobs(shared: Context, everything: bool, mine: bool) -> Jobs:
    """Return the unfinished jobs, and those that ended last, in the order of submission."""
    live = shared.client.jobs(GetJobs(mine=mine))
    if not everything:
        return live
    ended = shared.client.jobs(GetEnded(mine=mine), MOST_ENDED)
    jobs = {view.job: view for view in (*live.jobs, *ended.jobs)}  # a job that has ended meanwhile is in both
    shown = sorted(jobs.values(), key=lambda view: job_number(view.job))
    return msgspec.structs.replace(ended, jobs=tuple(shown), refused=live.refused)


def _snapshot(shared: Context, job: str | None, everything: bool, mine: bool) -> tuple[object, Iterable[str]]:
    """Return the state (equal as long as only time passes), and its display."""
    if job is not None:
        answer = shared.ask(GetJob(job=job), JobFound)
        return answer.job, fitted(render.job_lines(answer.job, answer.time_s))
    jobs = _jobs(shared, everything, mine)
    return (jobs.jobs, jobs.refused), _table(jobs, everything, mine)


def _table(jobs: Jobs, everything: bool, mine: bool) -> Iterable[str]:
    if not jobs.jobs:
        yours = " of yours" if mine else ""
        yield f"no jobs{yours}" if everything else f"no unfinished jobs{yours} (status --all shows all)"
    else:
        yield from table_lines(render.job_table(jobs.jobs, jobs.time_s))
    yield from (render.refused_job(each) for each in jobs.refused)


def _watch(snapshot: Callable[[], tuple[object, Iterable[str]]]) -> None:
    """Show snapshots until Ctrl-C: in place on a terminal, elsewhere a new text at each change."""
    if sys.stdout.isatty():
        from rich.live import Live
        from rich.text import Text

        with Live(console=console(), auto_refresh=False) as live:
            while True:
                live.update(Text.from_ansi("\n".join(snapshot()[1])), refresh=True)
                time.sleep(WATCH_S)
    shown: object = None
    while True:
        facts, lines = snapshot()
        if facts != shown:
            _print(lines)
            sys.stdout.flush()
            shown = facts
        time.sleep(WATCH_S)


def scale(
    context: typer.Context,
    job: Annotated[str, typer.Argument(help="Which job.", show_default=False, autocompletion=completion.jobs)],
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
    order = shared.ask(Scale(job=before.job, share=wanted), Scaled, DECIDED_WITHIN_S)
    nothing_new = order.generation <= before.ordered_generation and order.share != wanted
    if wanted is not None and order.share < wanted and not nothing_new:
        say(f"elasticctl: {order.job}: {order.share} of {gpu_count(wanted)} can be had now")
    if order.pushed:
        say(f"elasticctl: {order.job} pushes out others: {render.pushed(order.pushed)}")
    document = _ordered(order)
    by = "by its policy" if wanted is None else "by hand"
    if no_wait or not order.share:
        why = _why_not(shared.job(order.job), wanted, order) if not order.share else ""
        _answer(as_json, document, f"{order.job}: set {by}, ordered {gpu_count(order.share)}{why}")
    elif order.generation <= before.generation and before.share_gpus == order.share:
        now_set = "" if before.manual_share == wanted else f", now set {by}{_why_not(before, wanted, order)}"
        text = f"{order.job} has {gpu_count(order.share)} already{now_set}"
        _answer(as_json, {**document, "changed": False}, text)
    elif nothing_new:  # no resize was ordered, so there is none to wait for
        why = _why_not(shared.job(order.job), wanted, order)
        _answer(
            as_json,
            {**document, "changed": False},
            f"{order.job}: set {by}, keeps {gpu_count(order.share)} for now{why}",
        )
    else:
        _report(as_json, _until_resized(shared, order, wanted, before.share_gpus > 0, within_s), order)


def _why_not(view: JobView, wanted: int | None, order: Scaled) -> str:
    """Return why a job does not get the share that was set, to follow a sentence; empty: the job gets it."""
    if order.share == wanted or wanted is None:
        return ""
    if not view.elastic:
        return f": it cannot be resized before it calls elastic.join(), and is to have {gpu_count(wanted)} then"
    return f": {render.printable(view.reason)}" if view.reason else ""


def _ordered(order: Scaled) -> dict[str, object]:
    return {
        "job": order.job,
        "share_gpus": order.share,
        "generation": order.generation,
        "pushed": render.plain(order.pushed),
    }


def _report(as_json: bool, view: JobView, order: Scaled) -> None:
    """Show the outcome of an order, and its cost."""
    document = {**_ordered(order), "share_gpus": view.share_gpus, "generation": view.generation}
    resize = _measured(view, order)
    if resize is None:
        _answer(as_json, document, f"{view.job} has {gpu_count(view.share_gpus)}")
    else:
        document |= {"paused_s": resize.paused_s, **render.plain(resize)}
        _answer(as_json, document, render.describe_resize(view.job, resize))


def _measured(view: JobView, order: Scaled) -> Resize | None:
    """Return the switch that led to the present share, if its leader has reported it. An intermediate switch (to a
    union) does not count.
    """
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

    Raises RequestRefused if the job ends, if a user sets another share meanwhile, or if it takes longer than
    `within_s`.
    """
    after = f"; the order stands, and `elasticctl status {order.job}` shows what comes of it"
    waiting = Waiting(f"{order.job} to train on {gpu_count(order.share)}", within_s, after, always=True)
    if sys.stderr.isatty():
        say(f"{order.job}: ordered {gpu_count(order.share)}; it trains on while new workers prepare")
    committed_at: float | None = None
    while True:
        view = shared.job(order.job)
        if view.phase.final:
            raise RequestRefused(f"{render.outcome(view)}, before it was resized")
        if not view.elastic and view.phase is JobPhase.RUNNING:
            raise RequestRefused(
                f"{view.job} cannot be scaled: it {render.printable(view.reason) or 'is a fixed gang'}"
            )
        if view.manual_share != wanted:
            now = "given back to the policy" if view.manual_share is None else f"set to {gpu_count(view.manual_share)}"
            raise RequestRefused(f"{view.job} was {now} meanwhile")
        if view.generation >= order.generation and view.share_gpus == view.wanted_gpus:
            committed_at = committed_at or time.monotonic()
            waited_s = time.monotonic() - committed_at
            if _measured(view, order) or not trained or waited_s > MEASURED_WITHIN_S:
                return view
        waiting.pause(view.reason)


def profile(
    context: typer.Context,
    job: Annotated[
        str, typer.Argument(help="Which job; it must be running.", show_default=False, autocompletion=completion.jobs)
    ],
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return as soon as it has begun.")] = False,
    timeout: Annotated[
        str, typer.Option(help="Wait no longer than this; the measuring goes on all the same.")
    ] = PROFILED_WITHIN,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Measure a running job with fewer and fewer of its GPUs, give them back, and show its throughput by share.

    The job trains on meanwhile, and keeps its GPUs: no other job gets those that it leaves idle.
    """
    shared = of(context)
    within_s = limit_s(timeout)
    order = shared.ask(Profile(job=job), Profiling, DECIDED_WITHIN_S)
    shares = ", ".join([*map(str, order.shares[:-1]), *map(gpu_count, order.shares[-1:])])
    if no_wait:
        _answer(as_json, {"job": order.job, "shares": list(order.shares)}, f"{order.job}: measuring with {shares}")
        return
    if sys.stderr.isatty():
        say(f"{order.job}: measuring with {shares}")
    waiting = Waiting(f"{order.job} to be measured", within_s)
    while (view := shared.job(order.job)).measuring_gpus is not None:
        waiting.pause(view.reason)
    lines = "\n".join(render.point_line(point) for point in view.curve)
    _answer(as_json, {"job": view.job, "curve": render.plain(view.curve)}, lines)


def wait(
    context: typer.Context,
    jobs: Annotated[list[str], typer.Argument(help="Which jobs.", show_default=False, autocompletion=completion.jobs)],
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
            print_lines([render.outcome(view), *render.failure_lines(view)])
    raise typer.Exit(next((code for view in views if (code := _exit_code(view))), 0))


def _until_final(shared: Context, job: str, within_s: float | None = None) -> JobView:
    """Poll until `job` is over. Raises RequestRefused if that takes longer than `within_s`."""
    waiting = Waiting(f"the end of {job}", within_s)
    while not (view := shared.job(job)).phase.final:
        waiting.pause(view.reason)
    return view


def _exit_code(view: JobView) -> int:
    """Return the job's own exit code; 1 if the job was killed by a signal or cancelled."""
    if view.phase is JobPhase.FINISHED:
        return 0
    return view.exit_code if view.exit_code is not None and 0 < view.exit_code < 256 else 1


def _answer(as_json: bool, document: dict[str, object], text: str) -> None:
    if as_json:
        print_json(document)
    else:
        print(text)
