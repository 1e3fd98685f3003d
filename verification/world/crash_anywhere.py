"""python -m verification.world.crash_anywhere [--life life] [--store etcd] [--twice 2] [--play life/etcd/17:after]

Exit code 0: no life broke an invariant. 1: some did; each is printed with the command that replays it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from .anywhere import STORES, Ended, Life, lives, names, play, sample
from .campaign import cores

CHUNK = 4  # lives per task of a process
SHOWN = 20  # failures


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make crash-anywhere", description=__doc__)
    parser.add_argument("--life", choices=names(), action="append", help="else all")
    parser.add_argument("--store", choices=STORES, action="append", help="else both")
    parser.add_argument(
        "--twice", type=int, default=0, help="after each failure another one, at each of the next so many"
    )
    parser.add_argument("--sample", type=int, default=0, help="so many of each life and store, evenly; else all")
    parser.add_argument("--play", help="this one, and tell its story: NAME/STORE/NUMBER:HOW")
    parser.add_argument("--operations", action="store_true", help="list the operations of undisturbed lives")
    parser.add_argument("--fail-fast", action="store_true", help="stop at the first failure")
    parser.add_argument("--processes", type=int, default=0, help="else one for each core")
    options = parser.parse_args(arguments)
    if options.play:
        try:
            ended = play(Life.of(options.play), tell=True)
        except ValueError as error:
            parser.error(str(error))
        print("\n".join([*ended.story, _line(ended)]))
        return int(ended.failed)
    chosen = [(name, store) for name in options.life or names() for store in options.store or STORES]
    if options.operations:
        for name, store in chosen:
            for number, operation in enumerate(play(Life(name, store)).operations, 1):
                print(f"{name}/{store}/{number:<4} {operation.who} {operation.what}")
        return 0
    failed = 0
    for name, store in chosen:
        all_of_it = list(lives(name, store, options.twice))
        played = sample(all_of_it, options.sample) if options.sample else all_of_it
        failed += _campaign(f"{name} on {store}", played, options)
        if failed and options.fail_fast:
            break
    return int(failed > 0)


def _campaign(title: str, played: Sequence[Life], options: argparse.Namespace) -> int:
    broken: Counter[str] = Counter()
    wall_s, done = 0.0, 0
    for ended in _outcomes(played, options.processes or cores()):
        done, wall_s = done + 1, wall_s + ended.wall_s
        if ended.failed:
            broken[ended.invariant] += 1
            if broken.total() <= SHOWN:
                print(_line(ended), flush=True)
            if options.fail_fast:
                break
    print(f"{title}: {done} lives, {broken.total()} failed, {wall_s:.0f} s of a core", flush=True)
    return broken.total()


def _outcomes(played: Iterable[Life], processes: int) -> Iterator[Ended]:
    if processes <= 1:
        yield from map(play, played)
        return
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        yield from pool.imap(play, played, chunksize=CHUNK)


def _line(ended: Ended) -> str:
    again = f'make crash-anywhere ARGS="--play {ended.life}"'
    if not ended.failed:
        return f"{again}: {len(ended.operations)} operations, all ended as it should"
    at = ", ".join(
        f"{ended.operations[number - 1].who} {ended.operations[number - 1].what}: {how.value}"
        for number, how in ended.life.strikes
        if number <= len(ended.operations)
    )
    return f"{ended.invariant}: {ended.text[:300]}\n    {at}\n    {again}"


if __name__ == "__main__":
    sys.exit(main())
