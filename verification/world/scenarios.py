"""Histories written by hand: commands, and below them the expected events (after the testdata of etcd-io/raft).

    cluster servers=2 gpus=2
    submit digits gpus=1:4 steps=100
    run 10s
    ----
      0.0 users ask: submit-digits
      ...

A file is a list of such blocks, separated by empty lines; lines that begin with `#` are comments. `play_file` runs the commands
and returns the file with the actual events; a scenario passes if nothing differs. `python -m verification.world.scenarios
--rewrite` records the actual events.

The commands are those of `stage`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .stage import Stage, command
from .violation import Violation

FOLDER = Path(__file__).parent / "scenarios"
RULE = "----"


def play_file(text: str) -> str:
    """Run the commands of a scenario. Returns the file with the actual events. Raises ScenarioError."""
    stage, blocks = Stage(), []
    for block in text.strip("\n").split("\n\n"):
        commands = block.split(f"\n{RULE}")[0]
        for line in commands.splitlines():
            if line.strip() and not line.startswith("#"):
                try:
                    command(stage, line)
                except Violation as violation:
                    stage.world.story.say(f"VIOLATION of '{violation.invariant}': {violation.text}")
        blocks.append("\n".join([commands, RULE, *stage.lines()]))
    return "\n\n".join(blocks) + "\n"


def files() -> list[Path]:
    """Paths of all scenarios, sorted."""
    return sorted(FOLDER.glob("*.txt"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m verification.world.scenarios")
    parser.add_argument("--rewrite", action="store_true", help="record what happens now")
    parser.add_argument("names", nargs="*", help="else all")
    options = parser.parse_args()
    differ = 0
    for path in files():
        if options.names and path.stem not in options.names:
            continue
        before = path.read_text()
        now = play_file(before)
        if now != before:
            differ += 1
            print(f"{'rewritten' if options.rewrite else 'DIFFERS'}: {path.name}")
            if options.rewrite:
                path.write_text(now)
    return int(differ > 0 and not options.rewrite)


if __name__ == "__main__":
    sys.exit(main())
