"""Estimates of job lengths: a job's own report, corrected by past reports, or the lengths of other jobs.

Theory of operation
-------------------

A job's remaining length is `COPIES` equally likely values: the 1/6, 1/2 and 5/6 quantiles of the remaining work of a job that has
come as far. They come from the ended jobs (`length_statistics`), as hazards by bin: the probability that a job ends in a bin that
it has reached.

* A job without a report is compared with jobs that requested about as many GPUs. A few of these give little evidence.
  So their hazard is mixed with that of all jobs, and that with a heavy tail, where a job takes as long again as it has
  taken with a fixed probability. Running jobs count as having survived the bins behind them, but all together no more
  than the ended jobs do. Otherwise a backlog of a thousand long jobs would make every new job look long, and let it
  wait for days.
* A job that has reported its length is compared with the fate of others that had: the hazard is one of fractions of the
  reported length. As long as all reports were true, all three values equal the report. Where users err by a factor of
  two, the values spread as far. Where jobs end early, one of the values is early. A job that has exceeded its report
  takes as long again as those before it that had exceeded theirs.

So nothing has to be configured, and a report counts as much as reports have proved to be worth.
"""

from __future__ import annotations

import math

import numpy as np

from ..arrays import Floats, Ints
from ..length_statistics import AS_TOLD, KINDS, LENGTHS_S, PARTS, RIGHT, Ended, bins, kinds
from ..view import JobTable

COPIES = 3
SHARES = (np.arange(COPIES) + 0.5) / COPIES  # the quantiles
_REST = (1.0 - SHARES)[:, None]

# Prior of the lengths before any job has ended, a heavy tail: a part (1 + t / LENGTHS_S[1])^-TAIL of the jobs is longer
# than t s (Lomax), so that the job that has done least is likely to end first. PRIOR, SHRINK: how many ends outweigh
# the prior.
LENGTHS_GROW, TAIL, PRIOR, SHRINK = 1.35, 0.4, 4.0, 8.0
_ENDS_S = np.append(LENGTHS_S[1:], LENGTHS_S[-1] * LENGTHS_GROW)
NO_LENGTH = 1.0 - ((LENGTHS_S[1] + _ENDS_S) / (LENGTHS_S[1] + LENGTHS_S)) ** -TAIL

# The prior has no mean. Where many lengths are drawn and added up, one such job would outweigh a queue of hundreds.
DRAWN_PRIOR = 0.5

# The same prior for reported lengths: a report is right, and a job that exceeds it takes half as long again.
TRUST = np.full(len(PARTS), 1.0 - 1.3 ** -(math.log(2.0) / math.log(1.5)))
TRUST[:AS_TOLD], TRUST[AS_TOLD] = 0.002, 0.9

_PART_ENDS = np.append(PARTS[1:], PARTS[-1] * 1.3)
_PART_MIDDLES = np.sqrt(np.maximum(PARTS, PARTS[1] / 2) * _PART_ENDS)
_PART_MIDDLES[AS_TOLD] = 1.0


def left_s(jobs: JobTable) -> tuple[Floats, Floats]:
    """Return the likely remaining work of these jobs, in seconds on one GPU, and how much more each has to do until
    more is known.

    The first result has `COPIES` rows of equally likely values, ascending; or one row, where for each job they are all
    the same.
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
    """Return the likely remaining seconds on one GPU of one job without a report, as far as ended jobs show them."""
    found, _ = _untold_s(ended, np.array([requested_gpus]), np.array([done_s]))
    return tuple(found[:, 0].tolist())


def at_quantiles_s(ended: Ended, requested_gpus: Ints, done_s: Floats, quantiles: Floats) -> Floats:
    """Return the remaining work of jobs without a report, in seconds on one GPU: each at its own quantile, in [0, 1), of
    the distribution for a job that has come as far.
    """
    kind, at, hazard = _hazards(ended, requested_gpus, done_s, DRAWN_PRIOR)
    found = np.empty(len(done_s))
    for number, (begin, falls) in enumerate(zip(at.tolist(), (1.0 - hazard[kind]).tolist(), strict=True)):
        place, reach, wanted = begin, 1.0, 1.0 - float(quantiles[number])
        while place < len(falls) - 1 and reach * falls[place] > wanted:
            reach *= falls[place]
            place += 1
        ends = reach * (1.0 - falls[place])
        part = min(1.0, (reach - wanted) / ends) if ends > 0 else 1.0
        first_s = max(float(LENGTHS_S[place]), float(done_s[number]))
        found[number] = first_s + part * (float(_ENDS_S[place]) - first_s) - float(done_s[number])
    return found


def _hazards(ended: Ended, requested_gpus: Ints, done_s: Floats, prior: float = PRIOR) -> tuple[Ints, Ints, Floats]:
    """Return the kind and the present bin of each job, and the hazards by kind and bin. prior: as PRIOR."""
    kind, at = kinds(requested_gpus), bins(LENGTHS_S, done_s * (1 + 1e-9))
    here = np.bincount(kind * len(LENGTHS_S) + at, minlength=KINDS * len(LENGTHS_S)).reshape(KINDS, -1)
    left = _survivors(ended.lengths, here)
    of_all = (ended.lengths.sum(0) + prior * NO_LENGTH) / (left.sum(0) + prior)
    return kind, at, (ended.lengths + SHRINK * of_all) / (left + SHRINK)


def _untold_s(ended: Ended, requested_gpus: Ints, done_s: Floats) -> tuple[Floats, Floats]:
    kind, at, hazard = _hazards(ended, requested_gpus, done_s)
    some = np.bincount(kind, minlength=KINDS).nonzero()[0]
    ends = _ENDS_S[_ends_in(hazard[some])[:, some.searchsorted(kind), at]] - LENGTHS_S[at]
    return ends, LENGTHS_S[np.minimum(at + 1, len(LENGTHS_S) - 1)] - done_s


def _told_s(ended: Ended, told_s: Floats, done_s: Floats) -> tuple[Floats, Floats]:
    """Return the result of `left_s` for jobs that have reported their lengths."""
    part, at = np.zeros(len(told_s)), np.zeros(len(told_s), dtype=np.int64)
    begun = done_s.nonzero()[0]
    part[begun] = done_s[begun] / np.maximum(told_s[begun], 1e-9)
    at[begun] = bins(PARTS, part[begun] * (1 + 1e-9))
    here = np.bincount(at, minlength=len(PARTS))
    left = _survivors(ended.errors, here)
    ends_in = _ends_in(((ended.errors + PRIOR * TRUST) / (left + PRIOR))[None])[:, 0]
    # If a job surely ends as reported, nothing is learnt before it exceeds that length.
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
    """Return the result of `_told_s` for jobs whose estimates differ from their reports.

    `at`: the jobs' present bins; `ends_in`: the bins where they end.
    """
    ends = np.maximum(_PART_MIDDLES[ends_in], np.where(ends_in == AS_TOLD, 0.0, (part + _PART_ENDS[ends_in]) / 2))
    left_s = ends * told_s - done_s
    over = np.maximum(left_s, np.where(at < len(PARTS) - 1, RIGHT * told_s, done_s / 2))
    as_told = (ends_in == AS_TOLD).all(axis=0)
    following = np.where(as_told, AS_TOLD + 1, np.minimum(at + 1, len(PARTS) - 1))
    return np.where(part < 1, left_s, over), PARTS[following] * told_s - done_s


def _survivors(ended: Ints, here: Ints) -> Floats:
    """Return how many jobs have come to each bin and ended there or gone on.

    `here`: unfinished jobs by their present bin.
    """
    weight = min(1.0, int(ended.sum()) / max(int(here.sum()), 1))
    found: Floats = _reached(ended) + weight * (_reached(here) - here)
    return found


def _reached(ended: Ints) -> Ints:
    """Return how many jobs have come to each bin, given the bins where they ended."""
    reached: Ints = ended[..., ::-1].cumsum(axis=-1)[..., ::-1]
    return reached


def _ends_in(hazard: Floats) -> Ints:
    """Return the bins in which jobs end: by quantile, kind, and the bin that they have come to.

    `hazard`: by kind and bin, none above 1.
    """
    after = (1.0 - hazard).cumprod(axis=1)
    reach = np.ones_like(after)
    reach[:, 1:] = after[:, :-1]
    count = hazard.shape[1]
    found = np.empty((COPIES, *hazard.shape), dtype=np.int64)
    for kind, falling in enumerate(after):
        found[:, kind] = falling[::-1].searchsorted(reach[kind] * _REST, "right")
    ends: Ints = np.minimum(count - found, count - 1)
    return ends
