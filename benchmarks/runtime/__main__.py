"""Overheads, pauses and losses of the runtime, side by side with the alternatives. `make bench-runtime`

    python -m benchmarks.runtime [--quick] [--only GROUP] [--torchft DIRECTORY] [--json FILE]

GROUP: `throughput`, `pauses` and others, which `--help` lists; may be repeated.
The compared programs alternate, block by block, in one run on one machine; figures are medians and ratios. The results go to
out/bench-runtime.json and into docs/reports/benchmarks.md (`--quick`: to out/bench-runtime-quick.json only).
The run leaves no process behind, however it ends.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from . import machine, report
from .processes import ROOT, Family, MeasurementFailed

GROUPS = tuple(report.TITLES)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.runtime", description="What elasticity costs.")
    parser.add_argument("--quick", action="store_true", help="few repetitions, to see that it works")
    parser.add_argument("--only", choices=GROUPS, action="append", help="measure this (several times: these)")
    parser.add_argument(
        "--torchft", metavar="DIRECTORY", help="where torchft is installed, see docs/reports/benchmarks.md"
    )
    parser.add_argument("--json", type=Path, help="where results go")
    options = parser.parse_args()
    target = options.json or ROOT / "out" / ("bench-runtime-quick.json" if options.quick else "bench-runtime.json")
    if options.torchft:
        sys.path.append(options.torchft)
    groups = report.read(target)
    failed = False
    try:
        with Family() as family:
            for name in options.only or GROUPS:
                print(f"== {report.TITLES[name]}", flush=True)
                about = machine.describe()
                measuring = importlib.import_module(f".{name}", __package__)
                try:
                    rows = measuring.measure(family, options.quick)
                except MeasurementFailed as error:
                    print(f"{name}: {error}", file=sys.stderr)
                    failed = True
                    continue
                groups[name] = report.group(about, rows, getattr(measuring, "NOTES", ()))
                report.write(target, groups)
    except KeyboardInterrupt:
        print("interrupted: all processes are ended", file=sys.stderr)
        return 130
    if not options.quick:
        report.publish(ROOT / "docs" / "reports" / "benchmarks.md", groups)
    print(f"written to {target}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
