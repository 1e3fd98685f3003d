"""Validation of a job's specification. The controller repeats it, because not every client has checked."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from ...protocol import images, snapshots
from ...protocol.batches import wrong_in
from ...protocol.limits import (
    MAX_AFTER,
    MAX_ARRAY,
    MAX_BATCH_FACTOR,
    MAX_COMPARE_EVERY,
    MAX_CPUS,
    MAX_GPU_MEMORY_BYTES,
    MAX_GPU_TYPE,
    MAX_GPU_TYPES,
    MAX_GPUS,
    MAX_KEPT_CHECKPOINTS,
    MAX_METRIC_NAME,
    MAX_MODEL,
    MAX_PRIORITY,
    MAX_RAMP_STEPS,
    MAX_RUN_AGAIN,
    MAX_SECRETS,
    MAX_STEPS,
    MAX_STEPS_PER_S,
    MAX_VIRTUAL_WORKERS,
    MIN_CPUS,
    MIN_MEMORY_BYTES,
    MIN_STEPS_PER_S,
)
from ...protocol.model import JobSpec, ResumeFrom, Sharding
from ...protocol.texts import gpu_count, span
from ...protocol.times import LEAST_IDLE_S

MAX_NAME = 40
MAX_USER = 256
MAX_PATH = 4096
MAX_WAIT_S = 1e9
MAX_DATE_S = 1e10  # the year 2286
MAX_ARGUMENTS = 4096
MAX_TEXT_BYTES = 128 << 10  # limit of the command, and of the environment: that of the kernel for one string
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def refusal(spec: JobSpec) -> str:
    """Return the first fault of `spec` as a sentence; "" if there is none."""
    return next(_faults(spec), "")


def _faults(spec: JobSpec) -> Iterator[str]:
    yield from _name_and_command(spec)
    yield from _numbers(spec)
    yield from _gpus(spec)
    yield from _environment(spec)
    yield from _secrets(spec)
    if spec.image and (fault := images.fault_of(spec)):
        yield fault
    if spec.resume is not None:
        yield from _resume(spec.resume)
    if spec.snapshot is not None and (fault := snapshots.fault_of(spec.snapshot)):
        yield fault


def _resume(resume: ResumeFrom) -> Iterator[str]:
    directory = resume.directory
    if bool(resume.job) == bool(directory):
        yield "resume: name either a job or a directory of checkpoints"
    elif directory and (not directory.startswith("/") or "\0" in directory or len(directory) > MAX_PATH):
        yield f"resume: {directory[:200]!r} is not an absolute path of at most {MAX_PATH} characters"
    if not 0 <= resume.step <= MAX_STEPS or len(resume.seeds) > MAX_PATH:
        yield f"resume: step {resume.step} is not allowed: 0 to {MAX_STEPS}"


def _name_and_command(spec: JobSpec) -> Iterator[str]:
    if not _NAME.fullmatch(spec.name) or len(spec.name) > MAX_NAME:
        yield (
            f"name: {spec.name[:80]!r} is not allowed: lower-case letters, digits and '-', not first, "
            f"at most {MAX_NAME} characters"
        )
    if not spec.command or not spec.command[0]:
        yield "command: is empty"
    if len(spec.command) > MAX_ARGUMENTS or sum(len(part.encode()) for part in spec.command) > MAX_TEXT_BYTES:
        yield f"command: is too long: at most {MAX_ARGUMENTS} arguments and {MAX_TEXT_BYTES} bytes"
    if any("\0" in part for part in spec.command):
        yield "command: contains a NUL character"
    if not spec.workdir.startswith("/") or "\0" in spec.workdir:
        yield f"workdir: {spec.workdir[:200]!r} is not an absolute path"
    if len(spec.workdir) > MAX_PATH:
        yield f"workdir: is too long: at most {MAX_PATH} characters"
    if len(spec.user) > MAX_USER:
        yield f"user: {spec.user[:80]!r} is too long: at most {MAX_USER} characters"


def _numbers(spec: JobSpec) -> Iterator[str]:
    gpus, virtual = spec.gpus, spec.virtual_workers
    if gpus.min < 1:
        yield f"gpus.min: {gpus.min} is not allowed: at least 1"
    if gpus.max < gpus.min:
        yield f"gpus: min {gpus.min} is greater than max {gpus.max}"
    if gpus.max > MAX_GPUS:
        yield f"gpus.max: {gpus.max} is not allowed: at most {MAX_GPUS}"
    if virtual > MAX_VIRTUAL_WORKERS:
        yield f"virtual_workers: {virtual} is not allowed: at most {MAX_VIRTUAL_WORKERS}"
    if virtual < gpus.max:
        yield f"virtual_workers: {virtual} is less than gpus.max, {gpus.max}: a GPU would have nothing to do"
    if spec.max_steps is not None and not 1 <= spec.max_steps <= MAX_STEPS:
        yield f"max_steps: {spec.max_steps} is not allowed: 1 to {MAX_STEPS}"
    yield from _deadline(spec)
    yield from _after(spec)
    yield from _array(spec)
    yield from _until(spec)
    yield from _scaling(spec)
    if spec.sharding is Sharding.OPTIMIZER and not spec.determinism.has_equal_gradients:
        yield f"sharding: optimizer needs equal gradients on all workers, unlike determinism: {spec.determinism.value}"
    if not 1 <= spec.compare_every <= MAX_COMPARE_EVERY:
        yield f"compare_every: {spec.compare_every} is not allowed: 1 to {MAX_COMPARE_EVERY}"
    if not 0 < spec.checkpoint.every_s <= MAX_WAIT_S:
        yield f"checkpoint.every: {spec.checkpoint.every_s} s is not allowed: more than 0, at most {MAX_WAIT_S:.0f} s"
    waits = {
        "start_timeout": spec.start_timeout_s,
        "load_timeout": spec.load_timeout_s,
        "step_timeout": spec.step_timeout_s,
        "pause_timeout": spec.pause_timeout_s,
        "checkpoint.save_timeout": spec.checkpoint.save_timeout_s,
        "time": spec.time_limit_s,
        "warn": spec.warn_s,
    }
    idle = {"warn": spec.idle.warn_s, "shrink": spec.idle.shrink_s, "suspend": spec.idle.suspend_s}
    for act, seconds in idle.items():
        if seconds is not None and not LEAST_IDLE_S <= seconds <= MAX_WAIT_S:
            yield f"idle: {act}: {seconds} s is not allowed: {LEAST_IDLE_S:.0f} to {MAX_WAIT_S:.0f} s"
    for field, seconds in waits.items():
        if seconds is not None and not 0 < seconds <= MAX_WAIT_S:
            yield f"{field}: {seconds} s is not allowed: more than 0, at most {MAX_WAIT_S:.0f} s"
    if spec.warn_s is not None and spec.time_limit_s is None:
        yield "warn: goes with time: nothing ends a job without a limit"
    if spec.warn_s is not None and spec.time_limit_s is not None and spec.warn_s >= spec.time_limit_s:
        yield f"warn: {span(spec.warn_s)} before the end is not within the {span(spec.time_limit_s)} of time"
    if not 1 <= spec.checkpoint.keep <= MAX_KEPT_CHECKPOINTS:
        yield f"checkpoint.keep: {spec.checkpoint.keep} is not allowed: 1 to {MAX_KEPT_CHECKPOINTS}"
    if len(spec.model) > MAX_MODEL or "\0" in spec.model:
        yield f"model: {spec.model[:80]!r} is not a name of at most {MAX_MODEL} characters"
    for share, rate in spec.throughput.items():
        if not usable_rate(share, rate):
            yield (
                f"throughput: {rate} steps per second with {gpu_count(share)} is not allowed: "
                f"{MIN_STEPS_PER_S:g} to {MAX_STEPS_PER_S:g}, with 1 to {MAX_GPUS} GPUs"
            )
    if spec.restarts is not None and not 0 <= spec.restarts <= MAX_RUN_AGAIN:
        yield f"restarts: {spec.restarts} is not allowed: 0 to {MAX_RUN_AGAIN}"
    if abs(spec.priority) > MAX_PRIORITY:
        yield f"priority: {spec.priority} is not allowed: {-MAX_PRIORITY} to {MAX_PRIORITY}"


def _scaling(spec: JobSpec) -> Iterator[str]:
    scaling = spec.scaling
    if scaling is None:
        return
    if not 1 <= scaling.max_factor <= MAX_BATCH_FACTOR:
        yield f"scaling.max_factor: {scaling.max_factor} is not allowed: 1 to {MAX_BATCH_FACTOR}"
    if not 0 <= scaling.ramp_steps <= MAX_RAMP_STEPS:
        yield f"scaling.ramp_steps: {scaling.ramp_steps} is not allowed: 0 to {MAX_RAMP_STEPS}"
    yield from wrong_in(scaling.replay or ())


def _until(spec: JobSpec) -> Iterator[str]:
    until = spec.until
    if until is None:
        return
    if not 1 <= len(until.metric) <= MAX_METRIC_NAME:
        yield f"until: {until.metric[:80]!r} is not a name of 1 to {MAX_METRIC_NAME} characters"
    if not math.isfinite(until.bound):
        yield f"until: {until.bound} is not a number that anything could reach"


def _deadline(spec: JobSpec) -> Iterator[str]:
    deadline = spec.deadline
    if deadline is None:
        return
    if (deadline.at_s is None) == (deadline.in_s is None):
        yield "deadline: tell either when (Unix time) or in how many seconds"
    elif deadline.in_s is not None and not 0 < deadline.in_s <= MAX_WAIT_S:
        yield f"deadline: {deadline.in_s} s is not allowed: more than 0, at most {MAX_WAIT_S:.0f} s"
    elif deadline.at_s is not None and not 0 < deadline.at_s <= MAX_DATE_S:
        yield f"deadline: {deadline.at_s} is no Unix time: more than 0, at most {MAX_DATE_S:.0f}"
    if spec.after:
        yield "after: no deadline can be promised to a job that waits for the end of others: leave one of both out"


def _array(spec: JobSpec) -> Iterator[str]:
    array = spec.array
    if array is None:
        return
    if not 1 <= array.size <= MAX_ARRAY or not 0 <= array.index < MAX_WAIT_S:
        yield f"array: index {array.index} of {array.size} jobs is not allowed: at most {MAX_ARRAY} jobs"
    if array.most is not None and not 1 <= array.most < MAX_WAIT_S:
        yield f"array: {array.most} jobs at a time are not allowed: at least 1"
    texts = (array.array, array.name, array.text, *array.values, *array.values.values())
    if not array.array or sum(map(len, texts)) > MAX_PATH:
        yield f"array: its names and values are longer than {MAX_PATH} characters, or it has none"


def _after(spec: JobSpec) -> Iterator[str]:
    if len(spec.after) > MAX_AFTER:
        yield f"after: {len(spec.after)} jobs are too many: at most {MAX_AFTER}"
    for after in spec.after:
        if not after.job or len(after.job) > MAX_USER:
            yield f"after: {after.job[:80]!r} is not the name of a job"


def _gpus(spec: JobSpec) -> Iterator[str]:
    each, gpus = spec.gpus_per_server, spec.gpus
    if each is not None and not 1 <= each <= MAX_GPUS:
        yield f"gpus.per_server: {each} is not allowed: 1 to {MAX_GPUS}"
    elif each is not None and (gpus.min % each or gpus.max % each):
        yield f"gpus.per_server: {gpus.min} and {gpus.max} GPUs are not both multiples of {each} on each server"
    if len(spec.gpu_types) > MAX_GPU_TYPES:
        yield f"gpus.type: {len(spec.gpu_types)} types are too many: at most {MAX_GPU_TYPES}"
    for word in spec.gpu_types:
        if len(word) > MAX_GPU_TYPE or not word.isprintable() or not any(c.isalnum() for c in word):
            yield f"gpus.type: {word[:80]!r} is not a type of at most {MAX_GPU_TYPE} characters, such as A100"
    if spec.cpus and not MIN_CPUS <= spec.cpus <= MAX_CPUS:
        yield f"cpus: {spec.cpus:g} cores are not allowed: {MIN_CPUS:g} to {MAX_CPUS:g}"
    if spec.memory_bytes and not MIN_MEMORY_BYTES <= spec.memory_bytes <= MAX_GPU_MEMORY_BYTES:
        yield f"memory: {spec.memory_bytes} bytes are not allowed: {MIN_MEMORY_BYTES} to {MAX_GPU_MEMORY_BYTES}"
    if not 0 <= spec.gpu_memory_bytes <= MAX_GPU_MEMORY_BYTES:
        yield f"gpus.memory: {spec.gpu_memory_bytes} bytes are not allowed: 0 to {MAX_GPU_MEMORY_BYTES}"


def usable_rate(share: int, rate: float) -> bool:
    """Return whether the scheduler can use this rate (steps per second) with this number of GPUs."""
    return 1 <= share <= MAX_GPUS and MIN_STEPS_PER_S <= rate <= MAX_STEPS_PER_S


def _secrets(spec: JobSpec) -> Iterator[str]:
    if len(spec.secrets) > MAX_SECRETS:
        yield f"secrets: {len(spec.secrets)} are too many: at most {MAX_SECRETS}"
    for name, path in spec.secrets.items():
        if not _VARIABLE.fullmatch(name) or name.startswith("ELASTICD_"):
            yield f"secrets: {name[:80]!r} is not the name of a variable, or is the cluster's"
        if name in spec.env:
            yield f"secrets: {name} is in env, too"
        if not path.startswith("/") or "\0" in path or len(path) > MAX_PATH:
            yield f"secrets.{name}: {path[:200]!r} is not an absolute path of at most {MAX_PATH} characters"


def _environment(spec: JobSpec) -> Iterator[str]:
    for name, value in spec.env.items():
        if not _VARIABLE.fullmatch(name):
            yield f"env: {name[:80]!r} is not the name of a variable"
        if "\0" in value:
            yield f"env: the value of {name} contains a NUL character"
    if sum(len(name.encode()) + len(value.encode()) for name, value in spec.env.items()) > MAX_TEXT_BYTES:
        yield f"env: is too long: at most {MAX_TEXT_BYTES} bytes"
