"""Conversion of a user's input (a job file, options, a command line) into a JobSpec, with one sentence for each
mistake.
"""

from __future__ import annotations

import datetime
import difflib
import enum
import math
import os
import pwd
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..protocol import images, secrets
from ..protocol.durations import duration_s, idle_of
from ..protocol.errors import UserError
from ..protocol.limits import (
    COMPARE_EVERY,
    MAX_COMPARE_EVERY,
    MAX_GPUS,
    MAX_KEPT_CHECKPOINTS,
    MAX_MODEL,
    MAX_PRIORITY,
    MAX_RUN_AGAIN,
    MAX_STEPS,
    MAX_STEPS_PER_S,
    MAX_VIRTUAL_WORKERS,
    MIN_STEPS_PER_S,
    PRIORITIES,
)
from ..protocol.model import (
    CAPTURED_VARIABLES,
    NEVER_IDLE,
    After,
    BatchChange,
    CheckpointSpec,
    Deadline,
    Determinism,
    GpuRange,
    JobId,
    JobSpec,
    Notify,
    OnDivergence,
    Processes,
    Sharding,
    Until,
)
from ..protocol.times import IMAGE_START_TIMEOUT_S, LOAD_TIMEOUT_S, PAUSE_TIMEOUT_S, START_TIMEOUT_S
from ..runtime.config import convert, load_yaml
from . import arrays, aswritten, commands, resuming, shellwords
from .batchscripts import slurm_time_s
from .jobgpus import GpuOptions, amounts, wanted_gpus
from .jobscaling import wanted_scaling

E = TypeVar("E", bound=enum.Enum)
Wait = TypeVar("Wait", float, None)

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}[T ]")

# msgspec's message for a value of another type, and the usual words for these types.
WRONG_KIND = re.compile(r"[Ee]xpected `(?P<allowed>[^`]+)`, got `(?P<got>[^`]+)`")
KINDS = {
    "object": "fields",
    "array": "a list",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "nothing",
}

# Fields of SkyPilot, dstack, Kubernetes and Slurm's REST interface, and the corresponding ones of a job file.
OTHER_FIELDS = {
    "accelerators": "gpus",
    "apiVersion": "`command: python train.py`, `image: NAME`, and what else the job needs",
    "commands": "command",
    "container": "image",
    "docker": "image",
    "image_id": "image",
    "envs": "env",
    "nodes": "gpus: {max: 8, per_server: 4}",
    "num_nodes": "gpus: {max: 8, per_server: 4}",
    "resources": "gpus",
    "run": "command",
    "script": "command",
    "setup": "done before the submission: the job runs in the environment that is active then",
    "type": "`command: python train.py` and what else the job needs",
    "working_dir": "workdir",
}


class _Checkpoint(msgspec.Struct, forbid_unknown_fields=True):
    every: str | int | float | None = None
    keep: int | None = None
    save_timeout: str | int | float | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """A job file, field by field."""

    command: str | list[str] | None = None
    name: str | None = None
    gpus: Any = None
    cpus: Any = None
    memory: Any = None
    image: str | None = None
    virtual_workers: int | None = None
    max_steps: int | None = None
    until: str | None = None
    deadline: Any = None
    soft: bool | None = None
    checkpoint: _Checkpoint | None = None
    determinism: str | None = None
    compare_every: int | None = None
    on_divergence: str | None = None
    sharding: str | None = None
    priority: str | int | None = None
    model: str | None = None
    throughput: Any = None
    env: dict[str, Any] | None = None
    secrets: dict[str, Any] | None = None
    workdir: str | None = None
    snapshot: bool | None = None
    processes: str | None = None
    restarts: int | None = None
    notify: str | list[str] | None = None
    idle: str | None = None
    after: str | list[str] | None = None
    array: str | int | None = None
    sweep: Any = None
    time: str | int | float | None = None
    warn: str | int | float | None = None
    start_timeout: str | int | float | None = None
    load_timeout: str | int | float | None = None
    step_timeout: str | int | float | None = None
    pause_timeout: str | int | float | None = None
    resume: str | None = None
    with_new_code: bool | None = None
    scaling: Any = None
    replay_batches: Any = None


class Overrides(msgspec.Struct, frozen=True):
    """Options of the command line; they take precedence over the file."""

    name: str | None = None
    gpus: GpuOptions = GpuOptions()
    cpus: float | None = None
    memory: str | None = None
    image: str | None = None
    virtual_workers: int | None = None
    max_steps: int | None = None
    until: str | None = None
    deadline: str | None = None
    soft: bool | None = None
    priority: str | None = None
    env: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    checkpoint_every: str | None = None
    determinism: str | None = None
    processes: str | None = None
    restarts: int | None = None
    notify: str | None = None
    after: tuple[str, ...] = ()
    array: str | None = None
    sweep: Path | None = None
    time: str | None = None
    warn: str | None = None
    snapshot: bool | None = None
    replay_batches: tuple[BatchChange, ...] | None = None
    command: tuple[str, ...] = ()


def build(
    file: Path | None,
    options: Overrides,
    cwd: Path,
    environ: Mapping[str, str],
    doubt: Callable[[str], None] | None = None,
    snapshot: Callable[[JobSpec], JobSpec] | None = None,
) -> JobSpec:
    """Return the job that `file` and `options` describe. Raises UserError: file or option, field, value found, values
    allowed.

    `doubt` receives the modules that the job's interpreter lacks here but may have on the servers. None: the servers
    are this machine, and such a job is refused. `snapshot` turns a job that is to run in a snapshot into one with it.
    """
    source = str(file) if file is not None else "the command line"
    written = _read(file) if file is not None else _File()

    def pick(field: str, option: object, in_file: object) -> tuple[str, Any]:
        """Return a description of where `field` is set, and its value."""
        if option is not None:
            return f"--{field.replace('_', '-').replace('.', '-')}", option
        return f"{source}: {field}", in_file

    def wait_s(field: str, in_file: str | float | None, default: Wait) -> float | Wait:
        return default if in_file is None else duration_s(in_file, f"{source}: {field}")

    command = _command(f"{source}: command", options.command or written.command, bool(options.command))
    workdir = _workdir(f"{source}: workdir", written.workdir, cwd, file)
    image = _image(*pick("image", options.image, written.image))
    # Paths of this machine's programs mean nothing in a container
    env = _environment(f"{source}: env", written.env or {}, options.env, {} if image else environ)
    if not image:
        _check_program(f"{source}: command", command, workdir, env)
    elif not os.path.isabs(commands.script_of(command)):  # an absolute path may be one in the image
        _check_script(f"{source}: command", command, workdir)
    if image and not images.mountable(str(workdir)):
        raise UserError(
            f"{source}: workdir: {workdir} cannot be mounted in a container: it is the root, or has a comma, a colon or a "
            "quote in its name"
        )
    is_chosen = options.gpus.gpus is not None or written.gpus is not None
    if isinstance(written.gpus, dict) and options.gpus.gpus is None:
        is_chosen = "max" in written.gpus
    gpus = commands.gpus_for(command, wanted_gpus(f"{source}: gpus", written.gpus, options.gpus), is_chosen)
    processes = _processes(*pick("processes", options.processes, written.processes), command)
    restarts = _within(*pick("restarts", options.restarts, written.restarts), 0, MAX_RUN_AGAIN)
    if not image and (lacking := commands.lacks(command, workdir, env, here=doubt is None)):
        if doubt is None:
            raise UserError(f"{source}: command: {lacking}")
        doubt(lacking)
    checkpoint = written.checkpoint or _Checkpoint()
    where_every, every = pick("checkpoint.every", options.checkpoint_every, checkpoint.every)
    time, warn = pick("time", options.time, written.time), pick("warn", options.warn, written.warn)
    if warn[1] is not None and time[1] is None:
        raise UserError(f"{warn[0]}: goes with --time: nothing ends a job without a limit")
    cpus, memory_bytes = amounts(
        *pick("cpus", options.cpus, written.cpus), *pick("memory", options.memory, written.memory)
    )
    where_name, name = pick("name", options.name, written.name)
    spec = JobSpec(
        name=_name(where_name, name if name is not None else _default_name(file, command)),
        command=command,
        gpus=gpus.range,
        virtual_workers=_virtual_workers(
            *pick("virtual_workers", options.virtual_workers, written.virtual_workers), gpus.range
        ),
        workdir=str(workdir),
        env=env,
        secrets=_secrets(f"{source}: secrets", written.secrets or {}, options.secrets, env, cwd, file),
        max_steps=_within(*pick("max_steps", options.max_steps, written.max_steps), 1, MAX_STEPS),
        until=_until(*pick("until", options.until, written.until)),
        deadline=deadline_of(
            *pick("deadline", options.deadline, written.deadline), *pick("soft", options.soft, written.soft)
        ),
        checkpoint=CheckpointSpec(
            every_s=600.0 if every is None else duration_s(every, where_every),
            keep=_within(f"{source}: checkpoint.keep", checkpoint.keep, 1, MAX_KEPT_CHECKPOINTS) or 2,
            save_timeout_s=wait_s("checkpoint.save_timeout", checkpoint.save_timeout, None),
        ),
        determinism=_one_of(*pick("determinism", options.determinism, written.determinism), Determinism.ELASTIC),
        compare_every=_within(f"{source}: compare_every", written.compare_every, 1, MAX_COMPARE_EVERY) or COMPARE_EVERY,
        on_divergence=_one_of(f"{source}: on_divergence", written.on_divergence, OnDivergence.REPLACE),
        sharding=_one_of(f"{source}: sharding", written.sharding, Sharding.NONE),
        priority=_priority(*pick("priority", options.priority, written.priority)),
        model=_model(f"{source}: model", written.model),
        throughput=_throughput(f"{source}: throughput", written.throughput),
        user=environ.get("USER") or _account(),
        gpus_per_server=gpus.per_server,
        gpu_types=gpus.types,
        gpu_memory_bytes=gpus.memory_bytes,
        cpus=cpus,
        memory_bytes=memory_bytes,
        image=image,
        processes=processes,
        time_limit_s=None if time[1] is None else limit_s(*time),
        warn_s=None if warn[1] is None else duration_s(warn[1], warn[0]),
        notify=_notify(*pick("notify", options.notify, written.notify)),
        idle=NEVER_IDLE if written.idle is None else idle_of(written.idle, f"{source}: idle"),
        after=_after(*pick("after", options.after or None, written.after)),
        restarts=restarts if restarts is not None or _joins(gpus.range, processes, command, workdir, env) else 0,
        must_join=written.start_timeout is not None,
        start_timeout_s=wait_s(
            "start_timeout", written.start_timeout, IMAGE_START_TIMEOUT_S if image else START_TIMEOUT_S
        ),
        load_timeout_s=wait_s("load_timeout", written.load_timeout, LOAD_TIMEOUT_S),
        step_timeout_s=wait_s("step_timeout", written.step_timeout, None),
        pause_timeout_s=wait_s("pause_timeout", written.pause_timeout, PAUSE_TIMEOUT_S),
        resume=resuming.of_file(source, written.resume, written.with_new_code, _directory(cwd, file)),
        scaling=wanted_scaling(
            source, written.scaling, written.replay_batches, options.replay_batches, _directory(cwd, file)
        ),
    )
    _, wanted = pick("snapshot", options.snapshot, written.snapshot)
    return snapshot(spec) if wanted and snapshot is not None else spec


def array_of(file: Path | None, options: Overrides, cwd: Path) -> arrays.Array | None:
    """Return the array that `file` and `options` describe; None: one job is meant. Raises UserError."""
    source = str(file) if file is not None else "the command line"
    written = _read(file) if file is not None else _File()
    where = "--array" if options.array is not None else f"{source}: array"
    where_sweep = str(options.sweep) if options.sweep is not None else f"{source}: sweep"
    sweep = written.sweep if options.sweep is None else arrays.sweep_of(cwd / options.sweep)
    if isinstance(sweep, str):  # a job file may name a file with the lists
        where_sweep, sweep = sweep, arrays.sweep_of(_directory(cwd, file) / sweep)
    array = options.array if options.array is not None else written.array
    return arrays.wanted(where, None if array is None else str(array), where_sweep, sweep)


def _notify(where: str, value: str | list[str] | None) -> tuple[Notify, ...]:
    words = value.split(",") if isinstance(value, str) else value or []
    known = {each.value: each for each in Notify}
    for word in words:
        if word.strip() not in known:
            raise UserError(f"{where}: {word.strip()!r} is none of {', '.join(known)}")
    return tuple(dict.fromkeys(known[word.strip()] for word in words))


def _account() -> str:
    """Return the submitting account's name, for an environment without LOGNAME or USER."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # no name for this number
        return ""


def _read(file: Path) -> _File:
    """Return the fields of a job file."""
    try:
        document = load_yaml(file, UserError, lambda document: aswritten.of_job(document, file))
    except RecursionError:
        raise UserError(f"{file}: is nested too deeply for a job file") from None
    except ValueError as error:  # YAML's own scalars: an impossible date, a number of thousands of digits
        raise UserError(f"{file}: holds a value that YAML cannot read: {error}") from None
    if not isinstance(document, dict):
        raise UserError(f"{file}: must hold fields such as `command: python train.py`, not a {type(document).__name__}")
    known = _File.__struct_fields__
    for field in document:
        if field not in known:
            raise UserError(f"{file}: unknown field {field!r}{_meant(field, known)}; known are {', '.join(known)}")
    try:
        return convert(document, _File, str(file), UserError)
    except UserError as error:
        raise UserError(WRONG_KIND.sub(_plainly, str(error))) from None


def _meant(field: object, known: Sequence[str]) -> str:
    """Return a hint for an unknown field, of another tool or misspelt; "": there is none."""
    if not isinstance(field, str):
        return ""
    if field in OTHER_FIELDS:
        return f", of another tool; here it is {OTHER_FIELDS[field]}"
    alike = difflib.get_close_matches(field, known, 1)
    return f" (did you mean {alike[0]}?)" if alike else ""


def _plainly(found: re.Match[str]) -> str:
    """Return "must be text or a whole number, not a list"."""
    allowed = [KINDS.get(kind, kind) for kind in found["allowed"].split(" | ") if kind != "null"]
    return f"must be {' or '.join(allowed)}, not {KINDS.get(found['got'], found['got'])}"


CLOCK = re.compile(r"(?:\d+-)?\d+:\d\d:\d\d")  # those of Slurm's forms that are unambiguous


def limit_s(where: str, value: str | float) -> float:
    """Return the seconds of "2h", or of Slurm's 1-02:00:00. A plain number is refused: Slurm counts minutes, others seconds.
    Raises UserError naming `where`.
    """
    if isinstance(value, str) and CLOCK.fullmatch(value.strip()):
        return duration_s(float(slurm_time_s(value.strip()) or 0), where)
    if not isinstance(value, str) or re.fullmatch(r"[\d.:]+", value.strip()):
        raise UserError(
            f"{where}: {value!r} is not a duration with units, such as 90m or 2h, nor hours such as 02:00:00"
        )
    return duration_s(value, where)


def deadline_of(where: str, value: object, where_soft: str, soft: bool | None) -> Deadline | None:
    """Return a deadline: a duration from the submission on (2h), or a date with a time, in its own zone or else the
    local one.

    Raises UserError naming `where`.
    """
    if value is None:
        if soft:
            raise UserError(f"{where_soft}: there is no deadline that could be soft")
        return None
    late = soft or False
    if isinstance(value, datetime.datetime):
        return Deadline(at_s=_unix_s(where, value), soft=late)
    if isinstance(value, str) and DATE.match(value.strip()):
        try:
            return Deadline(at_s=_unix_s(where, datetime.datetime.fromisoformat(value.strip())), soft=late)
        except ValueError as error:
            raise UserError(f"{where}: {value!r} is not a date such as 2027-01-31 18:00: {error}") from None
    if isinstance(value, datetime.date):
        raise UserError(f"{where}: say the time, too, such as {value} 18:00")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UserError(f"{where}: must be a duration such as 2h, or a date such as 2027-01-31 18:00")
    try:
        return Deadline(in_s=duration_s(value, where), soft=late)
    except UserError as error:
        date = ", nor a date such as '2027-01-31 18:00'" if isinstance(value, str) else ""
        raise UserError(f"{error}{date}") from None


UNTIL = re.compile(r"\s*([^\s<>=]+)\s*(>=|<=)\s*([-+.\deE]+)\s*")


def _until(where: str, value: str | None) -> Until | None:
    """Return a target of a reported metric: accuracy >= 0.95. Raises UserError naming `where`."""
    if value is None:
        return None
    match = UNTIL.fullmatch(value)
    try:
        bound = float(match[3]) if match else math.nan
    except ValueError:
        bound = math.nan
    if match is None or not math.isfinite(bound):
        raise UserError(f"{where}: {value!r} is not such as 'accuracy >= 0.95' or 'loss <= 0.1'")
    return Until(metric=match[1], bound=bound, at_least=match[2] == ">=")


def _unix_s(where: str, date: datetime.datetime) -> float:
    try:
        return date.timestamp()
    except (OverflowError, OSError, ValueError):
        raise UserError(f"{where}: {date} is no date that this machine's clock knows") from None


def _text(where: str, value: str) -> str:
    """Return `value` if every system accepts it as an argument or a variable of a process."""
    if "\0" in value:
        raise UserError(f"{where}: {value!r} contains a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: {value!r} is not UTF-8") from None
    return value


def _command(where: str, given: str | Sequence[str] | None, typed: bool) -> tuple[str, ...]:
    if not given:
        raise UserError(f"{where}: missing; say what to run, such as `python train.py`")
    if isinstance(given, str):
        parts = shellwords.words_of(where, given)
    else:
        parts = list(given)
        shellwords.check_list(where, parts, typed)
    if not parts or not parts[0]:
        raise UserError(f"{where}: is empty; say what to run, such as `python train.py`")
    return tuple(_text(where, part) for part in parts)


def _default_name(file: Path | None, command: Sequence[str]) -> str:
    """Return the name of the job file or of its directory, else of the script."""
    if file is not None:
        stem = file.resolve().parent.name if file.stem == "job" else file.stem
    else:
        one_word = (part for part in command if part.endswith(".py") and " " not in part)
        script = commands.script_of(command) or next(one_word, command[0])
        path = Path(script)
        stem = path.resolve().parent.name if path.stem == "train" and path.parent.name else path.stem
    cleaned = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:40].strip("-")
    return cleaned or "job"


def _name(where: str, name: str) -> str:
    if not NAME.fullmatch(name):
        raise UserError(f"{where}: {name!r} must be 1 to 40 of a-z, 0-9 and -, not beginning or ending with -")
    return name


def _after(where: str, given: str | Sequence[str] | None) -> tuple[After, ...]:
    """Return the jobs to wait for: `prep-3` has to finish, `prep-3:any` to end in any way."""
    found = []
    for text in (given,) if isinstance(given, str) else given or ():
        for word in text.split(","):
            job, colon, how = word.strip().partition(":")
            if not job or (colon and how not in ("ok", "any")):
                slurm = f"; `--after {how}`?" if job.startswith("after") and how else ""
                raise UserError(
                    f"{where}: {word!r} is not a job, such as prep-3 or prep-3:any (however it ends){slurm}"
                )
            found.append(After(job=JobId(_text(where, job)), any=how == "any"))
    return tuple(found)


def _processes(where: str, given: str | None, command: Sequence[str]) -> Processes:
    usual = Processes.PER_SERVER if commands.mpi(command) else commands.look_at(command).processes
    return _one_of(where, given, usual)


def _image(where: str, given: str | None) -> str:
    if given is None:
        return ""
    if not images.is_image(given):
        raise UserError(
            f"{where}: {given[:80]!r} is not the name of an image, such as docker.io/pytorch/pytorch:2.9.0: no options, "
            "spaces or transports"
        )
    return given


def _joins(gpus: GpuRange, processes: Processes, command: Sequence[str], workdir: Path, env: Mapping[str, str]) -> bool:
    """Return whether the job probably calls `elastic.join()`. If not, its command runs only once unless the user sets
    `restarts`.
    """
    if processes is Processes.PER_SERVER:
        return False
    return gpus.min < gpus.max or commands.joins(commands.look_at(command), workdir, env)


def _virtual_workers(where: str, given: int | None, gpus: GpuRange) -> int:
    count = gpus.max if given is None else given
    if count < gpus.max:
        raise UserError(f"{where}: {count} is less than gpus.max ({gpus.max}); a GPU needs at least one each")
    if count > MAX_VIRTUAL_WORKERS:
        raise UserError(f"{where}: {count} is over the limit of {MAX_VIRTUAL_WORKERS}")
    return count


def _within(where: str, value: int | None, least: int, most: int) -> int | None:
    if value is not None and not least <= value <= most:
        raise UserError(f"{where}: is {value}; allowed are {least} to {most}")
    return value


def _one_of(where: str, given: str | None, usual: E) -> E:
    """Return the member of an enumeration that has this value; `usual` if none is given."""
    kind = type(usual)
    try:
        return usual if given is None else kind(given)
    except ValueError:
        known = ", ".join(str(each.value) for each in kind)
        raise UserError(f"{where}: {given!r} is not one of {known}") from None


def _model(where: str, given: str | None) -> str:
    if given is None:
        return ""
    if not given.strip() or len(given) > MAX_MODEL:
        raise UserError(f"{where}: {given[:80]!r} is not a name of 1 to {MAX_MODEL} characters")
    return _text(where, given.strip())


def _throughput(where: str, given: Any) -> dict[int, float]:
    """Return steps per second by share."""
    if given is None:
        return {}
    if not isinstance(given, dict) or not given:
        raise UserError(f"{where}: {given!r} is not steps per second by GPUs, such as {{1: 10.0, 2: 19.1}}")
    found = {}
    for share, rate in given.items():
        if not isinstance(share, int) or isinstance(share, bool) or not 1 <= share <= MAX_GPUS:
            raise UserError(f"{where}: {share!r} is not a number of GPUs from 1 to {MAX_GPUS}")
        number = isinstance(rate, int | float) and not isinstance(rate, bool)
        if not number or not MIN_STEPS_PER_S <= rate <= MAX_STEPS_PER_S:
            allowed = f"from {MIN_STEPS_PER_S:g} to {MAX_STEPS_PER_S:g}"
            raise UserError(f"{where}.{share}: {rate!r} is not a number of steps per second {allowed}")
        found[share] = float(rate)
    return found


def _priority(where: str, given: str | int | None) -> int:
    if given is None:
        return 0
    if isinstance(given, str) and given in PRIORITIES:
        return PRIORITIES[given]
    if isinstance(given, str) and re.fullmatch(r"-?\d{1,9}", given, re.ASCII):
        given = int(given)
    if not isinstance(given, int) or abs(given) > MAX_PRIORITY:
        raise UserError(
            f"{where}: {given!r} is not low, normal, high or a whole number from {-MAX_PRIORITY} to {MAX_PRIORITY}"
        )
    return given


def _environment(
    where: str, written: Mapping[str, Any], options: Sequence[str], environ: Mapping[str, str]
) -> dict[str, str]:
    env = {key: _text(f"variable {key}", environ[key]) for key in CAPTURED_VARIABLES if key in environ}
    for key, value in written.items():
        if not isinstance(value, str):
            raise UserError(f"{where}.{key}: {value!r} is no text; put it in quotes")
        env[_variable(where, key)] = _text(f"{where}.{key}", value)
    for option in options:
        key, equals, text = option.partition("=")
        if not equals:
            raise UserError(f"--env: {option!r} must be NAME=VALUE")
        env[_variable("--env", key)] = _text(f"--env {key}", text)
    return env


def _secrets(
    where: str, written: Mapping[str, Any], options: Sequence[str], env: Mapping[str, str], cwd: Path, file: Path | None
) -> dict[str, str]:
    """Return the absolute paths of files with secrets, by variable. A file that cannot be one is refused now, although it is
    read on the servers."""
    found: dict[str, str] = {}
    given = [(f"{where}.{name}", name, path, _directory(cwd, file)) for name, path in written.items()]
    for option in options:
        name, equals, path = option.partition("=")
        if not equals:
            raise UserError(f"--secret: {option!r} must be NAME=FILE")
        given.append((f"--secret {name}", name, path, cwd))
    for at, name, path, directory in given:
        if not isinstance(path, str) or not path:
            raise UserError(f"{at}: {path!r} is not the path of a file")
        if _variable(at, name) in env:
            raise UserError(f"{at}: {name} is set as a variable, too")
        place = os.path.normpath(cwd / directory / Path(_text(at, path)).expanduser())
        try:
            secrets.read(place)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise UserError(f"{at}: {place} cannot be read: {why}") from None
        found[name] = place
    return found


def _variable(where: str, key: str) -> str:
    if not VARIABLE.fullmatch(key):
        raise UserError(
            f"{where}: {key!r} is not a name of a variable: letters, digits and _, not beginning with a digit"
        )
    if key.startswith("ELASTICD_"):
        raise UserError(f"{where}: {key} is set by the cluster; choose another name")
    return key


def _directory(cwd: Path, file: Path | None) -> Path:
    """Return the directory that relative paths in `file` start at."""
    return cwd if file is None else (cwd / file).parent


def _workdir(where: str, given: str | None, cwd: Path, file: Path | None) -> Path:
    """Return the job's working directory: as its file says, relative to that file's directory; else where the job is
    submitted.
    """
    workdir = (_directory(cwd, file) / Path(_text(where, given)).expanduser()) if given else cwd
    if not os.path.isdir(workdir):  # unlike `Path.is_dir`, also False for a name that is too long
        raise UserError(f"{where}: {workdir} is not a directory")
    return Path(_text(where, str(workdir.resolve())))


def _check_program(where: str, command: Sequence[str], workdir: Path, env: Mapping[str, str]) -> None:
    """Check that the program exists and is executable, and that its script exists: an error here is earlier than one on
    a server.
    """
    program = command[0]
    found = shutil.which(workdir / program) if os.sep in program else shutil.which(program, path=env.get("PATH"))
    if not found:
        if os.sep in program and os.path.isfile(workdir / program):
            raise UserError(
                f"{where}: {program} may not be executed: `chmod +x {program}`, or write its interpreter first"
            )
        raise UserError(f"{where}: there is no program {program!r}{commands.unknown_program(program)}")
    _check_script(where, command, workdir)


def _check_script(where: str, command: Sequence[str], workdir: Path) -> None:
    script = commands.script_of(command)
    if script and not os.path.isfile(workdir / script):
        raise UserError(f"{where}: there is no file {script} in {workdir}")
