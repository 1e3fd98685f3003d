"""Commands about jobs: status, scale, profile, wait."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ..protocol.errors import RequestRefused, UserError
from ..protocol.messages import (
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
)
from ..protocol.model import JobPhase, Resize, job_number
from ..protocol.texts import gpu_count
from . import completion, render
from .arrays import folded, matches, meant, names_several
from .context import (
    DECIDED_WITHIN_S,
    JSON,
    Context,
    console,
    fitted,
    of,
    print_json,
    print_lines,
    say,
    table_lines,
)
from .following import exit_code, until_final
from .waiting import Waiting, limit_s

if TYPE_CHECKING:
    from collections.abc import Iterable

WATCH_S = 0.5
MEASURED_WITHIN_S = 10.0
RESIZED_WITHIN = "5m"
PROFILED_WITHIN = "1h"
MOST_ENDED = 1000  # most finished jobs in `status --all`

MINE = typer.Option("--mine", help="Only jobs that you have submitted.", show_default=False)


def add_to(app: typer.Typer) -> None:
    """Register this file's commands."""
    for command in (status, scale, profile, wait):
        app.command()(command)


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
    elements: Annotated[bool, typer.Option("--array", "-r", help="Each job of an array in a row of its own.")] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show the jobs, or one job in full; the jobs of an array, or those that match a pattern, by 'NAME' or 'NAME-*'."""
    shared, pattern = of(context), None
    if watch and as_json:
        raise UserError("--watch and --json exclude each other: call `status --json` again and again")
    if job is not None and names_several(shared, job, everything):
        pattern, job, elements = job, None, True
    if watch:
        shared.outlast_a_restart()
        _watch(lambda: _snapshot(shared, job, everything, mine, elements, pattern))
    elif job is not None:
        if as_json:
            print_json(render.plain(shared.job(job)))
        else:
            _print(_snapshot(shared, job, everything, mine, elements)[1])
    else:
        jobs = _jobs(shared, everything, mine, pattern)
        if as_json and pattern is not None:
            print_json({"jobs": render.plain(jobs.jobs), "time_s": jobs.time_s})
        elif as_json:
            told = {"jobs": jobs.jobs, "time_s": jobs.time_s, "policy": jobs.policy, "refused": jobs.refused}
            print_json({name: render.plain(value) for name, value in told.items()})
        else:
            _print(_table(jobs, everything, mine, elements))
        if jobs.next:
            say(f"elasticctl: more jobs are over than the {MOST_ENDED} shown: `elasticctl history` pages through them")


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)


def _jobs(shared: Context, everything: bool, mine: bool, pattern: str | None = None) -> Jobs:
    """Return the unfinished jobs, and with `everything` those that ended last, in the order of submission.

    `pattern`: only jobs that match it, or of the array of that name. Raises UserError if there are none.
    """
    live = found = shared.client.jobs(GetJobs(mine=mine))
    if everything:
        ended = shared.client.jobs(GetEnded(mine=mine), MOST_ENDED)
        jobs = {view.job: view for view in (*live.jobs, *ended.jobs)}  # a job that has ended meanwhile is in both
        shown = sorted(jobs.values(), key=lambda view: job_number(view.job))
        found = msgspec.structs.replace(ended, jobs=tuple(shown), refused=live.refused)
    if pattern is None:
        return found
    chosen = tuple(view for view in found.jobs if matches(view, pattern))
    if not chosen:
        raise UserError(f"no {'' if everything else 'unfinished '}job{' of yours' if mine else ''} matches {pattern!r}")
    return msgspec.structs.replace(found, jobs=chosen, refused=(), next="")


def _snapshot(
    shared: Context, job: str | None, everything: bool, mine: bool, elements: bool, pattern: str | None = None
) -> tuple[object, Iterable[str]]:
    """Return the state (equal as long as only time passes), and its display."""
    if job is not None:
        answer = shared.ask(GetJob(job=job), JobFound)
        return answer.job, fitted(render.job_lines(answer.job, answer.time_s))
    jobs = _jobs(shared, everything, mine, pattern)
    return (jobs.jobs, jobs.refused), _table(jobs, everything, mine, elements)


def _table(jobs: Jobs, everything: bool, mine: bool, elements: bool = False) -> Iterable[str]:
    if not jobs.jobs:
        yours = " of yours" if mine else ""
        yield f"no jobs{yours}" if everything else f"no unfinished jobs{yours} (status --all shows all)"
    else:
        yield from table_lines(render.job_table(jobs.jobs if elements else folded(jobs.jobs), jobs.time_s))
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
    elif nothing_new:  # no resize was ordered, so no end of one is awaited
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
    sizes: Annotated[
        str | None,
        typer.Option(help="With all of these numbers of GPUs, as 1:4; else with ever halved ones.", show_default=False),
    ] = None,
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
    least, most = _sizes(sizes)
    order = shared.ask(Profile(job=job, least=least, most=most), Profiling, DECIDED_WITHIN_S)
    shares = ", ".join([*map(str, order.shares[:-1]), *map(gpu_count, order.shares[-1:])])
    if no_wait:
        _answer(as_json, {"job": order.job, "shares": list(order.shares)}, f"{order.job}: measuring with {shares}")
        return
    if sys.stderr.isatty():
        say(f"{order.job}: measuring with {shares}")
    view = until_measured(shared, order.job, within_s)
    lines = "\n".join(render.point_line(point) for point in view.curve)
    _answer(as_json, {"job": view.job, "curve": render.plain(view.curve)}, lines)


def until_measured(shared: Context, job: str, within_s: float | None) -> JobView:
    """Poll until `job`, which is being measured, has its GPUs back."""
    waiting = Waiting(f"{job} to be measured", within_s, "; the measuring goes on")
    while (view := shared.job(job)).measuring_gpus is not None:
        waiting.pause(view.reason)
    return view


def _sizes(text: str | None) -> tuple[int | None, int | None]:
    """Return the least and the greatest size; None: not given. Raises UserError."""
    if text is None:
        return None, None
    low, colon, high = text.partition(":")
    if not all(part.isdecimal() and len(part) < 7 for part in ((low, high) if colon else (low,))):
        raise UserError(f"profile: --sizes: {text!r} is no range of numbers of GPUs, such as 1:4")
    return int(low), int(high if colon else low)


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
    names = [shared.job(job).job for job in meant(shared, jobs)]  # unknown jobs are an error before any waiting
    views = [until_final(shared, name, within_s) for name in names]
    if as_json:
        print_json({"jobs": render.plain(views)})
    else:
        for view in views:
            print_lines([render.outcome(view), *render.failure_lines(view)])
    raise typer.Exit(next((code for view in views if (code := exit_code(view))), 0))


def _answer(as_json: bool, document: dict[str, object], text: str) -> None:
    if as_json:
        print_json(document)
    else:
        print(text)
