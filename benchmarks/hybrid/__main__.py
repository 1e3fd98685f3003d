"""Accuracy with a batch that grows, beside a fixed one and one that grows without the rule of Elan III: `make bench-hybrid`

    python -m benchmarks.hybrid [--seeds N] [--processes N] [--quick]

Trains the tasks of `train` with each setting and seed. Results are kept in out/hybrid.json, so that an interrupted run goes on.
Figures go into docs/reports/benchmarks.md and docs/reports/hybrid.png; with `--quick` (one seed) to the screen alone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import mean, stdev

from benchmarks.hybrid.picture import draw
from benchmarks.hybrid.train import EPOCHS, RAMP_STEPS, TASKS, Key, Setting, name_of, trained
from benchmarks.pages import fill

ROOT = Path(__file__).resolve().parents[2]
PAGE, PICTURE = ROOT / "docs/reports/benchmarks.md", ROOT / "docs/reports/hybrid.png"
KEPT = ROOT / "out/hybrid.json"
BEGIN = "<!-- bench-hybrid: written by `make bench-hybrid`, from here -->"
END = "<!-- bench-hybrid: to here -->"
SEEDS = 5
FIXED, GROWING = (1, 1, 1), (1, 2, 4)
LARGE = (2, 4, 8)
SETTINGS = (
    Setting(FIXED),
    *(
        Setting(factors, follows)
        for factors in (GROWING, *((factor,) * 3 for factor in LARGE))
        for follows in (True, False)
    ),
)


def results(keys: Sequence[Key], processes: int) -> dict[str, list[float]]:
    """Return the accuracies after each epoch; trainings that are in the file are not repeated."""
    found: dict[str, list[float]] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    missing = [key for key in keys if name_of(*key) not in found]
    KEPT.parent.mkdir(exist_ok=True)
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for done in as_completed(pool.submit(trained, key) for key in missing):
            name, accuracies = done.result()
            found[name] = accuracies
            KEPT.write_text(json.dumps(found, indent=1))
            print(f"{name}: {accuracies[-1]:.3f}", flush=True)
    return found


def final(found: dict[str, list[float]], task: str, setting: Setting, seeds: int) -> list[float]:
    """Return the accuracies in the end, by seed."""
    return [found[name_of(task, setting, seed)][-1] for seed in range(seeds)]


def table(found: dict[str, list[float]], seeds: int) -> Iterator[str]:
    """Yield the lines of a table: mean and standard deviation over the seeds, and the mean difference from the fixed batch."""
    yield "| factor by third of the training | learning rate | " + " | ".join(TASKS) + " |"
    yield "| --- | --- |" + " --- |" * len(TASKS)
    for setting in SETTINGS:
        cells = []
        for task in TASKS:
            own, fixed = final(found, task, setting, seeds), final(found, task, SETTINGS[0], seeds)
            text = f"{100 * mean(own):.1f} ± {100 * stdev(own) if seeds > 1 else 0:.1f}"
            if setting != SETTINGS[0]:
                text += f" ({100 * mean(a - b for a, b in zip(own, fixed, strict=True)):+.1f})"
            cells.append(text)
        factors = ", ".join(map(str, setting.factors)) if len(set(setting.factors)) > 1 else f"{setting.factors[0]}"
        rule = "the script's" if setting.factors == FIXED else "follows" if setting.follows else "stays"
        yield f"| {factors} | {rule} | " + " | ".join(cells) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    seeds = 1 if options.quick else options.seeds
    keys = [(task, setting, seed) for seed in range(seeds) for setting in SETTINGS for task in TASKS]
    found = results(keys, options.processes)
    lines = "\n".join(table(found, seeds))
    print(lines)
    if options.quick:
        return 0
    draw(
        PICTURE,
        {
            task: {setting: [found[name_of(task, setting, seed)] for seed in range(seeds)] for setting in SETTINGS}
            for task in TASKS
        },
    )
    text = (
        f"Accuracy on unseen samples in per cent after {EPOCHS} epochs, mean and standard deviation of {seeds} seeds, in "
        f"brackets the mean difference from the fixed batch with the same seed. The rate moves within {RAMP_STEPS} steps."
    )
    caption = (
        "*Left, as Elan Fig. 5: accuracy by factor of the whole training, with the rule and without. Right, as Fig. 18: accuracy "
        "over epochs with a fixed batch and with one that doubles twice. Bars and bands: standard deviation.*"
    )
    fill(PAGE, BEGIN, END, [text, lines, "![Accuracy with growing batches](hybrid.png)", caption])
    return 0


if __name__ == "__main__":
    sys.exit(main())
