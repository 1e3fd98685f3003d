"""python -m verification.world [--seeds 500] [--seed 17 [--keep 3,8,12]] [--weather tcp|hostile|calm]

Exit code 0: no history broke an invariant. 1: some did; the shortest story found of each kind is printed.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .campaign import ROOT, Journal, OtherCampaign, Settings, cores, first_failures, run
from .drawing import Shape
from .history import Outcome, play, shrink
from .plan import STORM_S, WEATHERS, Plan

WEEK_S = 7 * 86400.0
SHOWN = 5  # kinds of failures for which the shortest story is searched
CAMPAIGN = 1000  # histories; campaigns of this size or more keep a journal, so that an interrupted one continues
console = Console(soft_wrap=True, highlight=False)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    shape = Shape(options.servers, options.gpus, options.jobs, storm_s=options.storm_s, policy=options.policy)
    if options.week:
        shape = replace(shape, jobs=600, storm_s=WEEK_S, submit_s=0.99 * WEEK_S, faults=300)
    settings = Settings(options.weather, shape)
    gc.freeze()
    if options.seed is not None:
        plan = settings.plan(options.seed)
        if options.keep is not None:
            plan = plan.keep(frozenset(int(part) for part in options.keep.split(",") if part))
        return _replay(plan, settings, options)
    first, _, last = options.seeds.rpartition(":")
    seeds = range(int(first or 0), int(last))
    path = Path(options.campaign) if options.campaign else None
    if path is None and len(seeds) >= CAMPAIGN:
        path = ROOT / "out" / "world" / f"campaign-{settings.mark}.jsonl"
    try:
        journal = Journal(path, settings)
    except (OtherCampaign, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if path is not None:
        print(f"{path} has what has been played: the same command goes on from there")
    return _campaign(settings, seeds, options, journal)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make world", description=__doc__)
    parser.add_argument("--seeds", default="500", help="how many histories, or FIRST:LAST (without the last)")
    parser.add_argument("--seed", type=int, help="play this history, and tell its story")
    parser.add_argument("--keep", help="with --seed: only these entries of its plan")
    parser.add_argument("--shrink", action="store_true", help="with --seed: look for the shortest story that fails")
    parser.add_argument(
        "--weather", default="", choices=["", *WEATHERS], help="else tcp for even seeds, hostile for odd ones"
    )
    parser.add_argument("--policy", default="", help="else drawn from the seed")
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--gpus", type=int, help="of each server; else drawn from the seed")
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--storm-s", type=float, default=STORM_S, help="virtual seconds of weather")
    parser.add_argument(
        "--week", action="store_true", help="with --seed: a week with 600 jobs and 300 faults (minutes)"
    )
    parser.add_argument("--processes", type=int, default=0, help="else one for each core")
    parser.add_argument(
        "--campaign",
        help=f"the file that keeps what has been played (from {CAMPAIGN} histories on there is one under out/)",
    )
    parser.add_argument("--as-found", action="store_true", help="do not look for shorter stories")
    parser.add_argument("--fail-fast", action="store_true", help="stop at the first failure")
    return parser


def _replay(plan: Plan, settings: Settings, options: argparse.Namespace) -> int:
    outcome = play(plan, tell=True)
    if outcome.failed and options.shrink:
        _print_shortest(outcome, settings, options)
        return 1
    print("\n".join([*map(str, plan.entries), "", *outcome.story]))
    print(
        f"{outcome.events} events, {outcome.virtual_s:.0f} virtual s, {outcome.wall_s:.2f} s; story {outcome.digest[:16]}"
    )
    return int(outcome.failed)


def _campaign(settings: Settings, seeds: range, options: argparse.Namespace, journal: Journal) -> int:
    columns = (
        TextColumn("histories"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]} failed"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        known = [journal.known[seed] for seed in seeds if seed in journal.known]
        failed = sum(outcome.failed for outcome in known)
        task = progress.add_task("", total=len(seeds), completed=len(known), failed=failed)

        def watch(outcome: Outcome) -> None:
            nonlocal failed
            failed += outcome.failed
            progress.update(task, advance=1, failed=failed)

        run(settings, seeds, options.processes or cores(), journal, watch, options.fail_fast)
    played = [journal.known[seed] for seed in seeds if seed in journal.known]
    found = first_failures(played)
    _print_summary(played, found)
    for outcomes in [] if options.as_found else list(found.values())[:SHOWN]:
        _print_shortest(outcomes[0], settings, options)
    return int(bool(found))


def _print_shortest(outcome: Outcome, settings: Settings, options: argparse.Namespace) -> None:
    plan = settings.plan(outcome.seed)
    short, kept = shrink(plan, outcome.invariant)
    told = play(short, tell=True)
    again = f"--seed {outcome.seed} --keep {','.join(map(str, sorted(kept)))}{_of_its_kind(options)}"
    print(f'\n== {outcome.invariant}\n   {outcome.text}\n   make world ARGS="{again}"')
    print("\n".join([*map(str, short.entries), "", *told.story[-200:]]))


def _of_its_kind(options: argparse.Namespace) -> str:
    """Return the command-line options, besides the seed, that a seed needs to give the same history."""
    usual = _parser().parse_args([])
    names = ("weather", "policy", "servers", "gpus", "jobs", "storm_s")
    told = {name: getattr(options, name) for name in names if getattr(options, name) != getattr(usual, name)}
    words = [
        f" --{name.replace('_', '-')} {value:g}" if isinstance(value, float) else f" --{name.replace('_', '-')} {value}"
        for name, value in told.items()
    ]
    return "".join(words) + (" --week" if options.week else "")


def _print_summary(played: Sequence[Outcome], found: dict[str, list[Outcome]]) -> None:
    events, virtual_s = sum(outcome.events for outcome in played), sum(outcome.virtual_s for outcome in played)
    wall_s = sum(outcome.wall_s for outcome in played) or 1.0
    for invariant, outcomes in sorted(found.items(), key=lambda item: -len(item[1])):
        print(f"{len(outcomes):5d} of {len(played)}: {invariant}")
        for outcome in outcomes[:4]:
            print(f"        seed {outcome.seed}: {outcome.text[:200]}")
    rate = 60 * len(played) / wall_s
    print(
        f"{len(played)} histories, {events} events, {virtual_s / 3600:.1f} virtual hours, {rate:.0f} histories a minute and core"
    )
    print(f"{len(played) - sum(map(len, found.values()))} passed, {sum(map(len, found.values()))} failed")


if __name__ == "__main__":
    sys.exit(main())
