"""python -m verification.fuzz [--frames 10000000] [--seed 1] [--only clients,agents,agent,workers] [--quick]

Exit code 0: nobody minded. 1: a process ended, fell silent, or grew; its log is printed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .sockets import CAMPAIGNS, place
from .subjects import Fault

FRAMES = 10_000_000
QUICK = 400_000


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, help=f"of all campaigns together; else {FRAMES}")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} frames: half a minute")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--only", default=",".join(CAMPAIGNS), help="these campaigns, by name")
    options = parser.parse_args(arguments)
    frames = options.frames or (QUICK if options.quick else FRAMES)
    total, seconds, failed = 0, 0.0, 0
    for name in options.only.split(","):
        campaign, part = CAMPAIGNS[name]
        with place() as (context, directory):
            try:
                tally = campaign(f"{name}/{options.seed}", context, directory, int(part * frames))
            except Fault as fault:
                print(f"FAILED {name}: {fault}", flush=True)
                failed += 1
                continue
        total, seconds = total + tally.frames, seconds + tally.seconds
        print(tally, flush=True)
    print(f"{total} frames in {seconds:.0f} s, {total / max(seconds, 1e-9):.0f} frames/s; {failed} campaigns failed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
