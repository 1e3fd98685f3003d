"""Traces in other forms than CSV with a header, as tables: the logs of Slurm, Philly, Alibaba's PAI, and Gavel's traces.

The first line of a file identifies its form. Columns have the names under which the traces were published. Values that
must be calculated from others get columns of their own:

* `gpus` and `run_s` of a Philly job (`cluster_job_log`, JSON): the GPUs of its first attempt, as in the published
  analysis, and the seconds of all attempts with a recorded start and end. Jobs that still ran are without `run_s`.
* `gpus`, `run_s` and `gpu_type` of a Slurm job (``sacct -P``): from `AllocTRES`, or `ReqTRES` where nothing was allocated;
  from `ElapsedRaw` or `Elapsed`, since local times jump twice a year; and from the type that `ReqTRES` asks for. Job
  steps are left out, as they are parts of jobs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from ..protocol.errors import UserError
from ..scheduler.profiles.tables import Table, parse, text

ABSENT = frozenset({"", "none", "nan", "null", "unknown", "n/a"})  # in lower case
GAVEL = {
    7: "job_type,command,num_steps_arg,needs_data_dir,total_steps,arrival_time,scale_factor",
    10: "job_type,command,working_directory,num_steps_arg,needs_data_dir,total_steps,scale_factor,priority_weight,SLO,"
    "arrival_time",
}
PAI = {
    10: "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type",  # pai_task_table
    6: "job_name,inst_id,user,status,start_time,end_time",  # pai_job_table
}
PAI_STATUS = frozenset({"Running", "Terminated", "Failed", "Waiting"})
SACCT = "sacct -aXP --format=JobID,User,Account,State,Submit,Start,End,Elapsed,AllocTRES,ReqTRES"
UNFINISHED = ("RUNNING", "PENDING", "SUSPENDED", "REQUEUED", "RESIZING", "COMPLETING")
GPU_COUNT = re.compile(r"(?:^|,)gres/gpu(?::([^=,]+))?=(\d+)")
ELAPSED = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)(?:\.\d+)?")  # days-hours:minutes:seconds


def read(path: Path) -> Table:
    """Return the trace in `path`. Raises UserError, naming file and line, if it is not a table in one of the forms."""
    content = text(path)
    first = content.lstrip().partition("\n")[0].rstrip("\r")
    if first.startswith("["):
        return _philly(path, content)
    if (names := GAVEL.get(first.count("\t") + 1)) and "\t" in first:
        return parse(path, content, "\t", names.split(","), quoted=False)
    if "JobID" in (fields := first.split("|")) and len(fields) > 1:
        return complete(parse(path, content, "|", quoted=False))
    fields = first.split(",")
    if (names := PAI.get(len(fields))) and fields[3] in PAI_STATUS:
        return parse(path, content, header=names.split(","))
    return parse(path, content)


def complete(table: Table) -> Table:
    """Return a table with columns that are calculated from others, if it is Slurm's."""
    return _sacct(table) if "JobID" in table else table


def absent(value: str) -> bool:
    """Return whether a log says with this value that there is none."""
    return value.strip().casefold() in ABSENT


# -- Slurm


def _sacct(table: Table) -> Table:
    wanted = (("AllocTRES", "ReqTRES"), ("ElapsedRaw", "Elapsed"), ("Submit",))
    for names in wanted:
        if not any(name in table for name in names):
            raise UserError(f"{table.source}: line 1: no column {' or '.join(names)}; wanted is the output of {SACCT}")
    jobs = [row for row, name in enumerate(table.columns["JobID"]) if "." not in name]
    if not jobs:
        raise UserError(f"{table.source}: only steps of jobs, and no job; wanted is the output of {SACCT}")
    table = table.only(np.array(jobs))
    columns = table.columns
    nothing = [""] * len(table)
    requested = columns.get("ReqTRES", nothing)
    allocated = [one or other for one, other in zip(columns.get("AllocTRES", nothing), requested, strict=True)]
    made = {
        "gpus": [str(_tres_gpus(tres)) for tres in allocated],
        "run_s": _elapsed(table, columns.get("State", nothing)),
        "gpu_type": [
            "|".join(dict.fromkeys(kind for kind, _ in GPU_COUNT.findall(tres) if kind)) for tres in requested
        ],
    }
    return Table(table.source, {**columns, **made}, table.lines)


def _tres_gpus(tres: str) -> int:
    """Return the number of GPUs in a list like ``cpu=8,gres/gpu=2,gres/gpu:a100=2``, which counts GPUs of a type twice."""
    counts = GPU_COUNT.findall(tres)
    total = [int(count) for kind, count in counts if not kind]
    return total[0] if total else sum(int(count) for _, count in counts)


def _elapsed(table: Table, states: Sequence[str]) -> list[str]:
    """Return the seconds that each job ran; "": it has not ended."""
    column = "ElapsedRaw" if "ElapsedRaw" in table else "Elapsed"
    found = []
    for row, (value, state) in enumerate(zip(table.columns[column], states, strict=True)):
        clock = ELAPSED.fullmatch(value)
        if state.startswith(UNFINISHED) or absent(value):
            found.append("")
        elif clock:
            days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
            found.append(str(((days * 24 + hours) * 60 + minutes) * 60 + seconds))
        elif value.isdecimal():
            found.append(value)
        else:
            raise table.wrong(row, column, f"{value!r} is not a duration like 1-02:03:04 (days-hours:minutes:seconds)")
    return found


# -- Philly


def _philly(path: Path, content: str) -> Table:
    try:
        jobs = json.loads(content)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: line {error.lineno}: not JSON: {error.msg}") from None
    keys = ("jobid", "submitted_time", "attempts")
    if not jobs:
        raise UserError(f"{path}: line 1: no jobs")
    lines = (
        [content.count("\n", 0, at.start()) + 1 for at in re.finditer(r'"jobid"\s*:', content)] if _few(jobs) else []
    )
    lines = lines if len(lines) == len(jobs) else list(range(1, len(jobs) + 1))
    names = ("jobid", "vc", "user", "status", "submitted_time", "gpus", "run_s")
    columns: dict[str, list[str]] = {name: [] for name in names}
    for line, job in zip(lines, jobs, strict=True):
        missing = [key for key in keys if not isinstance(job, Mapping) or key not in job]
        if missing:
            raise UserError(
                f"{path}: line {line}: a job without {', '.join(missing)}, unlike in Philly's cluster_job_log"
            )
        try:
            gpus, run_s = _attempts(job["attempts"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}: line {line}, job {job['jobid']}: attempts: {error!r}") from None
        for name in names[:5]:
            columns[name].append(str(job.get(name, "")))
        columns["gpus"].append(gpus)
        columns["run_s"].append(run_s)
    return Table(str(path), columns, lines)


def _few(jobs: Sequence[object]) -> bool:
    return len(jobs) <= 1000  # counting lines for each job takes the square of the file's length


def _attempts(attempts: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return the GPUs of a job, and the seconds of all attempts with a start and an end.

    "": without an attempt; without such an attempt, or the job still ran.
    """
    if not attempts:
        return "", ""
    gpus = str(sum(len(server["gpus"]) for server in attempts[0]["detail"]))
    if absent(str(attempts[-1]["end_time"])):
        return gpus, ""
    spans = [(str(one["start_time"]), str(one["end_time"])) for one in attempts]
    known = [
        (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
        for start, end in spans
        if not (absent(start) or absent(end))
    ]
    return gpus, f"{sum(known):g}" if known else ""
