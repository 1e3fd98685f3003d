"""`scaling`, `replay_batches` and `--replay-batches`: how a job's batch may grow while it trains (Elan III)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ..protocol.batches import read_history
from ..protocol.errors import UserError
from ..protocol.limits import DEFAULT_MAX_FACTOR, DEFAULT_RAMP_STEPS, MAX_BATCH_FACTOR, MAX_RAMP_STEPS
from ..protocol.messages import JobView
from ..protocol.model import BatchChange, Scaling
from ..runtime.config import convert

MODES = ("hybrid", "manual")


class _Scaling(msgspec.Struct, forbid_unknown_fields=True):
    """The field `scaling` of a job file."""

    mode: str = "hybrid"
    max_factor: int = DEFAULT_MAX_FACTOR
    ramp_steps: int = DEFAULT_RAMP_STEPS


def wanted_scaling(
    source: str, scaling: Any, replay: Any, given: tuple[BatchChange, ...] | None, begin: Path
) -> Scaling | None:
    """Return the value of the fields `scaling` and `replay_batches`; None: neither is set. Raises UserError.

    given: the history of `--replay-batches`, which takes precedence. begin: where relative paths start.
    """
    where = f"{source}: scaling"
    written = {"mode": scaling} if isinstance(scaling, str) else scaling
    found = None if written is None else convert(written, _Scaling, where, UserError)
    changes = given if given is not None else _history(f"{source}: replay_batches", replay, begin)
    if found is not None:
        _check(where, found)
    elif changes is None:
        return None
    terms = found or _Scaling()
    return Scaling(
        hybrid=found is not None and terms.mode == "hybrid",
        max_factor=terms.max_factor,
        ramp_steps=terms.ramp_steps,
        replay=changes,
    )


def _check(where: str, found: _Scaling) -> None:
    if found.mode not in MODES:
        raise UserError(f"{where}: {found.mode!r} is not one of {', '.join(MODES)}")
    for field, value, least, most in (
        ("max_factor", found.max_factor, 1, MAX_BATCH_FACTOR),
        ("ramp_steps", found.ramp_steps, 0, MAX_RAMP_STEPS),
    ):
        if not least <= value <= most:
            raise UserError(f"{where}.{field}: is {value}; allowed are {least} to {most}")


def _history(where: str, given: Any, begin: Path) -> tuple[BatchChange, ...] | None:
    """Return the history of batches in a file, or in the job file itself. Raises UserError."""
    if given is None:
        return None
    if isinstance(given, str):
        return of_file(where, begin / Path(given).expanduser())
    try:
        return read_history(msgspec.json.encode(given))
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None


def of_file(where: str, path: Path) -> tuple[BatchChange, ...]:
    """Return the history in a file. Raises UserError."""
    try:
        return read_history(path.read_bytes())
    except OSError as error:
        raise UserError(f"{where}: {path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{where}: {path}: {error}") from None


def replayed(given: str | None, view_of: Callable[[str], JobView]) -> tuple[BatchChange, ...] | None:
    """Return the history of a job, or that in a file; None: none is given. Raises UserError."""
    if given is None:
        return None
    path = Path(given).expanduser()
    return of_file("--replay-batches", path) if "/" in given or path.is_file() else view_of(given).batch_changes


def document_of(scaling: Scaling | None) -> dict[str, object]:
    """Return the fields of a job file, the inverse of `wanted_scaling`."""
    if scaling is None:
        return {}
    mode = "hybrid" if scaling.hybrid else "manual"
    terms = {"mode": mode, "max_factor": scaling.max_factor, "ramp_steps": scaling.ramp_steps}
    changes = scaling.replay
    return {"scaling": terms, **({} if changes is None else {"replay_batches": msgspec.to_builtins(list(changes))})}
