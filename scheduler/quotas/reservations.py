"""Reservations by time: a number of GPUs that are out of use for a period, for a user outside the cluster. Pure.

They are written in the policy file. The GPUs held for the head of the queue are a different matter
(`scheduler.reservation`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated

import msgspec

MOST_RESERVATIONS = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)

Busy = tuple[float, float, int]  # from, until (Unix time, s), number of GPUs


class TimedReservation(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"starts": "from", "ends": "to"}
):
    """`gpus`: so many GPUs are taken out of use. `from`, `to`: when, in ISO 8601 with a time zone
    (2026-11-30T18:00+01:00).

    Raises ValueError, which a policy file's reader turns into a sentence with the field.
    """

    name: str
    gpus: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    starts: str
    ends: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                "name: is not a name: letters, digits, '.', '_' and '-', at most 64, a letter or digit first"
            )
        if unix_s("to", self.ends) <= unix_s("from", self.starts):
            raise ValueError(f"to: is not after {self.starts}, where it begins")

    @property
    def from_s(self) -> float:
        """Unix time."""
        return unix_s("from", self.starts)

    @property
    def to_s(self) -> float:
        return unix_s("to", self.ends)


def busy(reservations: Iterable[TimedReservation], taken: Mapping[str, int], now: float) -> Iterator[Busy]:
    """Yield the periods and numbers of usable GPUs that will be out of use.

    `taken`: by name, a reservation's GPUs that already are.
    """
    for one in reservations:
        left = one.gpus - taken.get(one.name, 0)
        if one.to_s > now and left > 0:
            yield max(now, one.from_s), one.to_s, left


def next_s(reservations: Iterable[TimedReservation], now: float) -> float:
    """Return when the next reservation begins (Unix time, s); inf: none does."""
    return min((one.from_s for one in reservations if one.from_s > now), default=math.inf)


def repeated(reservations: Sequence[TimedReservation]) -> str:
    """Return a name that two reservations have; "" if there is none."""
    names = [one.name for one in reservations]
    return next((name for at, name in enumerate(names) if name in names[:at]), "")


def unix_s(field: str, text: str) -> float:
    """Return the Unix time of a text in ISO 8601 with a time zone. Raises ValueError, naming the field."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{field}: is not a time, such as 2026-11-30T18:00+01:00") from None
    if found.tzinfo is None:
        raise ValueError(f"{field}: does not say its time zone, such as 2026-11-30T18:00+01:00 does")
    return found.timestamp()
