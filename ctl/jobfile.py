"""From what a user writes (a job file, options, a command line) to a JobSpec, with one sentence for each mistake."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..protocol.errors import UserError
from ..protocol.model import CheckpointSpec, Determinism, GpuRange, JobSpec
from ..runtime.config import load

NAME = re.compile(r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")
DURATION = re.compile(r"^(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?$")
PRIORITIES = {"low": -10, "normal": 0, "high": 10}

# What of the submitter's environment travels with a job; everything else a job needs stands in its file.
CAPTURED = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "LD_LIBRARY_PATH", "HOME", "LANG", "USER")

# Known fields of later versions: refused with a reason instead of being called unknown.
NOT_YET = ("deadline", "soft", "scaling", "type", "image")


class _Checkpoint(msgspec.Struct, forbid_unknown_fields=True):
    every: str | int | float | None = None
    keep: int | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """A job file as it is written."""

    command: str | list[str] | None = None
    name: str | None = None
    gpus: Any = None
    virtual_workers: int | None = None
    max_steps: int | None = None
    checkpoint: _Checkpoint | None = None
    determinism: str | None = None
    priority: str | int | None = None
    env: dict[str, str | int | float] | None = None
    workdir: str | None = None
    deadline: Any = None
    soft: Any = None
    scaling: Any = None
    type: Any = None
    image: Any = None


class Overrides(msgspec.Struct, frozen=True):
    """Options of the command line; they win over the file."""

    name: str | None = None
    gpus: str | None = None
    virtual_workers: int | None = None
    max_steps: int | None = None
    priority: str | None = None
    env: tuple[str, ...] = ()
    checkpoint_every: str | None = None
    determinism: str | None = None
    command: tuple[str, ...] = ()


def build(file: Path | None, options: Overrides, cwd: Path, environ: Mapping[str, str]) -> JobSpec:
    """The job that `file` and `options` describe. Raises UserError, naming the file or option, the field and what is allowed."""
    source = str(file) if file is not None else "the command line"
    written = load(file, _File, UserError) if file is not None else _File()
    for field in NOT_YET:
        if getattr(written, field) is not None:
            raise UserError(f"{source}: {field}: this version does not support it yet")
    command = _command(source, options.command or written.command)
    workdir = _workdir(source, written.workdir, cwd)
    env = _environment(source, written.env or {}, options.env, environ)
    _check_program(source, command, workdir, env)
    gpus = _gpus(source, options.gpus if options.gpus is not None else written.gpus)
    checkpoint = written.checkpoint or _Checkpoint()
    every = options.checkpoint_every if options.checkpoint_every is not None else checkpoint.every
    return JobSpec(
        name=_name(source, options.name or written.name or _default_name(file, command)),
        command=command,
        gpus=gpus,
        virtual_workers=_virtual_workers(source, options.virtual_workers or written.virtual_workers, gpus),
        workdir=str(workdir),
        env=env,
        max_steps=_at_least(source, "max_steps", options.max_steps or written.max_steps, 1),
        checkpoint=CheckpointSpec(
            every_s=600.0 if every is None else duration_s(every, f"{source}: checkpoint.every"),
            keep=_at_least(source, "checkpoint.keep", checkpoint.keep, 1) or 2,
        ),
        determinism=_determinism(source, options.determinism or written.determinism),
        priority=_priority(source, options.priority if options.priority is not None else written.priority),
        user=environ.get("USER", ""),
    )


def duration_s(value: str | float, where: str) -> float:
    """Seconds of "90s", "10m", "1h30m", "2d", or of a plain number. Raises UserError naming `where`."""
    if isinstance(value, int | float):
        seconds = float(value)
    else:
        match = DURATION.match(value.strip())
        if match is None or not any(match.groups()):
            try:
                seconds = float(value)
            except ValueError:
                raise UserError(f"{where}: {value!r} is not a duration such as 90s, 10m or 1h30m") from None
        else:
            days, hours, minutes, rest = (float(part or 0) for part in match.groups())
            seconds = days * 86400 + hours * 3600 + minutes * 60 + rest
    if not 0 < seconds < 1e9:
        raise UserError(f"{where}: {value!r} is not a positive duration")
    return seconds


def _command(source: str, given: str | Sequence[str] | None) -> tuple[str, ...]:
    if not given:
        raise UserError(f"{source}: command: missing; say what to run, such as `python train.py`")
    if isinstance(given, str):
        try:
            parts = shlex.split(given)
        except ValueError as error:
            raise UserError(f"{source}: command: {error}") from None
    else:
        parts = list(given)
    if not parts or not parts[0]:
        raise UserError(f"{source}: command: is empty")
    return tuple(parts)


def _default_name(file: Path | None, command: Sequence[str]) -> str:
    """The job file's directory or name, else the script's."""
    if file is not None:
        stem = file.resolve().parent.name if file.stem == "job" else file.stem
    else:
        script = next((part for part in command if part.endswith(".py")), command[0])
        path = Path(script)
        stem = path.resolve().parent.name if path.stem == "train" and path.parent.name else path.stem
    cleaned = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:40].strip("-")
    return cleaned or "job"


def _name(source: str, name: str) -> str:
    if not NAME.match(name):
        raise UserError(f"{source}: name: {name!r} must be 1 to 40 of a-z, 0-9 and -, not beginning or ending with -")
    return name


def _gpus(source: str, given: Any) -> GpuRange:
    low, high = _gpu_bounds(source, given)
    if low < 1:
        raise UserError(f"{source}: gpus: the minimum is {low}; it must be at least 1")
    if high < low:
        raise UserError(f"{source}: gpus: the maximum {high} is less than the minimum {low}")
    if high > 65536:
        raise UserError(f"{source}: gpus: the maximum {high} is over the limit of 65536")
    return GpuRange(min=low, max=high)


def _gpu_bounds(source: str, given: Any) -> tuple[int, int]:
    allowed = "a number, or a range such as 1:8 (in a file: {min: 1, max: 8})"
    match given:
        case None:
            return 1, 1
        case bool():
            raise UserError(f"{source}: gpus: {given!r} is not {allowed}")
        case int():
            return given, given
        case str():
            parts = given.split(":")
            if len(parts) > 2 or not all(re.fullmatch(r"-?\d+", part) for part in parts):
                raise UserError(f"{source}: gpus: {given!r} is not {allowed}")
            return int(parts[0]), int(parts[-1])
    if not isinstance(given, dict):
        raise UserError(f"{source}: gpus: {given!r} is not {allowed}")
    unknown = sorted(map(str, set(given) - {"min", "max"}))
    if unknown:
        raise UserError(f"{source}: gpus: unknown field {unknown[0]!r}; known are min and max")
    for key, value in given.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise UserError(f"{source}: gpus.{key}: {value!r} is not a whole number")
    if "max" not in given:
        raise UserError(f"{source}: gpus: max is missing")
    return given.get("min", 1), given["max"]


def _virtual_workers(source: str, given: int | None, gpus: GpuRange) -> int:
    count = gpus.max if given is None else given
    if count < gpus.max:
        raise UserError(
            f"{source}: virtual_workers: {count} is less than gpus.max ({gpus.max}); a GPU needs at least one each"
        )
    return count


def _at_least(source: str, field: str, value: int | None, least: int) -> int | None:
    if value is not None and value < least:
        raise UserError(f"{source}: {field}: is {value}; it must be at least {least}")
    return value


def _determinism(source: str, given: str | None) -> Determinism:
    try:
        return Determinism(given or "elastic")
    except ValueError:
        known = ", ".join(level.value for level in Determinism)
        raise UserError(f"{source}: determinism: {given!r} is not one of {known}") from None


def _priority(source: str, given: str | int | None) -> int:
    if given is None:
        return 0
    if isinstance(given, int):
        return given
    if given in PRIORITIES:
        return PRIORITIES[given]
    if re.fullmatch(r"-?\d{1,6}", given):
        return int(given)
    raise UserError(f"{source}: priority: {given!r} is not low, normal, high or a whole number")


def _environment(
    source: str, written: Mapping[str, Any], options: Sequence[str], environ: Mapping[str, str]
) -> dict[str, str]:
    env = {key: environ[key] for key in CAPTURED if key in environ}
    env.update({key: str(value) for key, value in written.items()})
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise UserError(f"--env {option}: must be NAME=VALUE")
        env[key] = value
    for key in env:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
            raise UserError(f"{source}: env: {key!r} is not a name of a variable")
        if key.startswith("ELASTICD_"):
            raise UserError(f"{source}: env: {key} is set by the cluster; choose another name")
    return env


def _workdir(source: str, given: str | None, cwd: Path) -> Path:
    workdir = (cwd / Path(given).expanduser()) if given else cwd
    if not workdir.is_dir():
        raise UserError(f"{source}: workdir: {workdir} is not a directory")
    return workdir.resolve()


def _check_program(source: str, command: Sequence[str], workdir: Path, env: Mapping[str, str]) -> None:
    program = command[0]
    found = (workdir / program).exists() if os.sep in program else shutil.which(program, path=env.get("PATH"))
    if not found:
        raise UserError(f"{source}: command: there is no program {program!r}")
    scripts = [part for part in command[1:] if part.endswith(".py")]
    if scripts and not (workdir / scripts[0]).is_file():
        raise UserError(f"{source}: command: there is no file {scripts[0]} in {workdir}")
