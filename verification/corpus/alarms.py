"""python -m verification.corpus.alarms [--steps 100000] [--only NAME,NAME] [--write docs/reports/corpus.md]

False alarms: the scripts of the corpus that are elastic as written train for long with two and three workers, while a
micro-batch is compared in every step. An alarm is a worker that ends because it differs, or a job that fails.
Exit code 0: no alarm.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from ..bits.nursery import Nursery
from . import worker
from .course import Act, Ending, Story, run_story
from .index import BY_NAME, SCRIPTS
from .script import Expected, Script
from .table import write_alarms
from .verdict import TOLD

STEPS_PER_EPOCH = 8
EPOCHS = re.compile(r"run\.epochs\(\d+\)")
TICK_S = 0.05  # a driver that decides more often takes a third of the processor
LONGEST_S = 3600.0  # of one script
# Scripts that end by an error of their own with more epochs: a rate above one, no sample left to choose, an index by the epoch
BOUNDED = frozenset({"dropout_by_epoch", "active_learning_pool", "pruning_masks", "dynamic_weight_average"})


def alarms(ending: Ending, story: Story) -> list[str]:
    """Return the alarms of a history, in words.

    A history counts as one only if no worker was replaced: steps that are trained again after a loss are no further proof.
    """
    shares = [story.share, *(act.share for act in story.acts)]
    wanted = shares[0] + sum(max(0, after - before) for before, after in itertools.pairwise(shares))
    found = [f"{each} ended with exit code {code}" for each, code in ending.codes.items() if code in TOLD]
    if ending.phase != "finished":
        found.append(f"the job is {ending.phase or 'running'}: {ending.reason}")
    if ending.started > wanted:
        found.append(f"{ending.started} workers have started in place of {wanted} at most")
    return [*found, *(ending.errors if found else [])]


def story_of(steps: int) -> Story:
    """Return a history of so many steps with two workers, then three, then two, then three."""
    quarter = steps // 4
    acts = tuple(Act(at * quarter, share) for at, share in ((1, 3), (2, 2), (3, 3)))
    return Story("long", 2, acts, pace_s=0.0, slows=False, longest_s=LONGEST_S, tick_s=TICK_S)


def _can_be_long(script: Script) -> bool:
    """Return whether the script still works with more epochs: no schedule has a length of its own."""
    source = script.source()
    return EPOCHS.search(source) is not None and "total_steps" not in source and script.name not in BOUNDED


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m verification.corpus.alarms", description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000, help="of all scripts together")
    parser.add_argument("--only", default="", help="these scripts, with commas between them")
    parser.add_argument("--write", type=Path, help="the page that gets the counts, such as docs/reports/corpus.md")
    chosen = parser.parse_args()
    scripts = [each for each in SCRIPTS if each.expected is Expected.EQUAL and _can_be_long(each)]
    if chosen.only:
        scripts = [BY_NAME[name] for name in chosen.only.split(",")]
    epochs = max(4, -(-chosen.steps // (len(scripts) * STEPS_PER_EPOCH)))
    os.environ.update({"OMP_NUM_THREADS": "1", worker.CHECK_EVERY: "1"})
    work = Path(tempfile.mkdtemp(prefix="alarms-"))
    steps, found = 0, 0
    try:
        with Nursery(worker.__name__) as nursery:
            for script in scripts:
                sources = work / f"{script.name}-sources"
                sources.mkdir()
                script.write(sources, fixed=False)
                path = sources / f"{script.name}.py"
                path.write_text(EPOCHS.sub(f"run.epochs({epochs})", path.read_text()))
                story = story_of(epochs * STEPS_PER_EPOCH)
                ending = run_story(nursery, work / script.name, sources, script.name, story, script.fresh)
                told = alarms(ending, story)
                steps, found = steps + ending.steps, found + bool(told)
                print(
                    f"{script.name:30s} {ending.steps:7d} steps {ending.seconds:6.0f} s  {told or 'no alarm'}",
                    flush=True,
                )
                if chosen.write is not None:
                    write_alarms(chosen.write, steps, len(scripts), found)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"{steps} steps of {len(scripts)} scripts: {found} alarms")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
