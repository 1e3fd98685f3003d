"""How short the average JCT can be at best, whoever decides and whatever he knows (docs/reports/elastic.md).

    python -m benchmarks.bound [--data ../shared/data] [--cluster e13805]... [--steps 100] [--cell-s 0]

Theory of operation
-------------------
Let GPU time cost something, `price[x]` seconds per GPU-second in cell x of time, and let every job choose how many GPUs it takes
when, so that its JCT and what it pays are least, as if it were alone. The sum of that over all jobs, less what all GPUs cost, is
no more than the sum of JCTs of any division of the GPUs, for any prices (Lagrangian duality): in one, jobs pay for no more than
all GPUs. Nothing is assumed of who decides: arrivals and lengths are known beforehand, shares change at no cost.

What a job of work w that comes at r pays until its end C is again no less than a simpler sum, for any value m of its work:

    C - r + m w - integral from r to C of max over k of (m s(k) - price k)

In a cell this is linear in C, so that it is least at one of the cell's ends, and falls nowhere where m is
min over k of (1 + price k) / s(k), the value at which the job may end any time in the cell. So a job costs at least

    min over cells of max over m of min over the ends of the cell

where m is one of a grid; between two points of the grid the sum is no less than the straight line, as it is concave in m.

Good prices balance what jobs take and what there is: they grow where more than all GPUs are taken and fall where some are left.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from elasticd.protocol.errors import ElasticError
from elasticd.scheduler.hull import concave
from elasticd.scheduler.policies import load_policy
from elasticd.scheduler.view import Floats, Ints
from elasticd.simulator.engine import Simulation
from elasticd.simulator.workload import Workload, servers

from .policies import CLUSTERS, GPUS, load

RATIO = 1.04  # of a price to the next smaller one; of a value of work as well
LEAST_PRICE = 0.01  # but 0
FIRST_CELLS = 32  # are looked at for a job; as many again while it might end later


@dataclass(frozen=True)
class Choice:
    """What jobs with one curve do at each price, at each value of their work, on the grid."""

    gpus: Ints  # by price and value
    speedup: Floats
    saves: Floats  # a second: what the work done is worth less what the GPUs cost
    value: Floats  # by price, of work of a job that may end any time
    below: Ints  # the point of the grid below that
    beyond: Floats  # how far it is to the next point
    fastest: float


@dataclass(frozen=True)
class Found:
    """`average_s`: no division of the GPUs has a shorter average JCT. `taken_gpus`: on the mean over each cell."""

    average_s: float
    taken_gpus: Floats


class Bound:
    """Jobs of one workload, and cells of time at whose starts they come."""

    def __init__(self, jobs: Workload, gpus: int, cells_s: Floats) -> None:
        """`cells_s`: when cells start; a job that comes within one is taken to come at its start. The last one never ends."""
        self._jobs, self._gpus, self.cells_s = jobs, gpus, cells_s
        self._came = np.searchsorted(cells_s, jobs.submit_s, "right") - 1
        self._early_s = float((jobs.submit_s - cells_s[self._came]).sum())
        self._length_s = np.append(np.diff(cells_s), 1e12)
        most = np.minimum(np.minimum(jobs.max_gpus, jobs.curves.most), gpus)
        kinds, self._kind = np.unique(np.stack([jobs.curve, most]), axis=1, return_inverse=True)
        self._kind = self._kind.reshape(-1)
        # Above the measured curve, which need not be concave: a job could take turns between two shares.
        self._curves = [np.maximum.accumulate(concave(jobs.curves.speedup)[c, : m + 1]) for c, m in kinds.T.tolist()]
        self._cells = np.full(len(jobs), FIRST_CELLS)

    def at(self, price: Floats) -> Found:
        """By cell."""
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
        """Of one job at the least. What it takes (GPU-seconds by cell) is added to `taken`."""
        work_s, first = float(self._jobs.work_s[job]), int(self._came[job])
        while True:
            until = min(first + int(self._cells[job]), len(step))
            at, length_s = step[first:until], self._length_s[first:until]
            passed_s = self.cells_s[first:until] - self.cells_s[first]
            ends = np.empty((len(at) + 1, len(values)))  # the sum at the cells' ends
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
    """`curve`: throughput with 0, 1, 2 … GPUs over that with one, concave."""
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
    """The best bound found (s), from some prices on. Whether they are good prices or not, it is a bound."""
    log_price, speed = np.log(np.maximum(price, LEAST_PRICE / 4)), np.zeros(len(price))
    best_s = bound.at(np.zeros(len(price))).average_s  # that of each job alone in the cluster
    for step in range(steps):
        found = bound.at(np.exp(log_price))
        best_s = max(best_s, found.average_s)
        speed = 0.7 * speed + 0.3 * np.clip(found.taken_gpus / gpus - 1, -1, 2)
        log_price = np.maximum(log_price + 0.3 / (1 + step / 25) * speed, np.log(LEAST_PRICE / 4))
    return best_s


def shortest_average_s(jobs: Workload, end_s: Floats, gpus: int, steps: int, cell_s: float = 0.0) -> float:
    """No division of the GPUs has a shorter average JCT (s).

    `end_s`: of some simulation. It says how many jobs there are when, from which the first prices follow, and when prices
    change. `cell_s`: at most every so often.
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
