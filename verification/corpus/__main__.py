"""python -m verification.corpus [--quick] [--only NAME,NAME] [--jobs 2] [--fixed | --as-written] [--write docs/corpus.md]

Exit code 0: every script ended as the index expects, and none with other bits in silence.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from . import pool, table
from .index import BY_NAME, SCRIPTS
from .verdict import Kind, Verdict


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m verification.corpus", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one history for each script")
    parser.add_argument("--only", default="", help="these scripts, with commas between them")
    parser.add_argument("--jobs", type=int, default=1, help="scripts at the same time")
    parser.add_argument("--as-written", action="store_true", help="without the versions that have the named line")
    parser.add_argument("--fixed", action="store_true", help="only the versions that have the named line")
    parser.add_argument("--list", action="store_true", help="names and idioms")
    parser.add_argument("--keep", type=Path, help="leave all logs in this directory")
    parser.add_argument("--write", type=Path, help="the page with the table, such as docs/corpus.md")
    parser.add_argument("--before", action="store_true", help="with --write: the column `before`, too")
    parser.add_argument("--from-json", type=Path, help="run nothing: write the page from an earlier run's JSON")
    parser.add_argument("--json", type=Path, default=Path("out/corpus.json"))
    return parser.parse_args()


def main() -> int:
    chosen = arguments()
    names = chosen.only.split(",") if chosen.only else list(BY_NAME)
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
    versions = [(name, False) for name in names] if not chosen.fixed else []
    if not chosen.as_written:
        versions += [(name, True) for name in names if BY_NAME[name].fix]
    work = chosen.keep or Path(tempfile.mkdtemp(prefix="corpus-"))
    os.environ.update(OMP_NUM_THREADS="1")
    verdicts: list[Verdict] = []
    try:
        with ProcessPoolExecutor(chosen.jobs, multiprocessing.get_context("spawn"), pool.begin) as processes:
            tasks = [
                processes.submit(pool.run_script, str(work), name, fixed, chosen.quick) for name, fixed in versions
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


if __name__ == "__main__":
    sys.exit(main())
