"""python -m verification.fuzz [--frames 10000000] [--seed 1] [--only clients,agents,agent,workers,flood,absurd] [--quick]

Exit code 0: no fault was found. 1: a process exited, stopped answering, or grew; its log is printed.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Sequence

from elasticd.scheduler.policies import POLICIES

from .absurd import play
from .flood import at_starved_controller
from .sockets import CAMPAIGNS, Campaign, place
from .subjects import Fault

FRAMES = 10_000_000
QUICK = 250_000
FLOOD_PART = 25  # likewise for the flood; at least as many messages as cannot wait anywhere
LEAST_FLOOD = 100_000
ABSURD_PART = 50  # one valid but absurd message per so many frames


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, help=f"of all campaigns together; else {FRAMES}")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} frames: half a minute")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--only", default=f"{','.join(CAMPAIGNS)},flood,absurd", help="these campaigns, by name")
    options = parser.parse_args(arguments)
    frames = options.frames or (QUICK if options.quick else FRAMES)
    total, seconds, failed = 0, 0.0, 0
    for name in options.only.split(","):
        if name == "absurd":
            failed += _absurd(options.seed, frames // ABSURD_PART)
            continue
        campaign, sent = _campaign(name, frames)
        with place() as (context, directory):
            try:
                tally = campaign(f"{name}/{options.seed}", context, directory, sent)
            except Fault as fault:
                print(f"FAILED {name}: {fault}", flush=True)
                failed += 1
                continue
        total, seconds = total + tally.frames, seconds + tally.seconds
        print(tally, flush=True)
    print(f"{total} frames in {seconds:.0f} s, {total / max(seconds, 1e-9):.0f} frames/s; {failed} campaigns failed")
    return int(bool(failed))


def _campaign(name: str, frames: int) -> tuple[Campaign, int]:
    """Return a campaign, and its share of `frames`."""
    if name == "flood":
        return at_starved_controller, max(LEAST_FLOOD, frames // FLOOD_PART)
    campaign, part = CAMPAIGNS[name]
    return campaign, int(part * frames)


def _absurd(seed: str, messages: int) -> int:
    """Send so many valid messages, divided among all policies. Returns the number of policies with a fault."""
    failed, began = 0, time.monotonic()
    for kind in POLICIES:
        try:
            play(kind.name, seed, messages // len(POLICIES))
        except Exception:  # any exception of the controller is a finding
            failed += 1
            print(
                f"FAILED absurd messages under {kind.name}, seed {seed}:\n{traceback.format_exc()[-3000:]}", flush=True
            )
    print(f"absurd messages under {len(POLICIES)} policies: {messages} in {time.monotonic() - began:.0f} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
