"""Manual shares, set by a user or operator: they precede any policy. Pure."""

from __future__ import annotations

import numpy as np

from .arrays import Ints
from .view import ClusterView


def shares_by_hand(view: ClusterView) -> Ints:
    """Return the manual shares in the order of submission, as large as they fit, at least the job's minimum.

    A manual share below the minimum is its own minimum.
    """
    shares = np.zeros(len(view.jobs), dtype=np.int64)
    free = view.total_gpus
    for row, wanted in sorted(view.manual_shares.items()):
        share, least = min(wanted, free), min(wanted, int(view.jobs.min_gpus[row]))
        shares[row] = share if share >= least else 0
        free -= int(shares[row])
    return shares
