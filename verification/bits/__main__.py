"""python -m verification.bits [--histories 100] [--seed 1] [--model cnn|transformer|lbfgs] [--only SEED]

Exit code 0: all histories ended with the bits of the undisturbed run, and that with the bits of DistributedDataParallel.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from . import ddp, worker
from .nursery import Nursery
from .reference import References
from .report import print_failure, print_line, print_summary, write
from .runner import Plan, run_history
from .story import tour
from .verdict import Verdict

MODELS = ("cnn", "transformer", "lbfgs")
VIRTUAL_WORKERS = (4, 5, 8)
TOUR = tuple(story.seed for story in tour())
TOUR_VIRTUAL_WORKERS = 4
TOUR_EPOCHS = 28


def plan_of(seed: int, model: str | None, virtual_workers: int | None, epochs: int) -> Plan:
    """Return the model, virtual workers and epochs of the history of `seed`."""
    if seed in TOUR:
        return Plan(seed, model or "cnn", TOUR_VIRTUAL_WORKERS, TOUR_EPOCHS)
    rng = random.Random(f"plan {seed}")
    return Plan(seed, model or rng.choice(MODELS), virtual_workers or rng.choice(VIRTUAL_WORKERS), epochs)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m verification.bits", description=__doc__)
    parser.add_argument("--histories", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="of the first history; each next one has the next seed")
    parser.add_argument("--only", type=int, metavar="SEED", help="this history alone, with its story")
    parser.add_argument("--tour", action="store_true", help="a few histories that lead past every point")
    parser.add_argument("--model", choices=MODELS, help="of all histories; default: as the seed says")
    parser.add_argument("--virtual-workers", type=int, metavar="N", help="of all histories; default: 4, 5 or 8")
    parser.add_argument("--epochs", type=int, default=16, help="of 12 steps each")
    parser.add_argument("--no-ddp", action="store_true", help="without the comparison with DistributedDataParallel")
    parser.add_argument("--json", type=Path, default=Path("out/bits.json"))
    return parser.parse_args()


def _seeds(chosen: argparse.Namespace) -> Sequence[int]:
    if chosen.only is not None:
        return [chosen.only]
    return TOUR if chosen.tour else range(chosen.seed, chosen.seed + chosen.histories)


def main() -> int:
    chosen = arguments()
    seeds = _seeds(chosen)
    verdicts: list[Verdict] = []
    comparisons: list[ddp.Comparison] = []
    work = Path(tempfile.mkdtemp(prefix="bits-"))
    try:
        with Nursery(worker.__name__) as nursery:
            references = References(nursery, work)
            for seed in seeds:
                plan = plan_of(seed, chosen.model, chosen.virtual_workers, chosen.epochs)
                verdict, course = run_history(nursery, work, plan, references)
                verdicts.append(verdict)
                print_line(verdict)
                if not verdict.good or chosen.only is not None:
                    print_failure(verdict, course, chosen.epochs)
        if not chosen.no_ddp and not chosen.tour and chosen.only is None:
            comparisons = ddp.compare_all(work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print_summary(verdicts, references.checked, comparisons)
    write(chosen.json, verdicts, references.checked, comparisons)
    good = all(verdict.good for verdict in verdicts) and not any(each.differing_bits for each in comparisons)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
