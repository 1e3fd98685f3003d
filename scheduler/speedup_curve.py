"""Estimate of a job's throughput with other shares, from its known values (AFS 4.5).

Known values come in layers, the weaker ones below: a table of the job's model, the job file, measurements of earlier
jobs of the same kind, and measurements of this job. A layer defines a shape: it is scaled to meet the layers above it,
which replace it where they overlap. So one real value corrects a table that was made on other GPUs.

Throughput depends on the placement, and the scheduler chooses the fewest servers. Values of that placement are the
points of the estimate. Values of other placements are bounds only: on more servers the job was slower than it would be,
on fewer faster. Only where there are no points do they replace them.

From points to a curve: overestimate first, readjust later
----------------------------------------------------------

* Without any values the job counts as scaling linearly.
* Below and between points: straight lines, which is linear scaling below the smallest one, and so overestimates few
  GPUs.
* Beyond the largest point AFS assumes linear scaling again. Where more than one share is known, this implementation
  continues with the slope from half of the largest share to it. That is no less than any concave curve can do, and much
  nearer. With AFS's rule a job that does not scale appears to gain greatly from two to four GPUs until it has had all
  of them. The slope starts at half of the largest share, not at the last but one point, since neighbours differ by
  noise.
* Measurements are noisy, and policies look one GPU ahead. So the estimate only grows, and a dent that could be noise is
  filled, up to the least concave curve above all values. A deeper dent stays: the job is really that slow there.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from msgspec import structs

from ..protocol.model import Value
from .arrays import Floats, Ints
from .hull import concave

KEPT_RATES = 5
NOISE = 0.05  # medians of the same quantity differ by up to this fraction
WORTHWHILE = (
    0.1  # least gain of one GPU more, relative to the average of the others: twice the noise, over twice the GPUs
)

Where = tuple[int, int]  # a share, and its number of servers; 0 servers: unknown, taken for the fewest


class Source(enum.Enum):
    """Source of a known throughput; the most reliable source comes first."""

    MEASURED = "measured"  # measured by this job
    HISTORY = "history"  # measured by an earlier job of the same kind
    STATED = "stated"  # stated in the job file
    PROFILE = "profile"  # listed for the job's model in a table
    ASSUMED = "assumed"


@dataclass(frozen=True)
class Rate:
    """A known throughput."""

    steps_per_s: float
    source: Source
    times: int = 1  # number of measurements
    at_s: float | None = None  # time of the last one (Unix time)


Known = Mapping[Where, Rate]


class Measured(Value, frozen=True, kw_only=True):
    """Measurements with one share on so many servers: the median of the last few."""

    share: int
    servers: int
    gpu: str = ""  # name of the GPUs; "": of several, or recorded by an earlier version
    recent: tuple[float, ...]  # steps per second, the newest last
    times: int
    at_s: float  # time of the last measurement (Unix time)

    @property
    def steps_per_s(self) -> float:
        return median(self.recent)

    def again(self, steps_per_s: float, now: float) -> Measured:
        """Return the measurements with one more."""
        recent = (*self.recent, steps_per_s)[-KEPT_RATES:]
        return structs.replace(self, recent=recent, times=self.times + 1, at_s=now)


def layer(measured: Iterable[Measured], source: Source) -> Known:
    """Return measurements as a layer of known values."""
    return {
        (entry.share, entry.servers): Rate(entry.steps_per_s, source, entry.times, entry.at_s) for entry in measured
    }


def on_gpus(measured: Iterable[Measured], name: str) -> list[Measured]:
    """Return the measurements on GPUs of this name; "": on those that were measured last."""
    entries = list(measured)
    if not name:
        name = max(((one.at_s, one.gpu) for one in entries if one.gpu), default=(0.0, ""))[1]
    return [one for one in entries if one.gpu in ("", name)]


def combined(layers: Iterable[Known]) -> Known:
    """Combine layers, the weakest first: each is scaled to meet those above it, and replaced by them."""
    found: dict[Where, Rate] = {}
    for above in layers:
        factor = _factor(found, above)
        found = {where: replace(rate, steps_per_s=rate.steps_per_s * factor) for where, rate in found.items()}
        found.update(above)
    return found


def _factor(below: Known, above: Known) -> float:
    """Return the factor for the values `below`: the median over the shares of `above` within their range."""
    if not below or not above:
        return 1.0
    points = _best(below)
    shares = sorted(points)
    rates = [points[share] for share in shares]
    ratios = []
    for (share, servers), rate in above.items():
        same = below.get((share, servers)) or below.get((share, 0))
        if same is not None:
            ratios.append(rate.steps_per_s / same.steps_per_s)
        elif share <= shares[-1]:
            ratios.append(rate.steps_per_s / float(np.interp(share, [0, *shares], [0.0, *rates])))
    if not ratios:  # all of them beyond the range: scale by the last value
        share, first = min((share, rate.steps_per_s) for (share, _), rate in above.items())
        ratios.append(first / (rates[-1] * share / shares[-1]))
    return median(ratios)


def fewest_servers(sizes: Sequence[int], most: int) -> Ints:
    """Return the number of servers for each share from 0 to `most` (0 if it does not fit), given the servers' sizes in
    GPUs."""
    room = np.cumsum(sorted(sizes, reverse=True))
    shares = np.arange(most + 1)
    servers = np.searchsorted(room, shares) + 1
    servers[shares > (room[-1] if len(room) else 0)] = 0
    servers[0] = 0
    return servers.astype(np.int64)


def points(known: Known, fewest: Ints) -> dict[int, Rate]:
    """Return the known values of shares in the scheduler's own choice of placement; `fewest`: servers by share."""
    found: dict[int, Rate] = {}
    for (share, servers), rate in known.items():
        if share < len(fewest) and (servers == fewest[share] or (not servers and share not in found)):
            found[share] = rate
    return found


def estimate(known: Known, fewest: Ints) -> Floats:
    """Return the steps per second for each share from 0 to `len(fewest) - 1`.

    If no throughput is known, only the ratios of the values have a meaning.
    """
    shares = np.arange(len(fewest), dtype=float)
    exact = {share: rate.steps_per_s for share, rate in points(known, fewest).items()} or _best(known)
    if not exact:
        return shares
    at = [0, *sorted(exact)]
    rates = np.maximum.accumulate([0.0, *(exact[share] for share in at[1:])])
    curve = np.interp(shares, at, rates)
    last = at[-1]
    half = float(np.interp(last / 2, at, rates))
    beyond = shares > last
    curve[beyond] = rates[-1] + (rates[-1] - half) / (last / 2) * (shares[beyond] - last)
    for (share, servers), rate in known.items():
        if share in exact or share >= len(fewest):
            continue
        bound = max if servers > fewest[share] else min
        curve[share] = bound(curve[share], rate.steps_per_s)
    curve = np.maximum.accumulate(curve)
    filled = concave(curve[None, :])[0]
    grown: Floats = np.maximum.accumulate(np.where(curve < (1 - NOISE) * filled, curve, filled))
    return grown


def peak(hull: Floats, least: int, most: int) -> int:
    """Return the share from `least` to `most` beyond which one GPU more brings no gain distinguishable from noise.

    `hull`: of the estimate, as more GPUs may be of use again behind a dent.
    """
    shares = np.arange(least, most)
    poor = hull[shares + 1] - hull[shares] < WORTHWHILE * hull[shares] / np.maximum(shares, 1)
    return int(shares[poor.argmax()]) if poor.any() else max(least, most)


def _best(known: Known) -> dict[int, float]:
    """Return the greatest throughput by share, over all placements."""
    found: dict[int, float] = {}
    for (share, _), rate in known.items():
        found[share] = max(found.get(share, 0.0), rate.steps_per_s)
    return found
