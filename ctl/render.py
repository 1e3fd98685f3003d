"""From the controller's answers to what people read (rich tables) and what programs read (plain values). Pure."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ..protocol.messages import CurvePoint, EventView, JobView, ServerState, ServerView, WorkerView
from ..protocol.model import JobPhase, Resize
from ..protocol.principals import LOCAL
from ..protocol.texts import gpu_count

if TYPE_CHECKING:
    from rich.table import Table

PHASE_STYLES = {
    JobPhase.PENDING: "yellow",
    JobPhase.STARTING: "yellow",
    JobPhase.RUNNING: "green",
    JobPhase.FINISHED: "blue",
    JobPhase.FAILED: "red",
    JobPhase.CANCELLED: "dim",
}


SHARE_CELLS = 48  # of the line that shows the share over time

# Escape sequences (colours, titles, cursor movements) and other control characters, C1 included.
CONTROL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])?|[\x00-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """`text` on one line, without what would move the cursor or colour the terminal: a reason may quote a job's output."""
    return CONTROL.sub(lambda found: " " if found[0] in "\t\n\r" else "", text)


def plain(view: object) -> Any:
    """`view` as values that `json` can write."""
    return msgspec.to_builtins(view)


def span(seconds: float) -> str:
    """ "4s", "3m20s", "2h05m", "3d04h"."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def clock(unix_s: float) -> str:
    """Local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(unix_s))


def gpus(job: JobView) -> str:
    """ "2", or "2 > 3" while a resize is under way."""
    if job.phase.final or job.wanted_gpus == job.share_gpus:
        return str(job.share_gpus)
    return f"{job.share_gpus} > {job.wanted_gpus}"


def eta_s(job: JobView) -> float | None:
    """Seconds until the last step at the present pace; None: unknown."""
    if job.phase is not JobPhase.RUNNING or job.step is None or not job.total_steps or not job.median_step_s:
        return None
    return (job.total_steps - 1 - job.step) * job.median_step_s


def describe_resize(job: str, resize: Resize) -> str:
    """One sentence on what a switch of generations cost."""
    return (
        f"{job}: {resize.workers_before} -> {gpu_count(resize.workers_after)} after step {resize.step}; longest time between two "
        f"steps {milliseconds(resize.longest_gap_s)} (median {milliseconds(resize.median_step_s)} before, "
        f"{milliseconds(resize.median_step_after_s)} after): paused for {milliseconds(resize.paused_s)}"
    )


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"


def metrics(job: JobView) -> str:
    return "  ".join(f"{name}={value:.4g}" for name, value in sorted(job.metrics.items()))


def step(job: JobView) -> str:
    if job.step is None:
        return "-"
    return f"{job.step + 1}/{job.total_steps}" if job.total_steps else str(job.step + 1)


def outcome(job: JobView, gap: str = " ") -> str:
    """How it stands with a job, and why."""
    return f"{job.job}{gap}{job.phase.value}" + (f": {printable(job.reason)}" if job.reason else "")


def note(worker: WorkerView) -> str:
    return f" ({printable(worker.reason)})" if worker.reason else ""


def owner(job: JobView) -> str:
    """Whose job it is, and the Unix account that it runs as if that has another name."""
    if job.account in ("", job.owner):
        return job.owner or "-"
    return f"{job.owner} (runs as {job.account})"


def job_table(jobs: Sequence[JobView], now_s: float) -> Table:
    """The jobs, one a row; whose they are where not all are those of whoever runs the cluster on this machine."""
    owned = any(job.owner not in ("", LOCAL) for job in jobs)
    owners = ("OWNER",) if owned else ()
    table = _table("JOB", *owners, "PHASE", ">GPUS", ">STEP", ">EPOCH", ">SAMPLES/S", ">AGE", ">ETA", "NOTE")
    for job in jobs:
        left = eta_s(job)
        table.add_row(
            job.job,
            *((_escape(job.owner or "-"),) if owned else ()),
            f"[{PHASE_STYLES[job.phase]}]{job.phase.value}[/]",
            gpus(job),
            step(job),
            str(job.epoch) if job.step is not None else "-",
            f"{job.samples_per_s:.0f}" if job.samples_per_s and not job.phase.final else "-",
            span((job.finished_s or now_s) - job.submitted_s),
            span(left) if left is not None else "-",
            _escape(printable(job.reason or metrics(job))),
        )
    return table


def server_table(servers: Sequence[ServerView], now_s: float) -> Table:
    """The servers, one a row."""
    table = _table("SERVER", "STATE", ">GPUS", ">FREE", "KIND", "ADDRESS", "JOBS", "NOTE")
    for view in servers:
        server = view.server
        kinds = sorted({gpu.name for gpu in server.gpus})
        jobs = ", ".join(f"{index}:{job}" for index, job in sorted(view.used.items()))
        match view.state:
            case ServerState.ALIVE:
                state = "[green]alive[/]"
            case ServerState.LOST:
                state = f"[red]lost {span(now_s - view.last_heard_s)} ago[/]"
            case ServerState.UNFIT | ServerState.FOREIGN:
                state = f"[yellow]{view.state.value}[/]"
        usable = view.state in (ServerState.ALIVE, ServerState.UNFIT)
        free = str(len(server.gpus) - len(view.used)) if usable else "-"
        note = _escape(printable(view.trouble))
        table.add_row(server.server, state, str(len(server.gpus)), free, ", ".join(kinds), server.address, jobs, note)
    return table


def event_line(event: EventView) -> str:
    """One event as one line."""
    return f"{clock(event.time_s)}  {event.kind.value:<14} {event.job or '-':<14} {printable(event.text)}"


def job_lines(job: JobView, now_s: float) -> list[str]:
    """One job in full."""
    spec = job.spec
    age = (job.finished_s or now_s) - job.submitted_s
    by_hand = f", set to {job.manual_share} by hand" if job.manual_share is not None else ""
    lines = [
        outcome(job, "  "),
        f"  owner            {printable(owner(job))}",
        f"  command          {printable(shlex.join(spec.command))}",
        f"  workdir          {spec.workdir}",
        f"  GPUs             {gpus(job)} (allowed {spec.gpus.min} to {spec.gpus.max}{by_hand})",
        f"  virtual workers  {spec.virtual_workers}, determinism {spec.determinism.value}",
        f"  step             {step(job)}, epoch {job.epoch}, {job.samples_per_s:.0f} samples/s",
        f"  time             submitted {clock(job.submitted_s)}, {span(age)} ago, restarts {job.restarts}",
    ]
    left = eta_s(job)
    if left is not None:
        lines.append(f"  ETA              {span(left)}")
    if job.metrics:
        lines.append(f"  metrics          {metrics(job)}")
    if job.workers:
        lines.append(f"  workers          generation {job.generation}")
        lines += [
            f"    {w.worker:<16} {w.server}:{w.gpu:<3} {w.phase.value:<9} pid {w.pid or '-'}{note(w)}"
            for w in job.workers
        ]
    failed = [worker for worker in job.past_workers if worker.exit_code not in (0, None)][-3:]
    lines += [f"    {w.worker:<16} {w.server}:{w.gpu:<3} ended     {printable(w.reason)}" for w in failed]
    if job.curve:
        lines.append("  throughput")
        lines += [f"    {point_line(point)}" for point in job.curve]
    if job.shares:
        lines.append("  share over time  " + share_line(job, now_s))
    lines += [f"    {describe_resize(job.job, resize)}" for resize in job.resizes[-3:]]
    return lines


def point_line(point: CurvePoint) -> str:
    """One share's throughput, and how it is known."""
    where = "" if point.servers is None else f"on {point.servers} server{'s' if point.servers > 1 else ''}"
    samples = f"{point.samples_per_s:10.1f} samples/s" if point.samples_per_s is not None else ""
    how = point.source
    if point.age_s is not None:
        how += f", {point.times} time{'s' if point.times > 1 else ''}, {span(point.age_s)} ago"
    return f"{gpu_count(point.share_gpus):<8} {where:<13} {point.steps_per_s:10.2f} steps/s {samples:<20} {how}"


def share_line(job: JobView, now_s: float) -> str:
    """The share over time as one line of digits, one for each equal part of the job's life (+ for ten and more)."""
    end = job.finished_s or now_s
    begin = job.shares[0].time_s
    cells = []
    for cell in range(SHARE_CELLS):
        at = begin + (end - begin) * (cell + 0.5) / SHARE_CELLS
        share = [change.share for change in job.shares if change.time_s <= at]
        cells.append("." if not share or not share[-1] else (str(share[-1]) if share[-1] < 10 else "+"))
    return "".join(cells) + f"  ({span(end - begin)})"


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column.removeprefix(">"), justify="right" if column.startswith(">") else "left", no_wrap=column != "NOTE"
        )
    return table


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
