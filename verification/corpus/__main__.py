"""python -m verification.corpus [--story NAME] [--only NAME,NAME] [--jobs 2] [--fixed | --as-written] [--write FILE]

Exit code 0: every script ended as the index expects, and none ended with other bits without a message.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from pathlib import Path

from . import desk, pool, table
from .course import STORIES
from .index import BY_NAME, SCRIPTS
from .verdict import Kind, Verdict

PAGE = Path("docs/reports/corpus.md")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m verification.corpus", description=__doc__)
    parser.add_argument("--story", choices=list(STORIES), help="this history alone, beside the one of a single worker")
    parser.add_argument("--only", default="", help="these scripts, with commas between them")
    parser.add_argument("--jobs", type=int, default=1, help="scripts at the same time")
    parser.add_argument("--as-written", action="store_true", help="without the versions that have the named line")
    parser.add_argument("--fixed", action="store_true", help="only the versions that have the named line")
    parser.add_argument("--desk", action="store_true", help="run `elasticctl check` on the scripts, and no cluster")
    parser.add_argument("--list", action="store_true", help="names and idioms")
    parser.add_argument("--keep", type=Path, help="leave all logs in this directory")
    parser.add_argument("--write", type=Path, help="the page with the table, such as docs/reports/corpus.md")
    parser.add_argument("--before", action="store_true", help="with --write: the column `before`, too")
    parser.add_argument("--from-json", type=Path, help="run nothing: write the page from an earlier run's JSON")
    parser.add_argument("--json", type=Path, default=Path("out/corpus.json"))
    return parser.parse_args()


def main() -> int:
    chosen = arguments()
    names = list(dict.fromkeys(chosen.only.split(",") if chosen.only else BY_NAME))
    if unknown := set(names) - set(BY_NAME):
        print(f"there is no script {', '.join(sorted(unknown))}; --list shows all", file=sys.stderr)
        return 2
    if chosen.list:
        for script in SCRIPTS:
            print(f"{script.name:30s} {script.expected.value:7s} {script.idiom}")
        return 0
    if chosen.from_json is not None:
        table.write_page(chosen.write, table.read_json(chosen.from_json), chosen.before)
        return 0
    if chosen.desk:
        return at_the_desk(chosen, names)
    versions = [(name, False) for name in names] if not chosen.fixed else []
    if not chosen.as_written:
        versions += [(name, True) for name in names if BY_NAME[name].fix]
    work = chosen.keep or Path(tempfile.mkdtemp(prefix="corpus-"))
    os.environ.update(OMP_NUM_THREADS="1")
    verdicts: list[Verdict] = []
    try:
        with ProcessPoolExecutor(chosen.jobs, multiprocessing.get_context("spawn"), pool.begin) as processes:
            tasks = [
                processes.submit(pool.run_script, str(work), name, fixed, chosen.story) for name, fixed in versions
            ]
            for task in as_completed(tasks):
                verdicts.append(task.result())
                print(table.line(verdicts[-1]), flush=True)
                table.write_json(chosen.json, verdicts)
    finally:
        if chosen.keep is None:
            shutil.rmtree(work, ignore_errors=True)
    print()
    print(table.counts(verdicts))
    if chosen.write is not None:
        table.write_page(chosen.write, verdicts, chosen.before)
    wrong = [verdict for verdict in verdicts if not verdict.expected or verdict.kind is Kind.SILENT]
    return 1 if wrong else 0


def at_the_desk(chosen: argparse.Namespace, names: Sequence[str]) -> int:
    """Run `elasticctl check` on the scripts. Exit code 1: it finds too few of those that the cluster has found."""
    checks: list[desk.Check] = []
    with tempfile.TemporaryDirectory(prefix="corpus-") as work, ThreadPoolExecutor(chosen.jobs) as threads:
        for task in as_completed([threads.submit(desk.check, work, name) for name in names]):
            checks.append(task.result())
            each = checks[-1]
            name = ", by name" if each.named else ""
            print(f"{each.script:34s} {each.verdict}{name} {each.seconds:5.1f} s", flush=True)
    said, enough = table.compare_checks(chosen.write or PAGE, checks)
    print(f"\n{said}")
    if chosen.write is not None:
        table.write_checks(chosen.write, checks)
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
