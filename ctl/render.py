"""Conversion of the controller's answers into tables and lines for people, and into plain values for programs. Pure."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ..protocol.messages import (
    Controllers,
    CordonView,
    CurvePoint,
    EventView,
    JobLength,
    JobView,
    LengthSource,
    RefusedJob,
    ServerState,
    ServerView,
    ShareForecast,
    StillThere,
    UsageBy,
    UsageReport,
    UsageRow,
    Withholding,
    WorkerView,
)
from ..protocol.model import GpuSeconds, JobId, JobPhase, JobSpec, Processes, Resize, ResumeFrom
from ..protocol.principals import LOCAL
from ..protocol.texts import RELEASED, gpu_count, ranges, steps_kept
from ..scheduler.amounts import Need
from .formatting import clock as clock
from .formatting import printable as printable
from .formatting import span as span
from .promises import deadline_line, slack
from .tables import Cell, Column, Row, Table

PHASE_STYLES = {
    JobPhase.PENDING: "yellow",
    JobPhase.STARTING: "yellow",
    JobPhase.RUNNING: "green",
    JobPhase.FINISHED: "blue",
    JobPhase.FAILED: "red",
    JobPhase.CANCELLED: "dim",
}


@dataclass(frozen=True)
class Fact:
    """A labelled part of a job's description. `below`: further lines with details."""

    label: str
    text: str
    below: tuple[str, ...] = ()


MOST_PUSHED_TOLD = 10
SHARE_CELLS = 48  # columns of the line that shows the share over time


def plain(view: object) -> Any:
    """Return `view` as values that `json` can write; GPU-seconds with their sum."""
    found = msgspec.to_builtins(view)
    _add_sums(found)
    return found


def _add_sums(value: object) -> None:
    if isinstance(value, list):
        for each in value:
            _add_sums(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            if name == "gpu_seconds" and isinstance(each, dict):
                each["held_gpu_s"] = sum(each.values())
            else:
                _add_sums(each)


def phase(job: JobView) -> str:
    """Return the job's phase; for a job that a user keeps from running, the kind of withholding."""
    withheld = job.withheld if job.phase is JobPhase.PENDING else None
    if withheld is None:
        return job.phase.value
    return "cancelling" if withheld.how is Withholding.CANCEL else withheld.how.past


def gpus(job: JobView) -> str:
    """Return "2", or "2 > 3" while a resize is in progress."""
    if job.phase.final or job.wanted_gpus == job.share_gpus:
        return str(job.share_gpus)
    return f"{job.share_gpus} > {job.wanted_gpus}"


def eta_s(job: JobView) -> float | None:
    """Return the seconds until the last step at the present pace; None: unknown. The script's time after that step is
    not included.
    """
    if job.phase is not JobPhase.RUNNING or job.step is None or not job.total_steps or not job.median_step_s:
        return None
    return (job.total_steps - 1 - job.step) * job.median_step_s or None


def describe_resize(job: str, resize: Resize) -> str:
    """Return one sentence on the cost of a switch of generations."""
    return (
        f"{job}: {resize.workers_before} -> {gpu_count(resize.workers_after)} after step {resize.step}; longest time between two "
        f"steps {milliseconds(resize.longest_gap_s)} (median {milliseconds(resize.median_step_s)} before, "
        f"{milliseconds(resize.median_step_after_s)} after): paused for {milliseconds(resize.paused_s)}"
    )


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"


def metrics(job: JobView) -> str:
    words = {name: f"{value:.4g}" for name, value in job.metrics.items()} | job.odd_metrics
    return "  ".join(f"{name}={word}" for name, word in sorted(words.items()))


def batch(job: JobView) -> str:
    """Return the global batch, as far as it is known."""
    count = job.spec.virtual_workers
    if job.batch_samples:
        last = job.batch_changes[-1] if job.batch_changes else None
        grown = f", {last.factor} times the first since step {last.step}" if last is not None else ""
        each = job.batch_samples // count
        return f"{job.batch_samples} samples ({count} virtual worker{'s' if count != 1 else ''} x {each}){grown}"
    workers = "virtual worker" if count == 1 else "virtual workers"
    return f"{count} {workers} x the script's batch_size, which it has not told yet"


def steps_done(job: JobView) -> int | None:
    """Return the number of steps in all attempts; None: the job has reported none."""
    if job.step is None and job.failure is None:
        return None
    return max(job.step + 1 if job.step is not None else 0, job.failure.steps_done if job.failure is not None else 0)


def step(job: JobView) -> str:
    done = steps_done(job)
    if done is None:
        return "-"
    return f"{done}/{job.total_steps}" if job.total_steps else str(done)


TOLD_BY = {LengthSource.MAX_STEPS: "max_steps", LengthSource.EPOCHS: "its loop over epochs"}


def length(job: JobView, known: JobLength) -> str:
    """Return a job's number of steps and its source, and, when the job is over, how wrong it was."""
    done = job.step + 1 if job.step is not None else 0
    told_by = TOLD_BY.get(known.source)
    if known.by_reports and known.steps and not job.phase.final:
        return f"about {known.steps:,.0f} steps, until {printable(known.by_reports)}, by what it reports"
    if told_by is not None and known.steps:
        text = f"{known.steps:,.0f} steps, told by {told_by}"
        if not job.phase.final:
            return text
        return f"{text}; it ended after {done:,}" + (f", {done / known.steps:.0%}" if done < known.steps else "")
    if job.phase.final:
        return f"not told; it ended after {done:,} steps"
    if known.steps is None or known.least_steps is None or known.most_steps is None:
        return "not told (max_steps, or epochs over data of known length)"
    few, middle, many = known.least_steps, known.steps, known.most_steps
    return f"not told; jobs that are over suggest {middle:,.0f} steps, two of three times {few:,.0f} to {many:,.0f}"


def kept(job: JobView) -> str:
    """Return the progress of a job that has given its GPUs back, and how much of it is saved."""
    done = job.step + 1 if job.step is not None else 0
    saved = job.saved_step + 1 if job.saved_step is not None else 0
    if not done and not saved:
        return "before its first step"
    return steps_kept(done, saved)


def outcome(job: JobView, gap: str = " ") -> str:
    """Return a job's phase with its reason."""
    return f"{job.job}{gap}{_phase_and_reason(job.phase.value, job.phase.value, job.reason)}"


def refused_job(refused: RefusedJob) -> str:
    """Return the text for a job with a refused record, with the reason."""
    return printable(f"{refused.job} refused: {refused.reason}")


def _phase_and_reason(phase: str, detailed: str, reason: str) -> str:
    """Return the phase with its reason.

    `detailed`: the phase with its details. A reason may begin with the phase itself: "cancelled by alice".
    """
    if reason.startswith(phase):
        return detailed + printable(reason.removeprefix(phase))
    return detailed + (f": {printable(reason)}" if reason else "")


def because(job: JobView) -> str:
    """Return a job's reason for display beside its phase, without the phase's word: "by alice"."""
    if job.phase is not JobPhase.CANCELLED:
        return job.reason
    return job.reason.removeprefix(job.phase.value).lstrip(" ,;:")


def verdict(job: JobView) -> str:
    """Return how a finished job ended, and after how long."""
    ran = f" after {span((job.finished_s or job.submitted_s) - job.submitted_s)}"
    code = f" (exit code {job.exit_code})" if (job.exit_code or 0) > 0 and job.phase is JobPhase.FAILED else ""
    reason, phase = job.reason, job.phase.value
    if not reason and job.step is not None and job.batch_samples:
        reason = f"{job.step + 1} steps of {job.batch_samples} samples each"
    return f"{job.job} {_phase_and_reason(phase, f'{phase}{ran}{code}', reason)}"


def gpu_range(spec: JobSpec) -> str:
    """Return the GPUs that a job asks for: "1 GPU", "2 to 4 GPUs"."""
    low, high = spec.gpus.min, spec.gpus.max
    return gpu_count(low) if low == high else f"{low} to {gpu_count(high)}"


def submitted(job: str, spec: JobSpec, joins: bool = True) -> str:
    """Return the known facts of a job at its submission, beside its id. `joins`: the command probably calls
    `elastic.join()`.
    """
    share, count = gpu_range(spec), spec.virtual_workers
    if not spec.expected_to_join or not joins:
        return f"{job}: {share}"
    each = "the script's batch_size" if count == 1 else f"{count} virtual workers x the script's batch_size"
    return (
        f"{job}: {share}; global batch: {each} (`elasticctl status {job}` shows the number once the script has told it)"
    )


def goes_on_from(resume: ResumeFrom) -> str:
    """Return the job or directory of the checkpoint from which a job starts."""
    any_code = ", whatever its code and data" if resume.any_code else ""
    return printable(f"{resume.job or resume.directory}, after {resume.step + 1:,} steps{any_code}")


def failure_lines(job: JobView) -> list[str]:
    """Return where a failed job has failed, and where to read more; empty for any other job."""
    return list(fact_lines(_failure(job)))


def _failure(job: JobView) -> Iterator[Fact]:
    failed = job.failure
    if failed is None:
        return
    if not job.elastic:
        yield Fact("failed in", f"attempt {failed.attempt}")
    else:
        steps = f"{failed.steps_done} step{'s' if failed.steps_done != 1 else ''}" if failed.steps_done else "no step"
        of = f" of {job.total_steps}" if job.total_steps and failed.steps_done else ""
        yield Fact("failed after", f"{steps}{of}, in attempt {failed.attempt}")
    if failed.worker is not None:
        yield Fact("worker", f"{failed.worker} on {failed.server}")
    if failed.error:
        yield Fact("error", printable(failed.error))
    if failed.worker is not None:
        yield Fact("log", f"elasticctl logs {job.job} --worker {failed.worker.rpartition('.')[2]}")
    if failed.log:
        yield Fact("", f"{failed.server}:{printable(failed.log)}")


def fact_lines(facts: Iterable[Fact]) -> Iterator[str]:
    """Yield facts as lines, each text beside its label."""
    for fact in facts:
        if fact.label or fact.text:
            yield f"  {fact.label:<16} {fact.text}".rstrip()
        yield from (f"    {line}" for line in fact.below)


def note(worker: WorkerView) -> str:
    return f" ({printable(worker.reason)})" if worker.reason else ""


def gpus_of(worker: WorkerView) -> str:
    """Return the indices of the worker's GPUs on its server."""
    return ",".join(str(index) for index in worker.gpus or (worker.gpu,))


def resizing(job: JobView) -> str:
    """Return whether the job can be resized, and how its command is run."""
    if job.elastic:
        return f"does not grow: {printable(job.does_not_grow)}" if job.does_not_grow else "elastic"
    allowed = job.spec.restarts
    if not allowed:
        again = "not run again" if allowed == 0 else "run again as often as it takes"
    else:
        again = f"run again {allowed} time{'' if allowed == 1 else 's'} at most"
    each = "server" if job.spec.processes is Processes.PER_SERVER else "GPU"
    return f"fixed, as it has not called elastic.join(); a process for each {each}, {again}"


def owner(job: JobView) -> str:
    """Return the job's owner, and the job's Unix account if it has another name."""
    name = user(job)
    return name if job.account in ("", job.owner, name) else f"{name} (runs as {job.account})"


def user(job: JobView) -> str:
    """Return the job's user in a word; in a cluster of one machine the name given at the submission."""
    return job.owner if job.owner not in ("", LOCAL) else job.spec.user or "-"


JOB_COLUMNS = (
    Column("JOB"),
    Column("USER", words="of {}", wanted=6),
    Column("PHASE"),
    Column("GPUS", right=True),
    Column("STEP", right=True, words="step {}", wanted=5),
    Column("EPOCH", right=True, words="epoch {}", wanted=1),
    Column("SAMPLES/S", right=True, words="{} samples/s", wanted=2),
    Column("AGE", right=True, words="{} old", wanted=3),
    Column("ETA", right=True, words="{} left", wanted=4),
)


SLACK = Column("SLACK", right=True, words="{} to spare", wanted=7)


def job_table(jobs: Sequence[JobView], now_s: float) -> Table:
    """Return the jobs, one a row; with the time to spare if any of them has a deadline."""
    rows = [_job_row(job, now_s) for job in jobs]
    if all(job.promise is None for job in jobs):
        return Table(JOB_COLUMNS, rows)
    return Table(
        (*JOB_COLUMNS, SLACK),
        [
            replace(row, cells=(*row.cells, slack(job.promise, now_s, eta_s(job))))
            for row, job in zip(rows, jobs, strict=True)
        ],
    )


def _job_row(job: JobView, now_s: float) -> Row:
    left = eta_s(job)
    cells = (
        Cell(job.job),
        Cell(printable(user(job))),
        Cell(phase(job), PHASE_STYLES[job.phase]),
        Cell(gpus(job)),
        Cell(step(job)),
        Cell(str(job.epoch) if job.step is not None else "-"),
        Cell(f"{job.samples_per_s:.0f}" if job.samples_per_s and not job.phase.final else "-"),
        Cell(span((job.finished_s or now_s) - job.submitted_s)),
        Cell(span(left) if left is not None else "-"),
    )
    fixed = "fixed" if job.phase is JobPhase.RUNNING and not job.elastic else ""
    kept = f"does not grow: `elasticctl explain {job.job}` says why" if job.does_not_grow else ""
    return Row(cells, _notes(kept or because(job) or metrics(job) or fixed))


SERVER_COLUMNS = (
    Column("SERVER"),
    Column("STATE"),
    Column("GPUS", right=True),
    Column("FREE", right=True),
    Column("CORES", words="{} cores asked for", wanted=4),
    Column("MEMORY", words="{} of memory asked for", wanted=3),
    Column("KIND", words="{}", wanted=2),
    Column("ADDRESS", words="{}", wanted=1),
)


def server_table(servers: Sequence[ServerView], now_s: float) -> Table:
    """Return the servers, one a row; beside each its jobs and its troubles."""
    return Table(SERVER_COLUMNS, [_server_row(view, now_s) for view in servers], "JOBS, NOTE")


CONTROLLER_COLUMNS = (
    Column("CONTROLLER"),
    Column("STATE"),
    Column("UP", words="up {}", wanted=2),
    Column("VERSION", words="{}", wanted=1),
    Column("ADDRESS", words="{}", wanted=3),
)


def controller_table(answer: Controllers) -> Table:
    """Return the running controllers, one a row."""
    rows = []
    for view in answer.controllers:
        state = Cell(f"leads, term {answer.term}", "green") if view.leads else Cell("stands by")
        cells = (
            Cell(printable(view.name) or "-"),
            state,
            Cell(span(answer.time_s - view.since_s) if view.since_s else "-"),
            Cell(printable(view.version)),
            Cell(printable(", ".join(view.clients_at)) or "-"),
        )
        rows.append(Row(cells))
    return Table(CONTROLLER_COLUMNS, rows)


def _server_row(view: ServerView, now_s: float) -> Row:
    server = view.server
    match view.state:
        case ServerState.ALIVE:
            state = Cell("alive", "green")
        case ServerState.LOST:
            state = Cell(f"lost {span(now_s - view.last_heard_s)} ago", "red")
        case ServerState.UNFIT | ServerState.FOREIGN:
            state = Cell(view.state.value, "yellow")
    whole = next((cordon for cordon in view.cordons if cordon.gpu is None), None)
    if whole is not None and view.alive:
        state = Cell(cordoned(whole, now_s), "yellow")
    elif view.state is ServerState.ALIVE and server.gpus and len(view.barred) == len(server.gpus):
        state = Cell("lent" if all(cordon.loan for cordon in view.cordons) else "cordoned", "yellow")
    usable = view.state in (ServerState.ALIVE, ServerState.UNFIT)
    cells = (
        Cell(server.server),
        state,
        Cell(str(len(server.gpus))),
        Cell(str(len(server.gpus) - len({*view.used, *view.barred})) if usable else "-"),
        *_amount_cells(view),
        Cell(printable(", ".join(sorted({gpu.name for gpu in server.gpus})))),
        Cell(server.address),
    )
    others = (cordon for cordon in view.cordons if cordon is not whole or not view.alive)
    ages = ", ".join(f"{_of_gpu(cordon)}{cordoned(cordon, now_s)}" for cordon in others)
    return Row(cells, _notes(_used(view), view.trouble, ages, *staying_lines(view.still_there)))


def _amount_cells(view: ServerView) -> tuple[Cell, Cell]:
    """Return the cells for cores and memory: requested by workers, and available to them."""
    there = view.server.allocatable
    if there is None or there.unheld:
        return Cell("-"), Cell("-")
    memory = f"{_gib(view.asked_memory_bytes)}/{_gib(there.memory_bytes)} GiB"
    return Cell(f"{view.asked_cpus:g}/{there.cpus:g}"), Cell(memory)


def _gib(bytes_: int) -> str:
    return f"{bytes_ / (1 << 30):.4g}"


def cordoned(cordon: CordonView, now_s: float) -> str:
    """Return "cordoned 5 min ago", "draining for 12 s", "drained 3 h ago", "lent for 4 min more"."""
    if cordon.loan:
        more = f" for {span(cordon.until_s - now_s)} more" if cordon.until_s is not None else ""
        return f"lent{more}{'' if cordon.drained_s is not None else ', jobs are leaving it'}"
    if not cordon.kind.drains:
        return f"cordoned {span(now_s - cordon.since_s)} ago"
    if cordon.drained_s is None:
        return f"draining for {span(now_s - cordon.since_s)}"
    return f"drained {span(now_s - cordon.drained_s)} ago"


def _of_gpu(cordon: CordonView) -> str:
    return "" if cordon.gpu is None else f"GPU {cordon.gpu} "


def staying_lines(left: Sequence[StillThere]) -> list[str]:
    """Return the work left on a server that is being drained, with reasons, a line each."""
    return [
        printable(f"{one.job}{f' ({ranges(one.gpus)})' if one.gpus else ''}{' stays:' if one.stays else ''} {one.why}")
        for one in left
    ]


def _notes(*texts: str) -> tuple[str, ...]:
    return tuple(printable(text) for text in texts if text)


def _used(view: ServerView) -> str:
    """Return "digits-1 (0-3: 62 %), tabular-2 (5)": the jobs with their GPUs, and how busy these are if that is known."""
    jobs = []
    for job in dict.fromkeys(view.used.values()):
        gpus = [gpu for gpu, name in view.used.items() if name == job]
        parts = [view.busy[gpu] for gpu in gpus if gpu in view.busy]
        jobs.append(f"{job} ({ranges(gpus)}{f': {percent(sum(parts) / len(parts))}' if parts else ''})")
    return ", ".join(jobs)


def pushed(losers: Sequence[ShareForecast]) -> str:
    """Return the jobs that lose GPUs to another job, with the numbers."""
    texts = [
        f"{loser.job} ({loser.before_gpus} -> {gpu_count(loser.after_gpus)})" for loser in losers[:MOST_PUSHED_TOLD]
    ]
    more = len(losers) - len(texts)
    return ", ".join([*texts, *([f"and {more} more"] if more else [])])


def event_line(event: EventView) -> str:
    """Return one event as one line."""
    return f"{clock(event.time_s)}  {event.kind.value:<14} {event.job or '-':<14} {printable(event.text)}"


def job_lines(job: JobView, now_s: float) -> list[str]:
    """Return one job in full."""
    return [outcome(job, "  "), *fact_lines(job_facts(job, now_s))]


def job_facts(job: JobView, now_s: float) -> Iterator[Fact]:
    """Yield the description of one job, except its outcome."""
    spec = job.spec
    age = span((job.finished_s or now_s) - job.submitted_s)
    since = f"over after {age}" if job.phase.final else f"{age} ago"
    by_hand = f", set to {job.manual_share} by hand" if job.manual_share is not None else ""
    yield from _failure(job)
    yield Fact("owner", printable(owner(job)))
    yield Fact("command", printable(shlex.join(spec.command)))
    yield Fact("workdir", printable(spec.workdir))
    if spec.image:
        yield Fact("image", printable(spec.image))
    if spec.resume is not None:
        yield Fact("goes on from", goes_on_from(spec.resume))
    yield Fact("GPUs", f"{gpus(job)} (allowed {spec.gpus.min} to {spec.gpus.max}{by_hand})")
    if asked := Need.of(spec).each:
        yield Fact("each worker", f"{asked}")
    yield Fact("resizing", resizing(job))
    yield Fact("virtual workers", f"{spec.virtual_workers}, determinism {spec.determinism.value}")
    if job.elastic:
        yield Fact("global batch", batch(job))
    yield Fact("step", f"{step(job)}, epoch {job.epoch}, {job.samples_per_s:.0f} samples/s")
    yield Fact("time", f"submitted {clock(job.submitted_s)}, {since}, restarts {job.restarts}")
    yield from _prospects(job, now_s)
    if job.gpu_seconds.held_gpu_s:
        yield Fact("GPU time", gpu_time(job.gpu_seconds))
    yield from (Fact(name, text) for name, text in use_texts(job, now_s))
    if job.metrics or job.odd_metrics:
        yield Fact("metrics", printable(metrics(job)))
    yield from _workers(job)
    if job.curve:
        yield Fact("throughput", "", tuple(point_line(point) for point in job.curve))
    if job.shares:
        yield Fact("share over time", share_line(job, now_s))
    yield Fact("", "", tuple(describe_resize(job.job, resize) for resize in job.resizes[-3:]))


def _prospects(job: JobView, now_s: float) -> Iterator[Fact]:
    """Yield the job's length, its limits of time and the time that is left."""
    if job.length is not None and job.elastic:
        yield Fact("length", length(job, job.length))
    if job.spec.time_limit_s is not None:
        left_s = max(0.0, job.spec.time_limit_s - job.ran_s)
        rest = "" if job.phase.final else f", {span(left_s)} left"
        yield Fact("time limit", f"has run {span(job.ran_s)} of {span(job.spec.time_limit_s)}{rest}")
    if job.promise is not None:
        yield Fact("deadline", deadline_line(job.promise, now_s, eta_s(job)))
    if (left := eta_s(job)) is not None:
        yield Fact("ETA", span(left))


def _workers(job: JobView) -> Iterator[Fact]:
    """Yield the workers, and the last of those that have failed."""
    if job.workers:
        lines = (
            f"{w.worker:<16} {w.server}:{gpus_of(w):<3} {w.phase.value:<9} pid {w.pid or '-'}{_worker_use(w)}{note(w)}"
            for w in job.workers
        )
        yield Fact("workers", f"generation {job.generation}", tuple(lines))
    failed = [worker for worker in job.past_workers if worker.exit_code not in (0, None) and worker.reason != RELEASED]
    ended = (f"{w.worker:<16} {w.server}:{gpus_of(w):<3} ended     {printable(w.reason)}" for w in failed[-3:])
    yield Fact("", "", tuple(ended))


def percent(part: float) -> str:
    return f"{100 * part:.0f} %"


def memory(bytes_: int) -> str:
    """Return "12.5 GiB", "230 MiB"."""
    return f"{bytes_ / (1 << 30):.3g} GiB" if bytes_ >= 1 << 30 else f"{max(1, round(bytes_ / (1 << 20)))} MiB"


def use_texts(job: JobView, now_s: float) -> list[tuple[str, str]]:
    """Return what a job has used, by the samples of agents: GPUs, cores and memory, each with its name."""
    use, found = job.use, []
    if use is None:
        return []
    if use.busy is not None:
        now = f", {percent(job.busy)} now" if job.busy is not None and not job.phase.final else ""
        idle = f", nothing for {span(now_s - job.idle_since_s)}" if job.idle_since_s is not None else ""
        peak = f"; at most {memory(use.gpu_memory_bytes)} on one" if use.gpu_memory_bytes else ""
        found.append(("GPU use", f"{percent(use.busy)} of the time{now}{idle}{peak}"))
    if use.cores is not None:
        asked = f" of {job.spec.cpus:g}" if job.spec.cpus else ""
        found.append(("CPU use", f"{use.cores:.1f}{asked} cores for each worker on average"))
    if use.memory_bytes:
        asked = f" of {memory(job.spec.memory_bytes)}" if job.spec.memory_bytes else ""
        found.append(("memory", f"{memory(use.memory_bytes)}{asked} at most in one worker"))
    return found


def _worker_use(worker: WorkerView) -> str:
    busy = f"  GPU {percent(worker.busy)}" if worker.busy is not None else ""
    peak = f"  {memory(worker.use.memory_bytes)}" if worker.use is not None and worker.use.memory_bytes else ""
    return busy + peak


def gpu_time(spent: GpuSeconds) -> str:
    """Return a job's GPU time, in GPU-seconds or hours."""
    unit_s, unit = (1.0, "GPU-seconds") if spent.held_gpu_s <= FEW_GPU_S else (3600.0, "GPU-hours")
    columns = (
        (spent.used_gpu_s, "used"),
        (spent.idle_gpu_s, "idle"),
        (spent.paused_gpu_s, "paused"),
        (spent.lost_gpu_s, "lost"),
    )
    parts = [f"{gpu_s / unit_s:.1f} {what}" for gpu_s, what in columns if gpu_s / unit_s >= 0.05]
    return f"{spent.held_gpu_s / unit_s:.1f} {unit}: {', '.join(parts)}"


def point_line(point: CurvePoint) -> str:
    """Return one share's throughput, with its source."""
    where = "" if point.servers is None else f"on {point.servers} server{'s' if point.servers > 1 else ''}"
    samples = f"{point.samples_per_s:10.1f} samples/s" if point.samples_per_s is not None else ""
    how = point.source
    if point.age_s is not None:
        how += f", {point.times} time{'s' if point.times > 1 else ''}, {span(point.age_s)} ago"
    return f"{gpu_count(point.share_gpus):<8} {where:<13} {point.steps_per_s:10.2f} steps/s {samples:<20} {how}"


def share_line(job: JobView, now_s: float) -> str:
    """Return the share over time as one line of digits, one for each equal part of the job's life (+ for ten and more)."""
    end = job.finished_s or now_s
    begin = job.shares[0].time_s
    cells = []
    for cell in range(SHARE_CELLS):
        at = begin + (end - begin) * (cell + 0.5) / SHARE_CELLS
        share = [change.share for change in job.shares if change.time_s <= at]
        cells.append("." if not share or not share[-1] else (str(share[-1]) if share[-1] < 10 else "+"))
    return "".join(cells) + f"  ({span(end - begin)})"


USAGE_COLUMNS = tuple(Column(title, right=True) for title in ("USED", "IDLE", "PAUSED", "LOST", "HELD", "USED%"))
FEW_GPU_S = 36_000.0  # sums up to this value are shown in GPU-seconds, greater ones in GPU-hours


def usage_table(rows: Sequence[UsageRow], by: UsageBy) -> Table:
    """Return a usage report, with the sum of all rows in the last one."""
    every = _sum(rows)
    unit_s = _unit_s(every)
    columns = (Column(by.value.upper()), *((Column("USER"),) if by is UsageBy.JOB else ()), *USAGE_COLUMNS)
    cells = [_usage_row(row, by, unit_s) for row in rows]
    if len(rows) > 1:
        cells.append(_usage_row(UsageRow(gpu_seconds=every, user="all", day="all", job=JobId("all")), by, unit_s))
    return Table(columns, cells)


def _usage_row(row: UsageRow, by: UsageBy, unit_s: float) -> Row:
    name = {UsageBy.USER: row.user, UsageBy.DAY: row.day, UsageBy.JOB: row.job}[by]
    spent, held = row.gpu_seconds, row.gpu_seconds.held_gpu_s
    numbers = (spent.used_gpu_s, spent.idle_gpu_s, spent.paused_gpu_s, spent.lost_gpu_s, held)
    shown = [f"{gpu_s / unit_s:.1f}" for gpu_s in numbers]
    users = (Cell(printable(row.user) if row.phase is not None else "-"),) if by is UsageBy.JOB else ()
    percent = f"{100 * spent.used_gpu_s / held:.0f}" if held else "-"
    return Row((Cell(printable(name)), *users, *map(Cell, shown), Cell(percent)))


def usage_line(report: UsageReport, whole_life: bool) -> str:
    """Return the unit and the days of a report's numbers; if the report is empty, that no GPU was held."""
    unit = "GPU-seconds" if _unit_s(_sum(report.rows)) == 1.0 else "GPU-hours"
    what = f"{unit}," if report.rows else "no GPU was held"
    if whole_life:
        return f"{what} since the job was submitted"
    first, last = (time.strftime("%Y-%m-%d", time.gmtime(at)) for at in (report.since_s, report.until_s - 1))
    return f"{what} from {first} to {last} (UTC)"


def _sum(rows: Sequence[UsageRow]) -> GpuSeconds:
    each = [row.gpu_seconds for row in rows]
    return GpuSeconds(
        used_gpu_s=sum(one.used_gpu_s for one in each),
        idle_gpu_s=sum(one.idle_gpu_s for one in each),
        paused_gpu_s=sum(one.paused_gpu_s for one in each),
        lost_gpu_s=sum(one.lost_gpu_s for one in each),
    )


def _unit_s(every: GpuSeconds) -> float:
    return 1.0 if every.held_gpu_s <= FEW_GPU_S else 3600.0
