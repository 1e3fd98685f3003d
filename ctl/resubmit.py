"""`submit --resume JOB`: a new job like a finished one, which starts from its checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ..protocol.errors import UserError
from ..protocol.messages import JobView
from ..protocol.model import CAPTURED_VARIABLES, JobSpec, ResumeFrom
from .commands import script_of
from .jobfile import Overrides
from .resuming import is_directory, of_directory


class GoingOn:
    """The job or checkpoint that `--resume` names, and its effect on a submission."""

    def __init__(self, given: str | None, any_code: bool, view_of: Callable[[str], JobView]) -> None:
        """given: a job, or a directory of checkpoints; None: the job starts from its initial state. view_of: returns
        the view of a job. Raises UserError.
        """
        if any_code and given is None:
            raise UserError("--with-new-code goes with --resume; in a job file: with_new_code: true")
        self.source = None if given is None or is_directory(given) else view_of(given)
        self._resume: ResumeFrom | None = None
        self._keeps_snapshot = False
        if self.source is not None:
            self._resume = ResumeFrom(job=self.source.job, any_code=any_code)
        elif given is not None:
            self._resume = of_directory(given, any_code)

    def options(self, file: Path | None, options: Overrides) -> Overrides:
        """Return the options with which to build the job. Without a file or a command, the command is that of the other
        job. A snapshot is then left to `job`, as it contains the other job's command and environment.
        """
        if self.source is None or file is not None:
            return options
        return replace(options, command=options.command or self.source.spec.command, snapshot=None)

    def where(self, file: Path | None, cwd: Path) -> Path:
        """Return the directory that relative paths start at."""
        return cwd if self.source is None or file is not None else Path(self.source.spec.workdir)

    def job(
        self, file: Path | None, options: Overrides, built: JobSpec, snapshot: Callable[[JobSpec], JobSpec]
    ) -> JobSpec:
        """Return the job to submit. `built`: the job of file and options, or of the options alone. `snapshot` returns a
        job with a new snapshot. Raises UserError.
        """
        spec = built
        if self.source is not None and file is None:
            spec = as_before(self.source.spec, built, options)
            self._keeps_snapshot = spec.snapshot is not None and not options.snapshot
            if self._keeps_snapshot:
                spec = replace(spec, command=within(spec.workdir, spec.command))
            if options.snapshot:
                spec = snapshot(spec)
        return spec if self._resume is None else replace(spec, resume=self._resume)

    def unwritten(self, file: Path | None, spec: JobSpec, environ: Mapping[str, str]) -> list[str]:
        """Return sentences about settings that a job file cannot express. environ: environment of the submission."""
        if self.source is None or file is not None:
            return []
        found = []
        if self._keeps_snapshot:
            found.append(f"the file takes a new snapshot of {spec.workdir}; --resume keeps that of {self.source.job}")
        if more := [name for name in CAPTURED_VARIABLES if name in environ and name not in spec.env]:
            found.append(
                f"submitted here, the file adds {', '.join(more)}; --resume keeps the environment of {self.source.job}"
            )
        return found


def within(workdir: str, command: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command for a job that keeps its snapshot: a script of that directory, named by an absolute path, is the one in
    the snapshot, and not the present one.
    """
    script = script_of(command)
    if not os.path.isabs(script) or not os.path.realpath(script).startswith(
        os.path.realpath(workdir).rstrip("/") + "/"
    ):
        return command
    inside = os.path.relpath(os.path.realpath(script), os.path.realpath(workdir))
    return tuple(inside if word == script else word for word in command)


def as_before(before: JobSpec, built: JobSpec, options: Overrides) -> JobSpec:
    """Return the job as it was submitted `before`, changed by the given `options`, with values from `built`. An earlier
    deadline, and the jobs that were waited for, are dropped.
    """
    gpus = options.gpus
    given = {
        "name": options.name,
        "max_steps": options.max_steps,
        "until": options.until,
        "virtual_workers": options.virtual_workers,
        "priority": options.priority,
        "determinism": options.determinism,
        "processes": options.processes,
        "restarts": options.restarts,
        "time_limit_s": options.time,
        "warn_s": options.warn,
        "notify": options.notify,
        "command": options.command or None,
        "scaling": options.replay_batches,
        "gpus": gpus.gpus,
        "gpus_per_server": gpus.per_server,
        "gpu_types": gpus.types or None,
        "gpu_memory_bytes": gpus.memory,
        "cpus": options.cpus,
        "memory_bytes": options.memory,
        "image": options.image,
        "secrets": options.secrets or None,
    }
    changes: dict[str, Any] = {field: getattr(built, field) for field, value in given.items() if value is not None}
    if options.checkpoint_every is not None:
        changes["checkpoint"] = replace(before.checkpoint, every_s=built.checkpoint.every_s)
    named = {variable.partition("=")[0] for variable in options.env}
    kept = before.env
    if options.image is not None and not before.image:  # paths of programs on the server mean nothing in a container
        kept = {name: value for name, value in kept.items() if name not in CAPTURED_VARIABLES}
    env = {**kept, **{name: value for name, value in built.env.items() if name in named}}
    again = {"env": env, "user": built.user, "deadline": built.deadline, "after": built.after}
    return replace(before, **changes, **again, array=None, resume=None)
