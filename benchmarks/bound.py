"""Lower bound on the average JCT under any scheduler, even one that knows the future (docs/reports/elastic.md).

    python -m benchmarks.bound [--data ../shared/data] [--cluster e13805]... [--steps 100] [--cell-s 0]

Theory of operation
-------------------
Assign a price to GPU time, `price[x]` seconds per GPU-second in cell x of time, and let each job choose its
GPUs over time such that its JCT plus its payment is least, as if it were alone. The sum of these over all jobs, less the price
of all GPUs, is a lower bound on the sum of JCTs of any division of the GPUs, for any prices (Lagrangian duality): in a
division, jobs pay for at most all GPUs. The scheduler is unrestricted: it knows arrivals and lengths in advance, and changes
shares at no cost.

The cost of a job of work w that arrives at r and ends at C is in turn bounded from below, for any value m of its work, by

    C - r + m w - integral from r to C of max over k of (m s(k) - price k)

In a cell this is linear in C, so it is least at an end of the cell, and it never decreases where m is
min over k of (1 + price k) / s(k), the value at which the job may end at any time in the cell. So a job costs at least

    min over cells of max over m of min over the ends of the cell

with m from a grid; between two points of the grid the sum is at least the linear interpolation, as it is concave in m.

Good prices balance demand and supply: they rise where jobs take more than all GPUs, and fall where GPUs are left.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from elasticd.protocol.errors import ElasticError
from elasticd.scheduler.arrays import Floats, Ints
from elasticd.scheduler.hull import concave
from elasticd.scheduler.policies import load_policy
from elasticd.simulator.engine import Simulation
from elasticd.simulator.workload import Workload, servers

from .policies import CLUSTERS, GPUS, load

RATIO = 1.04  # of a price to the next smaller one; also of values of work
LEAST_PRICE = 0.01  # except 0
FIRST_CELLS = 32  # examined for a job; as many again while it might end later


@dataclass(frozen=True)
class Choice:
    """Choices of jobs with one curve at each price and each value of their work, on the grid."""

    gpus: Ints  # chosen, by price and value
    speedup: Floats
    saves: Floats  # per second: value of the work done less the price of the GPUs
    value: Floats  # by price: value of work at which a job may end at any time
    below: Ints  # next lower point of the grid
    beyond: Floats  # fraction of the way to the next point
    fastest: float


@dataclass(frozen=True)
class Found:
    """A bound. `average_s`: no division of the GPUs has a shorter average JCT. `taken_gpus`: mean over each cell."""

    average_s: float
    taken_gpus: Floats


class Bound:
    """Lower bound for the jobs of one workload, which arrive at the starts of cells of time."""

    def __init__(self, jobs: Workload, gpus: int, cells_s: Floats) -> None:
        """cells_s: starts of the cells; a job that arrives within a cell counts as arriving at its start. The last never ends."""
        self._jobs, self._gpus, self.cells_s = jobs, gpus, cells_s
        self._came = np.searchsorted(cells_s, jobs.submit_s, "right") - 1
        self._early_s = float((jobs.submit_s - cells_s[self._came]).sum())
        self._length_s = np.append(np.diff(cells_s), 1e12)
        most = np.minimum(np.minimum(jobs.max_gpus, jobs.curves.most), gpus)
        kinds, self._kind = np.unique(np.stack([jobs.curve, most]), axis=1, return_inverse=True)
        self._kind = self._kind.reshape(-1)
        # Above the measured curve, which need not be concave: a job could alternate between two shares.
        self._curves = [np.maximum.accumulate(concave(jobs.curves.speedup)[c, : m + 1]) for c, m in kinds.T.tolist()]
        self._cells = np.full(len(jobs), FIRST_CELLS)

    def at(self, price: Floats) -> Found:
        """Return the bound for these prices, one per cell."""
        steps = np.rint(np.log(np.maximum(price, LEAST_PRICE / 2) / LEAST_PRICE) / np.log(RATIO)).astype(np.int64)
        step = np.maximum(steps + 1, 0) * (price >= LEAST_PRICE * 0.9)
        step[-1] = 0
        prices = np.concatenate([[0.0], LEAST_PRICE * RATIO ** np.arange(int(step.max()))])
        least = 0.99 / max(curve[-1] for curve in self._curves)
        values = least * RATIO ** np.arange(2 + np.log(1.1 * (1 + prices[-1]) / least) / np.log(RATIO))
        choices = [_choice(curve, prices, values) for curve in self._curves]
        taken = np.zeros(len(step))
        total_s = 0.0
        for job, kind in enumerate(self._kind.tolist()):
            total_s += self._cost_s(job, choices[kind], values, step, taken)
        total_s -= self._gpus * float((prices[step[:-1]] * self._length_s[:-1]).sum())
        return Found((total_s - self._early_s) / len(self._jobs), taken / self._length_s)

    def _cost_s(self, job: int, choice: Choice, values: Floats, step: Ints, taken: Floats) -> float:
        """Return the least cost of one job (s). Its GPU-seconds by cell are added to `taken`."""
        work_s, first = float(self._jobs.work_s[job]), int(self._came[job])
        while True:
            until = min(first + int(self._cells[job]), len(step))
            at, length_s = step[first:until], self._length_s[first:until]
            passed_s = self.cells_s[first:until] - self.cells_s[first]
            ends = np.empty((len(at) + 1, len(values)))  # sums at the cells' ends
            ends[0] = values * work_s
            np.cumsum((1.0 - choice.saves[at]) * length_s[:, None], axis=0, out=ends[1:])
            ends[1:] += ends[0]
            rows, below, beyond = np.arange(len(at)), choice.below[at], choice.beyond[at]
            anywhere = (1 - beyond) * ends[rows, below] + beyond * ends[rows, below + 1]
            least = np.minimum(ends[:-1], ends[1:])
            best = least.argmax(axis=1)
            cost_s = np.maximum(anywhere, least[rows, best])
            cost_s[choice.fastest * (passed_s + length_s) < work_s] = np.inf
            cell = int(cost_s.argmin())
            if until == len(step) or passed_s[-1] >= cost_s[cell]:
                break
            self._cells[job] *= 2
        value = int(best[cell]) if least[cell, best[cell]] > anywhere[cell] else int(below[cell] + round(beyond[cell]))
        at = at[: cell + 1]
        done_s = np.cumsum(choice.speedup[at, value] * length_s[: cell + 1])
        part = np.clip(1 - (done_s - work_s) / np.maximum(np.diff(done_s, prepend=0.0), 1e-9), 0, 1)
        taken[first : first + cell + 1] += choice.gpus[at, value] * length_s[: cell + 1] * part
        return float(cost_s[cell])


def _choice(curve: Floats, prices: Floats, values: Floats) -> Choice:
    """Compute the choices. curve: throughput with 0, 1, 2 … GPUs relative to one GPU, concave."""
    shares = np.arange(len(curve))
    gpus = np.empty((len(prices), len(values)), dtype=np.int64)
    for at, price in enumerate(prices.tolist()):
        gpus[at] = (values[:, None] * curve - price * shares).argmax(axis=1)
    value = ((1 + prices[:, None] * shares[1:]) / curve[1:]).min(axis=1)
    below = np.searchsorted(values, value, "right") - 1
    return Choice(
        gpus=gpus,
        speedup=curve[gpus],
        saves=values * curve[gpus] - prices[:, None] * gpus,
        value=value,
        below=below,
        beyond=(value - values[below]) / (values[below + 1] - values[below]),
        fastest=float(curve[-1]),
    )


def climb(bound: Bound, gpus: int, price: Floats, steps: int) -> float:
    """Return the best bound found (s), starting from some prices. It is a bound whether the prices are good or not."""
    log_price, speed = np.log(np.maximum(price, LEAST_PRICE / 4)), np.zeros(len(price))
    best_s = bound.at(np.zeros(len(price))).average_s  # the bound with each job alone in the cluster
    for step in range(steps):
        found = bound.at(np.exp(log_price))
        best_s = max(best_s, found.average_s)
        speed = 0.7 * speed + 0.3 * np.clip(found.taken_gpus / gpus - 1, -1, 2)
        log_price = np.maximum(log_price + 0.3 / (1 + step / 25) * speed, np.log(LEAST_PRICE / 4))
    return best_s


def shortest_average_s(jobs: Workload, end_s: Floats, gpus: int, steps: int, cell_s: float = 0.0) -> float:
    """Return a lower bound on the average JCT of any division of the GPUs (s).

    end_s: of some simulation; gives the number of present jobs, from which the first prices follow, and the times at which prices
    change. cell_s: least length of a cell.
    """
    cells_s = np.unique(np.concatenate([jobs.submit_s, end_s]))
    if cell_s:
        cells_s = cells_s[np.concatenate([[True], np.diff(np.floor(cells_s / cell_s)) > 0])]
    present = np.searchsorted(jobs.submit_s, cells_s, "right") - np.searchsorted(np.sort(end_s), cells_s, "right")
    return climb(Bound(jobs, gpus, cells_s), gpus, 0.8 * present / gpus, steps)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    parser.add_argument("--cluster", action="append", choices=CLUSTERS, help="may be repeated; default: all")
    parser.add_argument("--steps", type=int, default=100, help="in which prices are made better")
    parser.add_argument("--cell-s", type=float, default=0.0, help="prices change at most every so many seconds")
    options = parser.parse_args(arguments)
    print("| cluster | elastic, given | no less than | that is less by |\n| --- | --- | --- | --- |")
    for cluster in options.cluster or CLUSTERS:
        try:
            jobs = load(options.data, cluster, 1.0).workload
        except ElasticError as error:
            sys.exit(str(error))
        end_s = Simulation(jobs, servers(16, GPUS // 16), load_policy({"policy": "elastic"}, "elastic")).run().end_s
        taken_s = float((end_s - jobs.submit_s).mean())
        least_s = shortest_average_s(jobs, end_s, GPUS, options.steps, options.cell_s)
        print(f"| {cluster} | {taken_s:,.0f} s | {least_s:,.0f} s | {1 - least_s / taken_s:.1%} |", flush=True)


if __name__ == "__main__":
    main()
