"""How long each job is likely to take: what it has told, held against what has come of that so far, or what is seen of others.

Theory of operation
-------------------
A job's remaining length is `COPIES` equally likely values: the 1/6, 1/2 and 5/6 quantiles of what is left of a job that has come
so far. They come from the jobs that have ended (`ended`), as hazards by bin: how likely a job ends in a bin that has reached it.

* A job that has told nothing is compared with those that requested about as many GPUs. Few of these say little: their hazard is
  mixed with that of all jobs, and that with a heavy tail, where a job takes as long again as it has taken with a fixed
  probability. Jobs that go on count as having survived the bins behind them, but all together no more than those that have
  ended: else a backlog of a thousand long jobs would make every newcomer look long, and let him wait for days.
* A job that has told its length is compared with what became of others that had: the hazard is one of parts of what was told. As
  long as all have told the truth, all three values are what is told; where users err by a factor of two, they spread so far;
  where jobs end early, one of them is early. Who is over what he has told takes as long again as those before him who were.

So nothing has to be set, and what is told counts as much as it has proved to be worth.
"""

from __future__ import annotations

import math

import numpy as np

from ..ended import AS_TOLD, KINDS, LENGTHS_S, PARTS, RIGHT, Ended, bins, kinds
from ..view import Floats, Ints, JobTable

COPIES = 3
SHARES = (np.arange(COPIES) + 0.5) / COPIES  # the quantiles
_REST = (1.0 - SHARES)[:, None]

# What is expected of lengths before anybody has ended: a heavy tail. Longer than t s is a part (1 + t / LENGTHS_S[1])^-TAIL of
# the jobs (Lomax), so that who has done least is likely to end first. And how many ends outweigh that.
LENGTHS_GROW, TAIL, PRIOR, SHRINK = 1.35, 0.4, 4.0, 8.0
_ENDS_S = np.append(LENGTHS_S[1:], LENGTHS_S[-1] * LENGTHS_GROW)
NO_LENGTH = 1.0 - ((LENGTHS_S[1] + _ENDS_S) / (LENGTHS_S[1] + LENGTHS_S)) ** -TAIL

# The same of what is told: it is right, and who goes on takes half as long again.
TRUST = np.full(len(PARTS), 1.0 - 1.3 ** -(math.log(2.0) / math.log(1.5)))
TRUST[:AS_TOLD], TRUST[AS_TOLD] = 0.002, 0.9

_PART_ENDS = np.append(PARTS[1:], PARTS[-1] * 1.3)
_PART_MIDDLES = np.sqrt(np.maximum(PARTS, PARTS[1] / 2) * _PART_ENDS)
_PART_MIDDLES[AS_TOLD] = 1.0


def left_s(jobs: JobTable) -> tuple[Floats, Floats]:
    """What these jobs are likely still to do, in seconds on one GPU: `COPIES` rows of equally likely values, ascending; or one
    row, where for each job they are all the same.

    And how much more each has to do until more will be known of it.
    """
    told_s, done_s = jobs.told_s, jobs.done_s
    silent = np.isnan(told_s)
    untold = silent.nonzero()[0]
    if not len(untold):
        return _told_s(jobs.ended, told_s, done_s)
    found, more_s = np.empty((COPIES, len(jobs))), np.empty(len(jobs))
    found[:, untold], more_s[untold] = _untold_s(jobs.ended, jobs.requested_gpus[untold], done_s[untold])
    if len(untold) < len(jobs):
        telling = np.logical_not(silent).nonzero()[0]
        found[:, telling], more_s[telling] = _told_s(jobs.ended, told_s[telling], done_s[telling])
    return found, more_s


def likely_s(ended: Ended, requested_gpus: int, done_s: float) -> tuple[float, ...]:
    """The same of one job that has told nothing, as far as those tell that have ended."""
    found, _ = _untold_s(ended, np.array([requested_gpus]), np.array([done_s]))
    return tuple(found[:, 0].tolist())


def _untold_s(ended: Ended, requested_gpus: Ints, done_s: Floats) -> tuple[Floats, Floats]:
    kind, at = kinds(requested_gpus), bins(LENGTHS_S, done_s * (1 + 1e-9))
    here = np.bincount(kind * len(LENGTHS_S) + at, minlength=KINDS * len(LENGTHS_S)).reshape(KINDS, -1)
    left = _survivors(ended.lengths, here)
    of_all = (ended.lengths.sum(0) + PRIOR * NO_LENGTH) / (left.sum(0) + PRIOR)
    hazard = (ended.lengths + SHRINK * of_all) / (left + SHRINK)
    some = np.bincount(kind, minlength=KINDS).nonzero()[0]
    ends = _ENDS_S[_ends_in(hazard[some])[:, some.searchsorted(kind), at]] - LENGTHS_S[at]
    return ends, LENGTHS_S[np.minimum(at + 1, len(LENGTHS_S) - 1)] - done_s


def _told_s(ended: Ended, told_s: Floats, done_s: Floats) -> tuple[Floats, Floats]:
    """As `left_s`, of jobs that have told their lengths."""
    part, at = np.zeros(len(told_s)), np.zeros(len(told_s), dtype=np.int64)
    begun = done_s.nonzero()[0]
    part[begun] = done_s[begun] / np.maximum(told_s[begun], 1e-9)
    at[begun] = bins(PARTS, part[begun] * (1 + 1e-9))
    here = np.bincount(at, minlength=len(PARTS))
    left = _survivors(ended.errors, here)
    ends_in = _ends_in(((ended.errors + PRIOR * TRUST) / (left + PRIOR))[None])[:, 0]
    # Of who ends as told for sure, nothing will be known before he is over that.
    sure = (ends_in == AS_TOLD).all(axis=0)[at]
    sure[begun[part[begun] >= 1]] = False
    found_s: Floats = (told_s - done_s)[None]
    more_s = PARTS[AS_TOLD + 1] * told_s - done_s
    rest = np.logical_not(sure).nonzero()[0]
    if len(rest):
        found_s = np.repeat(found_s, COPIES, axis=0)
        found_s[:, rest], more_s[rest] = _doubtful_s(
            ends_in[:, at[rest]], at[rest], part[rest], told_s[rest], done_s[rest]
        )
    return found_s, more_s


def _doubtful_s(ends_in: Ints, at: Ints, part: Floats, told_s: Floats, done_s: Floats) -> tuple[Floats, Floats]:
    """The same, where not all values are what has been told. `at`: in which bins they are; `ends_in`: in which they end."""
    ends = np.maximum(_PART_MIDDLES[ends_in], np.where(ends_in == AS_TOLD, 0.0, (part + _PART_ENDS[ends_in]) / 2))
    left_s = ends * told_s - done_s
    over = np.maximum(left_s, np.where(at < len(PARTS) - 1, RIGHT * told_s, done_s / 2))
    as_told = (ends_in == AS_TOLD).all(axis=0)
    following = np.where(as_told, AS_TOLD + 1, np.minimum(at + 1, len(PARTS) - 1))
    return np.where(part < 1, left_s, over), PARTS[following] * told_s - done_s


def _survivors(ended: Ints, here: Ints) -> Floats:
    """How many have come to each bin, and have ended there or gone on. `here`: jobs that are not over, by where they are."""
    weight = min(1.0, int(ended.sum()) / max(int(here.sum()), 1))
    found: Floats = _reached(ended) + weight * (_reached(here) - here)
    return found


def _reached(ended: Ints) -> Ints:
    """How many have come to each bin, by where they ended."""
    reached: Ints = ended[..., ::-1].cumsum(axis=-1)[..., ::-1]
    return reached


def _ends_in(hazard: Floats) -> Ints:
    """In which bins jobs end: by quantile, kind, and the bin that they have come to. `hazard`: by kind and bin, none above 1."""
    after = (1.0 - hazard).cumprod(axis=1)
    reach = np.ones_like(after)
    reach[:, 1:] = after[:, :-1]
    count = hazard.shape[1]
    found = np.empty((COPIES, *hazard.shape), dtype=np.int64)
    for kind, falling in enumerate(after):
        found[:, kind] = falling[::-1].searchsorted(reach[kind] * _REST, "right")
    ends: Ints = np.minimum(count - found, count - 1)
    return ends
