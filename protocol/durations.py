"""Durations as people write them: "90s", "10m", "1h30m", "2d"; and rules for idle GPUs, which have some."""

from __future__ import annotations

import itertools
import re

from .errors import UserError
from .model import Idle
from .times import LEAST_IDLE_S

DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")
IDLE_ACTS = ("warn", "shrink", "suspend")
IDLE_EXAMPLE = "warn 10m, suspend 1h"


def duration_s(value: str | float, where: str) -> float:
    """Return the seconds of "90s", "10m", "1h30m", "2d", or of a plain number. Raises UserError naming `where`."""
    if isinstance(value, int | float):
        seconds = float(value)
    else:
        match = DURATION.fullmatch(value.strip())
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


def idle_of(text: str, where: str) -> Idle:
    """Return what `text` asks for, such as "warn 10m, shrink 30m, suspend 1h". Raises UserError naming `where`."""
    found: dict[str, float] = {}
    for part in text.split(","):
        act, _, after = part.strip().partition(" ")
        if act not in IDLE_ACTS or act in found or re.fullmatch(r"[\d.\s]*", after):
            raise UserError(
                f"{where}: {part.strip()!r} is not one of {', '.join(IDLE_ACTS)}, each at most once and with a time with "
                f"units: {IDLE_EXAMPLE}"
            )
        found[act] = duration_s(after, f"{where}: {act}")
        if found[act] < LEAST_IDLE_S:
            raise UserError(
                f"{where}: {part.strip()!r}: use is sampled every few seconds, so {LEAST_IDLE_S:g}s is the least"
            )
    given = [act for act in IDLE_ACTS if act in found]
    for earlier, later in itertools.pairwise(given):
        if found[earlier] >= found[later]:
            raise UserError(f"{where}: {earlier} has to come before {later}: {IDLE_EXAMPLE}")
    return Idle(**{f"{act}_s": seconds for act, seconds in found.items()})
