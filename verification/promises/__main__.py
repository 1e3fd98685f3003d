"""`make promises`: 10,000 random workloads with deadlines, under random settings. No admitted job may be late.

    python -m verification.promises [--workloads N] [--first SEED] [--processes N]

Prints a table, and each seed with a job that is late; then the exit code is 1.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from .workloads import Verdict, judged

ALL = "all"
AT_ONCE = 50  # workloads per task of a process


def _each(seeds: Sequence[int], processes: int) -> Iterator[Verdict]:
    if processes <= 1:
        yield from map(judged, seeds)
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as executor:
        yield from executor.map(judged, seeds, chunksize=AT_ONCE)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m verification.promises", description=__doc__)
    parser.add_argument("--workloads", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.workloads)
    sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for one in _each(seeds, options.processes):
        for row in (*one.settings, ALL):
            sums[row] += Counter(
                workloads=1, hard=one.deadlines, admitted=one.admitted, late=len(one.late_s), changes=one.changes
            )
        for name, s in one.late_s.items():
            print(f"seed {one.seed}: {name} is {s:,.3f} s late ({'; '.join(one.settings)})", flush=True)
    print(f"{'workloads':>9} {'deadlines':>9} {'admitted':>8} {'part':>6} {'late':>4} {'changes':>8}  setting")
    for row in sorted(sums, key=lambda row: (row == ALL, row)):
        count = sums[row]
        part = count["admitted"] / max(count["hard"], 1)
        numbers = f"{count['workloads']:9,} {count['hard']:9,} {count['admitted']:8,}"
        print(f"{numbers} {part:6.3f} {count['late']:4,} {count['changes']:8,}  {row}")
    return 1 if sums[ALL]["late"] else 0


if __name__ == "__main__":
    sys.exit(main())
