"""Arrays: jobs of one specification that are submitted together, each with its index, or with values of a sweep.

The command and the environment variables of a job may contain `{index}`, and names of a sweep, such as `{lr}`. Braces
after a dollar sign belong to the shell, and stay as they are.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ..protocol.errors import UserError
from ..protocol.limits import MAX_ARRAY
from ..protocol.messages import GetEnded, GetJobs, JobView
from ..protocol.model import After, ArrayElement, JobPhase, JobSpec, job_number
from .context import Context

INDEX = "ELASTICCTL_ARRAY_INDEX"
MAX_NAME = 40
_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_GLOB = re.compile(r"[*?\[]")
_BRACES = re.compile(r"(?<!\$)\{([A-Za-z_][\w.-]*)\}")


@dataclass(frozen=True)
class Array:
    """The elements to submit. `values`: by index, the values of a sweep."""

    text: str  # the indices in Slurm's notation: 0-99%8
    indices: tuple[int, ...]
    most: int | None = None
    values: tuple[Mapping[str, str], ...] = ()

    def elements(self, spec: JobSpec) -> Iterator[JobSpec]:
        """Yield the jobs. Raises UserError if the command names an unknown value."""
        identity = secrets.token_hex(8)
        for index in self.indices:
            values = dict(self.values[index]) if self.values else {}
            names = {"index": str(index), **values}
            name = f"-{index}"
            yield replace(
                spec,
                name=spec.name[: MAX_NAME - len(name)].rstrip("-") + name,
                command=tuple(_filled(word, names) for word in spec.command),
                env={**{key: _filled(value, names) for key, value in spec.env.items()}, INDEX: str(index)},
                array=ArrayElement(
                    array=identity,
                    name=spec.name,
                    index=index,
                    text=self.text,
                    size=len(self.indices),
                    most=self.most,
                    values=values,
                ),
            )

    def document(self) -> dict[str, object]:
        """Return the fields of a job file."""
        if not self.values:
            return {"array": self.text}
        limit = {"array": f"%{self.most}"} if self.most is not None else {}
        names: dict[str, list[str]] = {
            name: list(dict.fromkeys(each[name] for each in self.values)) for name in self.values[0]
        }
        return {**limit, "sweep": names}


def wanted(where: str, array: str | None, where_sweep: str, sweep: Any) -> Array | None:
    """Return the array of `--array 0-99%8`, or of all combinations of a sweep's lists; None: neither is given.

    Raises UserError naming `where` or `where_sweep`.
    """
    if array is None and sweep is None:
        return None
    listed, percent, limit = (array or "").partition("%")
    most = None
    if percent:
        if not re.fullmatch(r"[1-9]\d{0,8}", limit):
            raise UserError(f"{where}: {array!r}: after % stands how many may run at a time, at least 1")
        most = int(limit)
    if sweep is None:
        indices = _indices(where, listed)
        return Array(array or "", indices, most)
    values = _product(where_sweep, sweep)
    indices = _indices(where, listed) if listed else tuple(range(len(values)))
    if beyond := [index for index in indices if index >= len(values)]:
        raise UserError(f"{where}: the sweep has the indices 0 to {len(values) - 1}, and no {beyond[0]}")
    text = listed or (f"0-{len(values) - 1}" if len(values) > 1 else "0")
    return Array(text + percent + limit, indices, most, values)


def sweep_of(file: Path) -> Any:
    """Return the lists of a sweep's file, with values as written. Raises UserError."""
    from ..runtime.config import load_yaml  # imported here, since `status` does not need it
    from . import aswritten

    return load_yaml(file, UserError, lambda document: aswritten.of_sweep(document, file))


def _indices(where: str, text: str) -> tuple[int, ...]:
    found: dict[int, None] = {}
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise UserError(f"{where}: {text!r} is not such as 0-99, 0-99%8 (eight at a time), 1,3,7 or 0-20:5")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first or step < 1:
            raise UserError(f"{where}: {part.strip()!r} has no index")
        if (last - first) // step >= MAX_ARRAY:
            raise UserError(f"{where}: an array has at most {MAX_ARRAY} jobs")
        found |= dict.fromkeys(range(first, last + 1, step))
    if len(found) > MAX_ARRAY:
        raise UserError(f"{where}: an array has at most {MAX_ARRAY} jobs, not {len(found)}")
    return tuple(sorted(found))


def _product(where: str, sweep: Any) -> tuple[dict[str, str], ...]:
    """Return the values of each element; the last list varies fastest."""
    if not isinstance(sweep, dict) or not sweep:
        raise UserError(
            f"{where}: must have lists, such as `lr: [0.1, 0.01]` and `seed: [1, 2, 3]`; their product is run"
        )
    lists: dict[str, list[str]] = {}
    for name, values in sweep.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name == "index":
            raise UserError(f"{where}: {name!r} is not a name that can stand in braces")
        listed = values if isinstance(values, list) else [values]
        if not listed or any(isinstance(value, list | dict) or value is None for value in listed):
            raise UserError(f"{where}: {name}: must be a list of numbers or words, such as [0.1, 0.01]")
        lists[name] = [str(value) for value in listed]
    count = 1
    for listed in lists.values():
        count *= len(listed)
    if count > MAX_ARRAY:
        raise UserError(f"{where}: has {count} combinations; an array has at most {MAX_ARRAY} jobs")
    return tuple(dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values()))


def _filled(text: str, names: Mapping[str, str]) -> str:
    return re.sub(r"(?<!\$)\{([\w.-]+)\}", lambda found: names.get(found[1], found[0]), text)


def unused(spec: JobSpec, array: Array) -> str:
    """Return a warning if all jobs of an array would do the same, or if the command names a value that a sweep does not
    have; "" if they use the index or values of the sweep.
    """
    names = {"index", *(array.values[0] if array.values else ())}
    texts = (*spec.command, *spec.env.values())
    if array.values and (unknown := [name for text in texts for name in _BRACES.findall(text) if name not in names]):
        return f"{{{unknown[0]}}} stays as it is: the sweep has {', '.join(sorted(names))}"
    if any(f"{{{name}}}" in text for name in names for text in texts) or any(INDEX in text for text in texts):
        return ""
    shown = " or ".join(f"{{{name}}}" for name in sorted(names))
    return f"the command has no {shown}: its jobs differ by the variable {INDEX} alone"


# ---------------------------------------------------------------------------------------------------- arrays as one job


def title(element: ArrayElement) -> str:
    """Return the name of an array in a table, such as sweep[0-99%8]."""
    return f"{element.name}[{element.text}]"


def folded(jobs: Sequence[JobView]) -> list[JobView]:
    """Return the jobs with one row for each array, at the place of its first element."""
    arrays: dict[str, list[JobView]] = {}
    for job in jobs:
        if job.spec.array is not None:
            arrays.setdefault(job.spec.array.array, []).append(job)
    rows = []
    for job in jobs:
        array = job.spec.array
        if array is None or len(arrays[array.array]) == 1:
            rows.append(job)
        elif (elements := arrays[array.array])[0] is job:
            rows.append(_as_one(elements, array))
    return rows


def _as_one(elements: Sequence[JobView], array: ArrayElement) -> JobView:
    counts = Counter(job.phase for job in elements)
    first = elements[0]
    phase = next(
        phase
        for phase in (*_ACTIVE, JobPhase.PENDING, JobPhase.FAILED, JobPhase.CANCELLED, JobPhase.FINISHED)
        if counts[phase]
    )
    parts = [f"{counts[phase]} {phase.value}" for phase in JobPhase if counts[phase]]
    if (elsewhere := array.size - len(elements)) > 0:
        parts.append(f"{elsewhere} over")
    ends = [job.finished_s for job in elements if job.finished_s is not None]
    return replace(
        first,
        job=title(array),
        phase=phase,
        reason=", ".join(parts),
        share_gpus=sum(job.share_gpus for job in elements),
        wanted_gpus=sum(job.wanted_gpus for job in elements),
        finished_s=max(ends) if len(ends) == len(elements) else None,
        withheld=None,
        failure=None,
        exit_code=None,
        step=None,
        metrics={},
        odd_metrics={},
        samples_per_s=0.0,
        promise=None,
        does_not_grow="",
        elastic=True,
    )


_ACTIVE = (JobPhase.RUNNING, JobPhase.STARTING)


def meant(shared: Context, names: Sequence[str], mine: bool = True) -> list[str]:
    """Return the jobs that these words name.

    An array's name means its unfinished jobs, a pattern (sweep-*) all matches; other words are returned unchanged.
    Raises UserError if no job matches a pattern.
    """
    found: list[str] = []
    views: Sequence[JobView] | None = None
    for name in names:
        if not _GLOB.search(name) and not _is_array(shared, name):
            found.append(name)
            continue
        if views is None:
            views = shared.client.jobs(GetJobs(mine=mine)).jobs
        those = [view.job for view in views if matches(view, name)]
        if not those:
            raise UserError(f"no unfinished job{' of yours' if mine else ''} matches {name!r}")
        found += those
    return list(dict.fromkeys(found))


def awaited(shared: Context, after: Sequence[After]) -> tuple[After, ...]:
    """Return the jobs to wait for.

    An array's name means all jobs of the newest array of that name, ended ones included.
    """
    found: list[After] = []
    for each in after:
        if not _is_array(shared, each.job):
            found.append(each)
            continue
        views = [*shared.client.jobs(GetJobs()).jobs, *shared.client.jobs(GetEnded(), MAX_ARRAY).jobs]
        those = [view for view in views if view.spec.array is not None and view.spec.array.name == each.job]
        newest = max(those, key=lambda view: view.submitted_s).spec.array
        assert newest is not None
        names = {view.job for view in those if view.spec.array is not None and view.spec.array.array == newest.array}
        found += [After(job=name, any=each.any) for name in sorted(names, key=job_number)]
    return tuple(found)


def matches(view: JobView, pattern: str) -> bool:
    """Return whether a job's id or name matches a pattern, or its array has that name or title."""
    array = view.spec.array
    names = [view.job, view.spec.name]
    if array is not None:
        if pattern in (array.name, title(array)):
            return True
        names.append(array.name)
    return any(fnmatchcase(name, pattern) for name in names)


def names_several(shared: Context, name: str, ended: bool) -> bool:
    """Return whether a word is a pattern or names an array. ended: also one of which all jobs are over."""
    return bool(_GLOB.search(name)) or _is_array(shared, name, ended)


def _is_array(shared: Context, name: str, ended: bool = False) -> bool:
    """Return whether a word names no job, but an array with unfinished jobs; ended: or with others."""
    try:
        shared.job(name)
    except UserError:
        views = [*shared.client.jobs(GetJobs()).jobs]
        if ended:
            views += shared.client.jobs(GetEnded(), MAX_ARRAY).jobs
        return any(view.spec.array is not None and view.spec.array.name == name for view in views)
    return False
