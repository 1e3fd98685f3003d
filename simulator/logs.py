"""Traces in other forms than CSV with a header, as tables: the logs of Slurm, Philly, Alibaba's PAI, and Gavel's traces.

The first line of a file identifies its form. Columns have the names under which the traces were published. Values that
must be calculated from others get columns of their own:

* `gpus` and `run_s` of a Philly job (`cluster_job_log`, JSON): the GPUs of its first attempt, as in the published
  analysis, and the seconds of all attempts with a recorded start and end. Jobs that still ran are without `run_s`; where
  an attempt ends before it starts (the log's clock was set back in November), `run_s` is below 0.
* `gpus`, `run_s` and `gpu_type` of a Slurm job (``sacct -P``): from `AllocTRES`, or `ReqTRES` where nothing was allocated;
  from `ElapsedRaw` or `Elapsed`, since local times jump twice a year; and from the type that `ReqTRES` asks for. Job
  steps are left out, as they are parts of jobs. The components of a heterogeneous job (``7+0``, ``7+1``) run at the same
  time, and so count as one job. `gres/mps` and `gres/shard` are parts of one GPU.
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

ABSENT = frozenset({"", "none", "nan", "nat", "null", "unknown", "invalid", "n/a"})  # in lower case
GAVEL = {
    7: "job_type,command,num_steps_arg,needs_data_dir,total_steps,arrival_time,scale_factor",
    10: "job_type,command,working_directory,num_steps_arg,needs_data_dir,total_steps,scale_factor,priority_weight,SLO,"
    "arrival_time",
}
PAI = {
    10: "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type",  # pai_task_table
    6: "job_name,inst_id,user,status,start_time,end_time",  # pai_job_table
}
PAI_STATUS = frozenset({"Running", "Terminated", "Failed", "Waiting", "Interrupted"})
SACCT = "sacct -aXP --format=JobID,User,Account,State,Submit,Start,End,Elapsed,AllocTRES,ReqTRES"
SACCT_ID, SACCT_RAW = "JobID", "JobIDRaw"
TRES = ("AllocTRES", "ReqTRES")
UNFINISHED = ("RUNNING", "PENDING", "SUSPENDED", "RESIZING", "COMPLETING")
REQUEUED = "REQUEUED"  # a run that ended, or a job that waits for its next run
COMPONENT = re.compile(r"(\d+)\+\d+")  # of a heterogeneous job
GPU_COUNT = re.compile(r"(?:^|,)gres/gpu(?::([^=,]+))?=(\d+)")
GPU_PART = re.compile(r"(?:^|,)gres/(?:mps|shard)(?::[^=,]+)?=[1-9]")
PART = 0.5  # of a GPU, for any part: the number of parts of a GPU is not in the log
ELAPSED = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)(?:\.\d+)?")  # days-hours:minutes:seconds


def read(path: Path) -> Table:
    """Return the trace in `path`. Raises UserError, naming file and line, if it is not a table in one of the forms."""
    content = text(path)
    first = content.lstrip().partition("\n")[0].rstrip("\r")
    if first.startswith("["):
        return _philly(path, content)
    if first.startswith("{"):
        reason = f"JSON, but not a list of jobs, as Philly's cluster_job_log is; Slurm's logs are read from the output of {SACCT}"
        raise UserError(f"{path}: line 1: {reason}")
    if "\t" in first:
        return _gavel(path, content, first.count("\t") + 1)
    if len(fields := first.split("|")) > 1:
        if not {SACCT_ID, SACCT_RAW}.intersection(fields):
            raise UserError(f"{path}: line 1: no header with {SACCT_ID}; wanted is the output of {SACCT}")
        return complete(parse(path, content, "|", quoted=False))
    fields = first.split(",")
    if (names := PAI.get(len(fields))) and fields[3] in PAI_STATUS:
        return parse(path, content, header=names.split(","))
    return complete(parse(path, content))


def complete(table: Table) -> Table:
    """Return a table with columns that are calculated from others, if it is Slurm's."""
    if SACCT_RAW in table and SACCT_ID not in table:
        table = Table(table.source, {**table.columns, SACCT_ID: table.columns[SACCT_RAW]}, table.lines)
    return _sacct(table) if SACCT_ID in table else table


def absent(value: str) -> bool:
    """Return whether a log says with this value that there is none."""
    return value.strip().casefold() in ABSENT


# -- Gavel


def _gavel(path: Path, content: str, columns: int) -> Table:
    if columns not in GAVEL:
        known = " or ".join(map(str, GAVEL))
        raise UserError(f"{path}: line 1: {columns} values separated by tabs; Gavel's traces have {known}")
    return parse(path, content, "\t", GAVEL[columns].split(","), quoted=False)


# -- Slurm


def _sacct(table: Table) -> Table:
    wanted = (TRES, ("ElapsedRaw", "Elapsed"), ("Submit",))
    for names in wanted:
        if not any(name in table for name in names):
            raise UserError(f"{table.source}: line 1: no column {' or '.join(names)}; wanted is the output of {SACCT}")
    jobs = [row for row, name in enumerate(table.columns[SACCT_ID]) if "." not in name]
    if not jobs:
        raise UserError(f"{table.source}: only steps of jobs, and no job; wanted is the output of {SACCT}")
    table = table.only(np.array(jobs))
    for column in (name for name in TRES if name in table):
        for row, tres in enumerate(table.columns[column]):
            if tres.endswith("+"):
                raise table.wrong(row, column, f"{tres!r} is cut off; wanted is the output of {SACCT}")
    columns, nothing = table.columns, [""] * len(table)
    requested = columns.get("ReqTRES", nothing)
    allocated = [one or other for one, other in zip(columns.get("AllocTRES", nothing), requested, strict=True)]
    made = {
        "gpus": [f"{_tres_gpus(tres):g}" for tres in allocated],
        "run_s": _elapsed(table),
        "gpu_type": ["|".join(kind for kind, _ in GPU_COUNT.findall(tres) if kind) for tres in requested],
    }
    return _with_components(Table(table.source, {**columns, **made}, table.lines))


def _with_components(table: Table) -> Table:
    """Return the table with a row for each heterogeneous job, in place of one for each component."""
    names = table.columns[SACCT_ID]
    whole = [part[1] if (part := COMPONENT.fullmatch(name)) else "" for name in names]
    if not any(whole):
        return table
    parts: dict[tuple[str, str], list[int]] = {}
    for row, (name, job, submit) in enumerate(zip(names, whole, table.columns["Submit"], strict=True)):
        parts.setdefault((job, submit) if job else (name, str(row)), []).append(row)
    gpus, run_s, types = (table.columns[column] for column in ("gpus", "run_s", "gpu_type"))
    found = table.only(np.array([rows[0] for rows in parts.values()]))
    made = {
        SACCT_ID: [name for name, _ in parts],
        "gpus": [f"{sum(float(gpus[row]) for row in rows):g}" for rows in parts.values()],
        "run_s": [max((run_s[row] for row in rows), key=lambda text: float(text or "inf")) for rows in parts.values()],
        "gpu_type": ["|".join(filter(None, (types[row] for row in rows))) for rows in parts.values()],
    }
    return Table(found.source, {**found.columns, **made}, found.lines)


def _tres_gpus(tres: str) -> float:
    """Return the number of GPUs in a list like ``cpu=8,gres/gpu=2,gres/gpu:a100=2``, which counts GPUs of a type twice."""
    counts = GPU_COUNT.findall(tres)
    if not counts:
        return PART if GPU_PART.search(tres) else 0.0
    total = [int(count) for kind, count in counts if not kind]
    return total[0] if total else sum(int(count) for _, count in counts)


def _elapsed(table: Table) -> list[str]:
    """Return the seconds that each job ran; "": it has not ended."""
    column = "ElapsedRaw" if "ElapsedRaw" in table else "Elapsed"
    states, ends = (table.columns.get(name, [""] * len(table)) for name in ("State", "End"))
    found = []
    for row, (value, state, end) in enumerate(zip(table.columns[column], states, ends, strict=True)):
        clock = ELAPSED.fullmatch(value)
        waits = state.startswith(REQUEUED) and absent(end)
        if state.startswith(UNFINISHED) or waits or absent(value):
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
    """Return the GPUs of a job, and the seconds of all attempts with a start and an end; those of an attempt that ends
    before it starts.

    "": without an attempt; without such an attempt, or the job still ran.
    """
    if not attempts:
        return "", ""
    gpus = str(sum(len(server["gpus"]) for server in attempts[0].get("detail") or ()))
    spans = [(str(one.get("start_time")), str(one.get("end_time"))) for one in attempts]
    if absent(spans[-1][1]):
        return gpus, ""
    known = [
        (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
        for start, end in spans
        if not (absent(start) or absent(end))
    ]
    if not known:
        return gpus, ""
    return gpus, f"{min(known) if min(known) < 0 else sum(known):.12g}"
