"""`elasticctl explain`: the reasons for a job's GPUs, and changes that would alter them."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated

import typer

from ..protocol.errors import RequestRefused
from ..protocol.messages import Explanation, GetJob, JobFound, JobView, Remedy, ShareChange
from ..protocol.model import GpuAddress
from ..protocol.texts import gpu_count, ranges
from . import completion, past, render, starting
from .context import DECIDED_WITHIN_S, JSON, of, print_json
from .formatting import span
from .labelled import Page, Part
from .logs import since_s
from .promises import deadline_line, moment, saves_deadline, slack

CHANGES = 8  # shown changes of the job's share
REMEDIES = 8
TAKEN = 6


def add_to(app: typer.Typer) -> None:
    """Register this file's command."""
    app.command()(explain)


def explain(
    context: typer.Context,
    job: Annotated[str, typer.Argument(help="Which job.", show_default=False, autocompletion=completion.any_jobs)],
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="All that would change it, and all changes, not the first few.")
    ] = False,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Explain its GPUs at that time: 10m ago, 14:30, 2026-03-01T08:00.",
            show_default=False,
        ),
    ] = None,
    forecast: Annotated[bool, typer.Option(help="Simulate when a waiting job starts.")] = True,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Explain why a job waits, was shrunk, or has the GPUs that it has; and list changes that would alter this.

    The controller asks its scheduler about clusters that differ in one point each. So each listed change would help
    now. When a waiting job starts is simulated here, some dozen times, with lengths of jobs like those that have ended.
    """
    shared = of(context)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if at is not None:
        then = past.past(shared, job, since_s(at, time.time(), "--at"))
        if as_json:
            print_json(past.document(then))
            return
        for line in Page(width).lines(past.parts(then)):
            print(line)
        return
    found = shared.ask(GetJob(job=job, explain=True), JobFound, DECIDED_WITHIN_S)
    if found.explanation is None:
        raise RequestRefused("the controller is of an older version, which explains nothing: `elasticctl status JOB`")
    if as_json:
        told = starting.of_job(shared, found.job) if forecast else None
        starts = None if told is None else told[1]
        print_json({**document(found.job, found.explanation, found.time_s), "starts": starts})
        return
    page = Page(width)
    for line in page.lines(parts(found.job, found.explanation, found.time_s, everything)):
        print(line, flush=True)  # a simulation takes seconds
    if forecast and (told := starting.of_job(shared, found.job)) is not None:
        for line in page.lines([Part("starts", told[0])]):
            print(line)


def document(job: JobView, why: Explanation, now_s: float) -> dict[str, object]:
    """Return the explanation as a document for programs."""
    promise = job.promise
    eta_s = render.eta_s(job)
    end_s = now_s + eta_s if eta_s is not None else promise.planned_s if promise is not None else None
    return {
        "job": job.job,
        "phase": job.phase.value,
        "phase_since_s": why.phase_since_s,
        "time_s": now_s,
        "share_gpus": job.share_gpus,
        "min_gpus": job.spec.gpus.min,
        "max_gpus": job.spec.gpus.max,
        "manual_share": job.manual_share,
        "elastic": job.elastic,
        **{name: value for name, value in render.plain(why).items() if name != "phase_since_s"},
        "changes": render.plain(job.shares),
        "promise": render.plain(promise),
        "slack_s": promise.deadline_s - end_s if promise is not None and end_s is not None else None,
    }


def lines(job: JobView, why: Explanation, now_s: float, width: int | None, everything: bool = False) -> Iterator[str]:
    """Yield the explanation's lines for a terminal of `width` columns; None: for a program, each part in one line."""
    yield from Page(width).lines(parts(job, why, now_s, everything))


def parts(job: JobView, why: Explanation, now_s: float, everything: bool = False) -> Iterator[Part]:
    """Yield the parts of the explanation. Their texts may come from a job or an operator."""
    yield Part("", _state(job, why, now_s))
    for at, reason in enumerate(why.reasons or _last_reason(job)):
        yield Part("why" if not at else "", reason)
    yield from _decision(job, why)
    if job.promise is not None:
        yield from _deadline(job, now_s)
    yield from _changes(job.shares, now_s, everything)
    yield from _remedies(job, why, now_s, everything)


def _state(job: JobView, why: Explanation, now_s: float) -> str:
    """Return "digits-1: running for 3m20s on 2 GPUs; it asks for 1 to 4 GPUs"."""
    allowed = render.gpu_range(job.spec)
    by_hand = f", set to {job.manual_share} by hand" if job.manual_share is not None else ""
    if job.phase.final:
        return f"{job.job}: {job.phase.value} {span(now_s - why.phase_since_s)} ago; it asked for {allowed}"
    on = f" on {gpu_count(job.share_gpus)}" if job.share_gpus else ""
    kind = "" if job.elastic or not job.share_gpus else ", as a gang of fixed size"
    ordered = f", {gpu_count(job.wanted_gpus)} ordered" if job.wanted_gpus != job.share_gpus else ""
    asks = f"it asks for {allowed}"
    return f"{job.job}: {job.phase.value} for {span(now_s - why.phase_since_s)}{on}{kind}{ordered}; {asks}{by_hand}"


def _last_reason(job: JobView) -> Sequence[str]:
    """Return the reason for the share of a job that waits for nothing; () if no reason is known."""
    if job.phase.final or not job.shares or not job.share_gpus:
        return ()
    if job.share_gpus >= job.spec.gpus.max and job.manual_share is None:
        return ("it has all the GPUs that it asks for",)
    return (job.shares[-1].reason,) if job.shares[-1].reason else ()


def _decision(job: JobView, why: Explanation) -> Iterator[Part]:
    """Yield the scheduler's decision as of now, and the GPUs that it divides."""
    if job.phase.final or not why.policy:
        return
    if why.decided_gpus is None:
        yield Part("decided", "no policy decides about it as it is now")
        return
    told = [f"{_stage(step.stage, why.policy)}: {gpu_count(step.gpus)}" for step in why.steps]
    yield Part("decided", "; then ".join(told))
    if why.rule:
        yield Part("policy", f"{why.policy}: {why.rule}")
    idle = f"{why.free_gpus} idle that it may use" if why.free_gpus else "none idle that it may use"
    jobs = f"{why.among_jobs} job{'s' if why.among_jobs != 1 else ''}"
    divided = f"{why.policy} divides {why.divided_gpus} of {gpu_count(why.known_gpus)} among {jobs}, and leaves {idle}"
    needs = f"; it needs {why.least_gpus} to start" if not job.share_gpus else ""
    yield Part("GPUs", divided + needs)
    for taken in why.taken[:TAKEN]:
        yield Part("", f"{_where(taken.gpus)}: {taken.why}")
    if len(why.taken) > TAKEN:
        yield Part("", f"and others for {len(why.taken) - TAKEN} more reasons (--json)")
    if why.holders:
        told = [f"{one.job} {max(one.before_gpus, one.after_gpus)}" for one in why.holders[: past.NAMED]]
        more = len(why.holders) - len(told)
        yield Part("held by", ", ".join([*told, *([f"{more} more jobs"] if more else [])]))
    if why.before:
        told = list(why.before[: past.NAMED])
        more = len(why.before) - len(told)
        names = ", ".join([*told, *([f"{more} more"] if more else [])])
        yield Part("before it", f"{names}, if GPUs come free")


def _stage(stage: str, policy: str) -> str:
    return policy if stage == "policy" else stage.replace("-", " ")


def _where(gpus: Sequence[GpuAddress]) -> str:
    by_server = groupby(gpus, key=lambda gpu: gpu.server)
    return ", ".join(f"{server}:{ranges(gpu.index for gpu in here)}" for server, here in by_server)


def _deadline(job: JobView, now_s: float) -> Iterator[Part]:
    assert job.promise is not None
    eta_s = render.eta_s(job)
    yield Part("deadline", deadline_line(job.promise, now_s, eta_s, with_ways=False))
    least = f"; minimum satisfactory share {gpu_count(job.promise.least_gpus)}" if job.promise.least_gpus else ""
    yield Part("slack", f"{slack(job.promise, now_s, eta_s).text}{least}")


def _changes(shares: Sequence[ShareChange], now_s: float, everything: bool) -> Iterator[Part]:
    """Yield the last changes of the share, the newest last."""
    first = 0 if everything else max(0, len(shares) - CHANGES)
    for at in range(first, len(shares)):
        before = shares[at - 1].share if at else 0
        change = shares[at]
        how = f"{before} -> {change.share}" if before != change.share else f"{gpu_count(change.share)}, others"
        text = f"{moment(change.time_s, now_s)}  {how:<8}  {change.reason or '-'}"
        yield Part("changes" if at == first else "", text)


def _remedies(job: JobView, why: Explanation, now_s: float, everything: bool) -> Iterator[Part]:
    """Yield the changes that would give the job other GPUs, and those that would keep its deadline."""
    saves = saves_deadline(job.promise, now_s) if job.promise is not None else ""
    if saves:
        yield Part("changes it", f"its deadline: {saves}")
    if job.phase.final or not why.policy:
        return
    shown = why.remedies if everything else _chosen(why.remedies)
    has_all = job.share_gpus >= job.spec.gpus.max
    if not shown and (why.tried or not (saves or has_all)):
        nothing = _nothing(why.tried)
        yield Part("" if saves else "changes it", f"its GPUs: {nothing}" if saves else nothing)
    for at, remedy in enumerate(shown):
        verb = "has" if job.share_gpus else "starts with"
        who = f" ({remedy.by})" if remedy.by else ""
        loses = f"; {render.pushed(remedy.pushed)} would lose by it" if remedy.pushed else ""
        text = f"it {verb} {gpu_count(remedy.share_gpus)} if {remedy.text}{who}{loses}"
        yield Part("" if at or saves else "changes it", text)
        if remedy.command:
            yield Part("", remedy.command, command=True)
    more = len(why.remedies) - len(shown)
    if more or why.untried:
        untried = f"; {why.untried} more were not tried" if why.untried else ""
        yield Part("", f"and {more} more (--all){untried}" if more else untried.strip("; "))


def _nothing(tried: int) -> str:
    if tried == 1:
        return "the one change that was tried would not help"
    return f"none of {tried} changes that were tried would help" if tried else "nothing that is known here"


def _chosen(remedies: Sequence[Remedy]) -> Sequence[Remedy]:
    """Return the first remedies of each kind, since many of one kind have the same effect."""
    seen: dict[str, int] = {}
    ranked = []
    for remedy in remedies:
        seen[remedy.kind] = seen.get(remedy.kind, 0) + 1
        ranked.append((seen[remedy.kind], remedy))
    kept = {id(remedy) for _, remedy in sorted(ranked, key=lambda pair: pair[0])[:REMEDIES]}
    return [remedy for remedy in remedies if id(remedy) in kept]
