"""`elasticctl report JOB`: the use of a job's GPUs and time, and up to three changes that would save most. Pure.

All numbers cover the whole life of the job, as recorded by the controller (docs/accounting.md); real use is known from
samples of the agents. A note is shown only if its change would save a stated part; the note that would save most comes
first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from ..protocol.messages import JobView
from ..protocol.texts import gpu_count, memory_text
from .formatting import span
from .render import memory, percent, use_texts

GIB = 1 << 30
MOST_NOTES = 3
WORTH = 0.05  # least part of the GPU-seconds, or of the time, that a note is about
LONG_IDLE = 0.25  # WORTH for starting, loading and saving, which every job needs
POOR = 0.5  # scaling efficiency below which more GPUs are a waste
MEASURED = ("measured", "history")  # sources of throughput that are no guess
OUT_OF_MEMORY = "out of memory"
BUSY = 0.5  # a note is shown if GPUs compute for less than this part of the time
NOTHING = 0.01
SAMPLED_S = 300.0  # least sampled GPU-seconds or worker-seconds for a conclusion
FAR = 2.0  # a request of more than this many times the peak, or the mean, is too large
ROOM = 1.25  # the proposed request, as a multiple of the peak


@dataclass(frozen=True)
class JobReport:
    """Times of a job, in seconds or GPU-seconds, and notes, each with the part of the time that it could save."""

    queued_s: float  # seconds before the job first had GPUs
    interrupted_s: float  # later seconds without GPUs: preempted, paused, between two attempts
    ran_s: float
    mean_gpus: float  # mean number of GPUs while the job trained, or its command ran
    notes: tuple[str, ...]


def report_of(view: JobView, now_s: float) -> JobReport:
    """Return the report on a job."""
    until_s = view.finished_s if view.finished_s is not None else now_s
    first_s = next((change.time_s for change in view.shares if change.share), view.started_s)
    queued_s = max(0.0, (first_s if first_s is not None else until_s) - view.submitted_s)
    interrupted_s = max(0.0, until_s - view.submitted_s - queued_s - view.ran_s)
    spent = view.gpu_seconds
    trained_gpu_s = spent.used_gpu_s + spent.paused_gpu_s + spent.lost_gpu_s  # without idle time before training
    mean = min(trained_gpu_s / view.ran_s, float(view.peak_gpus)) if view.ran_s > 0 else 0.0
    found = sorted(_notes(view, queued_s, interrupted_s), key=lambda each: -each[0])
    return JobReport(queued_s, interrupted_s, view.ran_s, mean, tuple(text for _, text in found[:MOST_NOTES]))


def _notes(view: JobView, queued_s: float, interrupted_s: float) -> list[tuple[float, str]]:
    """Return notes, each with the part of the GPU-seconds or of the time that it is about."""
    spec, spent = view.spec, view.gpu_seconds
    held = spent.held_gpu_s
    whole_s = queued_s + interrupted_s + view.ran_s
    found: list[tuple[float, str]] = []

    def part(seconds: float, of: float, least: float = WORTH) -> float:
        return seconds / of if of > 0 and seconds / of >= least else 0.0

    if lost := part(spent.lost_gpu_s, held):
        often = (
            f"checkpoint more often than every {span(spec.checkpoint.every_s)} (--checkpoint-every)"
            if view.elastic
            else "let it call elastic.join(), or save and load its own state"
        )
        found.append((lost, f"{percent(lost)} of its GPU time was done again after {view.restarts} restarts: {often}"))
    if idle := part(spent.idle_gpu_s, held, LONG_IDLE):
        found.append(
            (
                idle,
                f"{percent(idle)} of its GPU time went into starting, loading, saving and waiting: load less before training",
            )
        )
    if paused := part(spent.paused_gpu_s, held):
        narrow = f"a narrower range than {spec.gpus.min}:{spec.gpus.max} (--gpus) is resized less often"
        found.append(
            (
                paused,
                f"{percent(paused)} of its GPU time stood still in {len(view.resizes)} or more resizes: {narrow}",
            )
        )
    if (queued := part(queued_s, whole_s, LONG_IDLE)) and spec.gpus.min > 1:
        found.append(
            (
                queued,
                f"it waited {span(queued_s)} for {gpu_count(spec.gpus.min)}: a smaller minimum (--gpus) starts earlier",
            )
        )
    if view.elastic and (gone := part(interrupted_s, whole_s, LONG_IDLE)):
        found.append(
            (gone, f"it was without GPUs for {span(interrupted_s)} after its start: --priority, or a deadline")
        )
    if wasted := _wasted(view):
        found.append(wasted)
    found += _of_use(view)
    ends = [worker for worker in view.past_workers if worker.reason.startswith(OUT_OF_MEMORY)]
    if ends:
        asked = memory_text(spec.memory_bytes) if spec.memory_bytes else "no amount"
        found.append(
            (1.0, f"{len(ends)} of its workers ran out of memory; each asks for {asked}: ask for more (--memory)")
        )
    return found


def _of_use(view: JobView) -> list[tuple[float, str]]:
    """Return notes on resources that the job requested and, by the samples of agents, did not use."""
    spec, use = view.spec, view.use
    if use is None:
        return []
    found: list[tuple[float, str]] = []
    sampled = use.wall_s >= SAMPLED_S
    if use.busy is not None and use.busy < BUSY and use.gpu_s >= SAMPLED_S:
        instead = "more workers for its loaders, a larger micro-batch, or fewer GPUs (--gpus)"
        if use.busy < NOTHING:
            instead = "does it use them at all?"
        elif spec.cpus and use.cores is not None and use.cores >= 0.9 * spec.cpus:
            instead = f"it uses all of its {spec.cpus:g} cores: ask for more (--cpus)"
        found.append((1 - use.busy, f"its GPUs computed for {percent(use.busy)} of the time: {instead}"))
    if sampled and use.memory_bytes and spec.memory_bytes - FAR * use.memory_bytes >= GIB:
        enough = max(1, math.ceil(ROOM * use.memory_bytes / GIB))
        asked = f"each worker asked for {memory_text(spec.memory_bytes)} and used {memory(use.memory_bytes)} at most"
        found.append((WORTH, f"{asked}: --memory {enough}GiB leaves the rest to others"))
    if sampled and use.cores is not None and spec.cpus - FAR * use.cores >= 1:
        enough = max(1, math.ceil(ROOM * use.cores))
        asked = f"each worker asked for {spec.cpus:g} cores and used {use.cores:.1f} on average"
        found.append((WORTH, f"{asked}: --cpus {enough} leaves the rest to others"))
    return found


def _wasted(view: JobView) -> tuple[float, str] | None:
    """Return a note if fewer GPUs would have trained nearly as fast, by the measured throughput."""
    measured = [point for point in view.curve if point.source in MEASURED and point.share_gpus <= view.peak_gpus]
    rates = {point.share_gpus: point.steps_per_s for point in measured if point.steps_per_s > 0}
    most = max(rates, default=0)
    fewer = [share for share in rates if share < most]
    if not fewer:
        return None
    half = max(fewer)
    gain = rates[most] / rates[half] - 1
    if gain >= POOR * (most / half - 1):
        return None
    instead = f"with --gpus {view.spec.gpus.min}:{half} others have the rest"
    text = f"{gpu_count(most)} trained {1 + gain:.2f} times as fast as {half}: {instead}"
    return 1 - half * rates[most] / (most * rates[half]), text


def facts(view: JobView, found: JobReport, now_s: float) -> Iterator[tuple[str, str]]:
    """Yield the parts of the report for people, each with its label."""
    spec, spent = view.spec, view.gpu_seconds
    held = spent.held_gpu_s
    asked = f"asked for {spec.gpus.min} to {spec.gpus.max}"
    yield "allocation", f"{found.mean_gpus:.1f} GPUs on average, {view.peak_gpus} at most; {asked}"
    for name, seconds, what in (
        ("used", spent.used_gpu_s, "trained, or its command ran"),
        ("idle", spent.idle_gpu_s, "started, loaded, saved, waited"),
        ("paused", spent.paused_gpu_s, "stood still in resizes"),
        ("lost", spent.lost_gpu_s, f"done again after {view.restarts} restarts"),
    ):
        if held > 0:
            yield name, f"{percent(seconds / held):>5}  {seconds / 3600:.2f} GPU-hours: {what}"
    without = f"{span(found.interrupted_s)} without after its start"
    yield "time", f"{span(found.queued_s)} in the queue, {span(found.ran_s)} with GPUs, {without}"
    yield from use_texts(view, now_s)
    for note in found.notes:
        yield "note", note


def lines(view: JobView, found: JobReport, now_s: float) -> list[str]:
    """Return the report for people, below the job's outcome."""
    return [f"  {label:<11} {text}" for label, text in facts(view, found, now_s)]


def document(view: JobView, found: JobReport) -> dict[str, Any]:
    """Return the report for programs."""
    return {
        "job": view.job,
        "phase": view.phase.value,
        "queued_s": found.queued_s,
        "interrupted_s": found.interrupted_s,
        "ran_s": found.ran_s,
        "mean_gpus": found.mean_gpus,
        "peak_gpus": view.peak_gpus,
        "restarts": view.restarts,
        "used_gpu_s": view.gpu_seconds.used_gpu_s,
        "idle_gpu_s": view.gpu_seconds.idle_gpu_s,
        "paused_gpu_s": view.gpu_seconds.paused_gpu_s,
        "lost_gpu_s": view.gpu_seconds.lost_gpu_s,
        "use": msgspec.to_builtins(view.use),
        "busy": view.use.busy if view.use is not None else None,
        "notes": list(found.notes),
    }
