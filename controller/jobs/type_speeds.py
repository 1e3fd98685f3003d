"""The times that a job's GPU types take for one virtual worker, relative to each other (EasyScale 3.4: C_i). Pure.

Workers find out in band which of them are slower, and by how much (`worker.training.stragglers`). What the members of one type
have in common is the type's pace for this job: the next roster hosts virtual workers accordingly from its first step on.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from ...protocol.model import WorkerId
from ...scheduler.speedup_curve import NOISE


def learned(
    known: Mapping[str, float], types: Mapping[WorkerId, str], paces: Mapping[WorkerId, float]
) -> dict[str, float]:
    """Return the paces by GPU type.

    known: the paces so far. types: of the members of the committed roster. paces: of those that are not as fast as usual, as the
    leader reports. Only a roster of several types tells of their difference.
    """
    if len(set(types.values())) < 2:
        return dict(known)
    found = {
        name: median(paces.get(worker, 1.0) for worker, its in types.items() if its == name)
        for name in dict.fromkeys(types.values())
    }
    return {**known, **{name: pace for name, pace in found.items() if _differ(pace, known.get(name, 1.0))}}


def _differ(one: float, other: float) -> bool:
    return abs(one - other) > NOISE * other
