"""Checkpoints named by `submit --resume` and by `resume` in a job file."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..protocol.errors import UserError
from ..protocol.model import JobId, ResumeFrom

_CHECKPOINT = re.compile(r"(?:generation-(\d{8,})-)?step-(\d{12,})\.pt")  # names of `worker.lineages`
_OF_A_JOB = re.compile(r"([a-z0-9-]+-\d+)\.([0-9a-f]+)")  # name of the directory of a job's checkpoints


def is_directory(given: str) -> bool:
    """Return whether `given` is a directory of checkpoints, and not a job."""
    return "/" in given or os.path.isdir(given)


def of_directory(given: str, any_code: bool, where: str = "--resume", begin: Path = Path()) -> ResumeFrom:
    """Return the newest checkpoint in a directory. Raises UserError, naming `where` it is `given`, if there is none.

    begin: the directory that a relative path starts at.
    """
    directory = (begin / Path(given).expanduser()).absolute()
    try:
        files = os.listdir(directory)
    except NotADirectoryError:
        raise UserError(f"{where} {given}: is a file; name its directory, whose newest checkpoint is used") from None
    except OSError as error:
        raise UserError(f"{where} {given}: {error.strerror}") from None
    names = [match for name in files if (match := _CHECKPOINT.fullmatch(name))]
    if not names:
        inside = sorted(filter(_OF_A_JOB.fullmatch, files))
        hint = f"; it holds directories of jobs, such as {inside[0]}" if inside else ""
        raise UserError(f"{where} {given}: holds no checkpoint (generation-...-step-....pt){hint}")
    _, step = max((int(match[1] or 0), int(match[2])) for match in names)
    job = _OF_A_JOB.fullmatch(directory.name)
    seeds = f"{job[1]} {job[2]}" if job else ""
    return ResumeFrom(directory=str(directory), step=step, any_code=any_code, seeds=seeds)


def of_file(source: str, given: str | None, any_code: bool | None, begin: Path) -> ResumeFrom | None:
    """Return the checkpoint of the fields `resume` and `with_new_code` of a job file, or None. Raises UserError.

    A directory is written with a slash, so that the file means the same wherever it is read. begin: the file's
    directory.
    """
    if given is None:
        if any_code is not None:
            raise UserError(
                f"{source}: with_new_code: goes with resume, which names a job or a directory of checkpoints"
            )
        return None
    if "/" in given:
        return of_directory(given, any_code or False, f"{source}: resume:", begin)
    return ResumeFrom(job=JobId(given), any_code=any_code or False)
