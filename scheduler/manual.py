"""Shares that somebody has set by hand: they come before any policy. Pure."""

from __future__ import annotations

import numpy as np

from .view import ClusterView, Ints


def shares_by_hand(view: ClusterView) -> Ints:
    """Shares set by hand come first, in the order of submission, as large as they fit; none below what the job asks for at least,
    unless that itself was set by hand."""
    shares = np.zeros(len(view.jobs), dtype=np.int64)
    free = view.total_gpus
    for row, wanted in sorted(view.manual_shares.items()):
        share, least = min(wanted, free), min(wanted, int(view.jobs.min_gpus[row]))
        shares[row] = share if share >= least else 0
        free -= int(shares[row])
    return shares
