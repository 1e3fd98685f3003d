"""Rules of measuring a job's throughput: with which shares, and when (AFS 4.5: overestimate first, readjust later).

A job of unknown throughput gets at most its fair share at first. After a measurement there it goes down through smaller
shares, a few steps with each, and only then gets the policy's share for the measured values. Meanwhile its GPUs stay
its own: a loan of some seconds would cost other jobs more than it brings. All steps are part of training, so the cost
is the work that the idle GPUs would have done.

Differences from the paper
-------------------------

* AFS measures all allocatable units. Here about half of the share is measured, half of that, and so on. With network
  packing and up to two servers these are all allowed shares. On more servers the curve between them is a straight line
  (`speedup_curve`), and most of the cost is saved.
* Throughput that is known from earlier jobs, a profile or the job file is not measured again (ElasticFlow 6.6: no need
  for known jobs).
* Nothing is measured where it would only disturb: with too few steps left to pay, with shares that are too slow for the
  required steps, under a policy that never uses throughput, or while the share is manual.
* The fair share is rounded up, so that no GPU idles for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from .arrays import Floats
from .packing import rounded_down


@dataclass(frozen=True)
class Measuring:
    """Rules for measuring jobs. Without `way_down` they are measured only with the shares that the policy gives them."""

    way_down: bool = True
    steps: int = 20  # steps with each share, of which the median counts
    longest_s: float = 60.0  # longest time of measuring one share
    most_of_rest: float = 0.05  # fraction of the job's remaining time, for all of its shares together


OFF = Measuring(way_down=False)


def first_share(total: int, jobs: int) -> int:
    """Return the largest share of a job of unknown throughput: 1/n of the cluster (AFS 4.5), rounded up."""
    return -(-total // max(jobs, 1))


def smaller_shares(share: int, least: int, server_gpus: int | None) -> tuple[int, ...]:
    """Return the shares from `share` down to `least`, the largest first.

    `server_gpus`: GPUs of each server, where shares are packed.
    """
    found: list[int] = []
    below = share // 2
    while below >= max(least, 1):
        allowed = int(rounded_down(np.array([below]), server_gpus)[0]) if server_gpus else below
        if allowed >= least and (not found or allowed < found[-1]):
            found.append(allowed)
        below //= 2
    return tuple(found)


def unknown(shares: Iterable[int], known: Iterable[int]) -> tuple[int, ...]:
    """Return those of `shares` without a known share close above: the same, or less than twice as large."""
    there = set(known)
    return tuple(share for share in shares if not any(share <= other < 2 * share for other in there))


def worth_measuring(
    measuring: Measuring, shares: Iterable[int], curve: Floats, left_s: float = math.inf
) -> tuple[int, ...]:
    """Return those of `shares` that can be measured in time; none if all together take too much of the job's remaining
    time.

    `curve`: estimated steps per second by share. `left_s`: seconds until the job's end at its present speed.
    """
    takes_s = {share: measuring.steps / float(curve[share]) for share in shares}
    able = tuple(share for share, time_s in takes_s.items() if time_s <= measuring.longest_s)
    return able if sum(takes_s[share] for share in able) <= measuring.most_of_rest * left_s else ()
