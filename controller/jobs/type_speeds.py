"""The times that a job's GPU types take for one virtual worker, relative to each other (EasyScale 3.4: C_i). Pure.

Workers measure during training which of them are slower, and by how much (`worker.training.stragglers`). The slowness
that all members with one GPU type share is the type's pace for this job. The next roster distributes virtual workers by
these paces from its first step on.
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

    known: the paces so far. types: of the members of the committed roster. paces: of the members that are slower or
    faster than the others, by the leader's report. Only a roster of several types shows a difference between types.
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
