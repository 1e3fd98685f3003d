"""python -m verification.scripts [--quick] [--only own,fabric] [--history "leader killed"] [--seed 1]

Exit code 0: in every history, every script ended with the same result as alone. Scripts with a framework that is not installed
are skipped, and the table says so.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

import torch

from ..bits.nursery import Nursery
from ..bits.worker import path_of
from . import acts, table, torchrun, worker
from .course import Alone, Course, Stuck, Verdict, train_alone

VIRTUAL_WORKERS = 4
SCRIPTS: dict[str, tuple[str, ...]] = {  # requirements of each besides torch
    "own": (),
    "shards": (),
    "trainer": ("transformers", "accelerate"),
    "ddp": (),
    "accelerated": ("accelerate",),
    "fabric": ("lightning",),
    "lightning_trainer": ("lightning",),
}
TORCHRUN = "ddp"  # script that is compared with its original under torchrun


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m verification.scripts", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short history for each script")
    parser.add_argument("--only", default=",".join(SCRIPTS), help="these scripts: " + ", ".join(SCRIPTS))
    parser.add_argument("--no-torchrun", action="store_true", help="without the comparison of `ddp` with real DDP")
    parser.add_argument("--history", help="this history alone")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, default=Path("out/scripts.json"))
    return parser.parse_args()


def missing(script: str) -> str:
    """Return why a script cannot run here; "" if it can."""
    lacking = [module for module in SCRIPTS[script] if importlib.util.find_spec(module) is None]
    return f"{', '.join(lacking)} not installed" if lacking else ""


def run_script(nursery: Nursery, work: Path, script: str, stories: tuple[acts.Story, ...]) -> list[Verdict]:
    """Run all histories of a script, and print a line for each."""
    directory = work / script
    directory.mkdir()
    try:
        alone: Alone = train_alone(nursery, directory / "alone", script, VIRTUAL_WORKERS)
    except Stuck as stuck:
        verdicts = [Verdict(script, told.name, problems=[str(stuck)]) for told in stories]
        print(table.story(verdicts[0]), flush=True)
        return verdicts
    verdicts = []
    for number, told in enumerate(stories):
        verdict = Course(nursery, directory / str(number), script, VIRTUAL_WORKERS, told, alone).run()
        verdicts.append(verdict)
        print(table.line(verdict), flush=True)
        if not verdict.good:
            print(table.story(verdict), flush=True)
    return verdicts


def main() -> int:
    chosen = arguments()
    names = chosen.only.split(",")
    if unknown := set(names) - set(SCRIPTS):
        print(f"there is no script {sorted(unknown)}; there are {', '.join(SCRIPTS)}", file=sys.stderr)
        return 2
    skipped = {name: why for name in names if (why := missing(name))}
    names = [name for name in names if name not in skipped]
    told = (acts.short(chosen.seed, VIRTUAL_WORKERS),) if chosen.quick else acts.stories(chosen.seed, VIRTUAL_WORKERS)
    told = tuple(each for each in told if chosen.history in (None, each.name))
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    work = Path(tempfile.mkdtemp(prefix="scripts-"))
    verdicts: list[Verdict] = []
    differing: dict[str, int] = {}  # bits that differ from real DDP, by script
    try:
        with Nursery(worker.__name__, *names) as nursery:
            for name in names:
                verdicts += run_script(nursery, work, name, told)
        if TORCHRUN in names and not chosen.no_torchrun:
            elastic = torch.load(path_of(work / TORCHRUN / "alone", 0, "result"), weights_only=True)
            bits = torchrun.compare(work, elastic, VIRTUAL_WORKERS)
            print(
                f"{TORCHRUN} beside DistributedDataParallel, {VIRTUAL_WORKERS} processes: {bits} bits differ",
                flush=True,
            )
            differing[TORCHRUN] = bits
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print()
    print(table.table(verdicts, skipped))
    table.write(chosen.json, verdicts, skipped, differing)
    return 0 if all(verdict.good for verdict in verdicts) and not any(differing.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
