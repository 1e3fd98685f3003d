"""A job as a job file: printed by `submit --dry-run`, and accepted by `submit` as the same job. Pure, the inverse of
`jobfile`.

All defaults that `jobfile` would add are written out, captured environment variables included, so that the file means
the same job wherever it is submitted. Empty fields are omitted. So is `restarts` of a job that calls `elastic.join()`,
since its restarts are not limited by a number.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from types import MappingProxyType

import yaml

from ..protocol.limits import COMPARE_EVERY
from ..protocol.model import Deadline, Idle, JobSpec, OnDivergence, Sharding
from ..protocol.times import LOAD_TIMEOUT_S, PAUSE_TIMEOUT_S
from . import jobscaling
from .jobgpus import UNITS

WORDS_OF_PRIORITY = {-10: "low", 0: "normal", 10: "high"}
SPANS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def text_of(spec: JobSpec, more: Mapping[str, object] = MappingProxyType({})) -> str:
    """Return the job file as text, with fields that the job itself does not have."""
    return yaml.safe_dump({**document_of(spec), **more}, sort_keys=False, allow_unicode=True, width=float("inf"))


def document_of(spec: JobSpec) -> dict[str, object]:
    """Return the job's fields, as `jobfile` reads them."""
    gpus: dict[str, object] = {"min": spec.gpus.min, "max": spec.gpus.max}
    if spec.gpu_types:
        gpus["type"] = list(spec.gpu_types)
    if spec.gpu_memory_bytes:
        gpus["memory"] = memory_text(spec.gpu_memory_bytes)
    if spec.gpus_per_server is not None:
        gpus["per_server"] = spec.gpus_per_server
    checkpoint: dict[str, object] = {"every": span_text(spec.checkpoint.every_s), "keep": spec.checkpoint.keep}
    if spec.checkpoint.save_timeout_s is not None:
        checkpoint["save_timeout"] = span_text(spec.checkpoint.save_timeout_s)
    until = spec.until
    told: dict[str, object] = {
        "name": spec.name,
        "command": list(spec.command),
        "gpus": gpus,
        "cpus": spec.cpus or None,
        "memory": memory_text(spec.memory_bytes) if spec.memory_bytes else None,
        "image": spec.image or None,
        "virtual_workers": spec.virtual_workers,
        "max_steps": spec.max_steps,
        "until": None if until is None else f"{until.metric} {'>=' if until.at_least else '<='} {until.bound!r}",
        **({} if spec.deadline is None else _deadline(spec.deadline)),
        "checkpoint": checkpoint,
        "determinism": spec.determinism.value,
        "compare_every": None if spec.compare_every == COMPARE_EVERY else spec.compare_every,
        "on_divergence": None if spec.on_divergence is OnDivergence.REPLACE else spec.on_divergence.value,
        "sharding": None if spec.sharding is Sharding.NONE else spec.sharding.value,
        **jobscaling.document_of(spec.scaling),
        "priority": WORDS_OF_PRIORITY.get(spec.priority, spec.priority),
        "model": spec.model or None,
        "throughput": spec.throughput or None,
        "processes": spec.processes.value,
        "restarts": spec.restarts,
        "time": None if spec.time_limit_s is None else _limit_text(spec.time_limit_s),
        "warn": None if spec.warn_s is None else span_text(spec.warn_s),
        "idle": _idle_text(spec.idle) or None,
        "notify": [each.value for each in spec.notify] or None,
        "after": [f"{after.job}:any" if after.any else str(after.job) for after in spec.after] or None,
        "start_timeout": span_text(spec.start_timeout_s) if spec.must_join else None,
        "load_timeout": None if spec.load_timeout_s == LOAD_TIMEOUT_S else span_text(spec.load_timeout_s),
        "step_timeout": None if spec.step_timeout_s is None else span_text(spec.step_timeout_s),
        "pause_timeout": None if spec.pause_timeout_s == PAUSE_TIMEOUT_S else span_text(spec.pause_timeout_s),
        "workdir": spec.workdir,
        "snapshot": True if spec.snapshot is not None else None,
        "env": dict(spec.env) or None,
        "secrets": dict(spec.secrets) or None,
        "resume": None if spec.resume is None else spec.resume.job or spec.resume.directory,
        "with_new_code": True if spec.resume is not None and spec.resume.any_code else None,
    }
    return {field: value for field, value in told.items() if value is not None}


def _deadline(deadline: Deadline) -> dict[str, object]:
    soft = {"soft": True} if deadline.soft else {}
    if deadline.at_s is None:
        return {"deadline": span_text(deadline.in_s or 0.0), **soft}
    return {"deadline": datetime.datetime.fromtimestamp(deadline.at_s, datetime.UTC).isoformat(" "), **soft}


def span_text(seconds: float) -> str | float:
    """Return a duration in the usual notation, such as 1h30m; a duration with a fraction of a second as a number."""
    if seconds != int(seconds):
        return seconds
    left, parts = int(seconds), []
    for size, letter in SPANS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{letter}")
    return "".join(parts)


def _limit_text(seconds: float) -> str:
    """Return a duration with units, as limits require."""
    return f"{seconds}s" if isinstance(span := span_text(seconds), float) else str(span)


def _idle_text(idle: Idle) -> str:
    times = {"warn": idle.warn_s, "shrink": idle.shrink_s, "suspend": idle.suspend_s}
    return ", ".join(f"{act} {_limit_text(seconds)}" for act, seconds in times.items() if seconds is not None)


def memory_text(bytes_: int) -> str:
    """Return an amount of memory in the largest unit that represents it exactly."""
    for unit, size in sorted(UNITS.items(), key=lambda each: -each[1]):
        number = f"{bytes_ / size:.3f}".rstrip("0").rstrip(".")
        if round(float(number) * size) == bytes_ and float(number) >= 1:
            return f"{number} {unit}"
    return f"{bytes_ / 1000:.3f} KB"
