"""Comparison of the simulator with a real cluster (AFS 5.1, Fig. 15). `make conformance`

    python -m benchmarks.conformance [--quick] [--policy NAME[:measured]]... [--seed K] [--again]

Under a policy with `:measured` throughputs are measured during the run (AFS 4.5); otherwise the jobs state them.

A real cluster (daemons, workers, PyTorch; two servers of four CPU slots) and the simulator get the same jobs under the same
policy. Before that, the jobs' throughputs and the costs of changes are measured in such a cluster. Results go to
out/conformance/, and after a full run of the usual policies into docs/reports/benchmarks.md and docs/reports/conformance.png.
The exit status is 1 if an average JCT differs by more than 5 %. The run leaves no process behind, however it ends.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from elasticd.protocol.errors import ElasticError
from elasticd.scheduler.policies import NAMES

from ..runtime import machine
from ..runtime.processes import ROOT, Family, MeasurementFailed
from . import report
from .cluster import GPUS, Cluster
from .courses import Comparison, average_jct_s
from .kinds import KINDS, Case
from .measuring import measure_costs, measure_curve
from .picture import draw
from .replay import replay
from .simulated import Files, simulate
from .trace import FULL, QUICK, PlannedJob, Profile, plan, read_profile, write_costs, write_profile, write_trace

CASES = (Case("max-min"), Case("afs-l"))
MEASURED_UNDER = "max-min"
PICTURE, COSTS = "conformance.png", "costs.json"
ROUNDS, QUICK_ROUNDS = 3, 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conformance", description="Simulated against real.")
    parser.add_argument("--quick", action="store_true", help="few and short jobs, to see that it works")
    parser.add_argument(
        "--policy", action="append", type=_case, metavar="NAME[:measured]", help="this one (repeatable)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the trace (default: 1)")
    parser.add_argument("--again", action="store_true", help="with the throughputs and costs measured last time")
    options = parser.parse_args()
    out = ROOT / "out" / ("conformance-quick" if options.quick else "conformance")
    out.mkdir(parents=True, exist_ok=True)
    files = Files(out / "trace.csv", out / "profile.csv", out / "costs.yaml")
    missing = [path for path in (files.profile, files.costs, out / COSTS) if not path.exists()]
    if options.again and missing:
        parser.error(f"--again: there is no {missing[0]}; without --again it is measured")
    about = machine.describe()
    jobs = plan(QUICK if options.quick else FULL, options.seed)
    try:
        with Family(), tempfile.TemporaryDirectory(prefix="elasticctl-conformance-") as directory:
            if not options.again:
                _measure(Path(directory), files, options.quick)
            profile = read_profile(files.profile)
            write_trace(files.trace, jobs, profile)
            comparisons = [
                _compare(Path(directory), out, files, case, jobs, profile) for case in options.policy or CASES
            ]
    except KeyboardInterrupt:
        print("interrupted: all processes are ended", file=sys.stderr)
        return 130
    except (MeasurementFailed, ElasticError) as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 1
    draw(out / PICTURE, comparisons, GPUS)
    if not options.quick and not options.policy:
        draw(ROOT / "docs" / "reports" / PICTURE, comparisons, GPUS)
        costs = json.loads((out / COSTS).read_text())["medians"]
        section = report.section(about, profile, costs, comparisons)
        report.publish(ROOT / "docs" / "reports" / "benchmarks.md", section)
    print(f"written to {out}")
    return 0 if all(comparison.conforms for comparison in comparisons) else 1


def _case(text: str) -> Case:
    name, _, rest = text.partition(":")
    if name not in NAMES or rest not in ("", "measured"):
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(NAMES)}, nor one of these with :measured")
    return Case(name, known=not rest)


def _measure(directory: Path, files: Files, quick: bool) -> None:
    """Measure throughputs and costs, and write their files."""
    with Cluster(directory / "measuring", MEASURED_UNDER) as cluster:
        _say("processes that workers are forked from are made")
        cluster.warm_up()
        curves = {}
        for kind in KINDS:
            curves[kind.name] = curve = measure_curve(cluster, kind)
            rates = ", ".join(f"{share}: {rate:.2f}" for share, rate in curve.steps_per_s.items())
            _say(f"{kind.name}: steps per second by GPUs: {rates}")
        profile = {name: curve.steps_per_s for name, curve in curves.items()}
        costs = measure_costs(cluster, profile, QUICK_ROUNDS if quick else ROUNDS, list(curves.values()))
    medians = costs.medians()
    _say(", ".join(f"{name} {value:.2f}" for name, value in medians.items()))
    write_profile(files.profile, profile)
    write_costs(files.costs, medians)
    document = {"medians": medians, "costs": vars(costs), "curves": {name: vars(each) for name, each in curves.items()}}
    (files.costs.parent / COSTS).write_text(json.dumps(document, indent=1))


def _compare(
    directory: Path, out: Path, files: Files, case: Case, jobs: Sequence[PlannedJob], profile: Profile
) -> Comparison:
    """Run one policy in its own cluster and in the simulator."""
    print(f"== {case.label}", flush=True)
    with Cluster(directory / case.label.replace(":", "-"), case.policy) as cluster:
        cluster.warm_up()
        real = replay(cluster, jobs, profile, case.known, _say)
    comparison = Comparison(case.label, real, simulate(files, case))
    for course, simulated in zip(real, comparison.simulated, strict=True):
        print(f"{course.name} {course.kind:<11} JCT {course.jct_s:6.1f} s, simulated {simulated.jct_s:6.1f} s")
    averages = f"{average_jct_s(real):.1f} s, simulated {average_jct_s(comparison.simulated):.1f} s"
    print(f"{case.label}: average JCT {averages}: {100 * comparison.error:+.1f} %", flush=True)
    document = {**comparison.document(), "simulate": files.command(case)}
    (out / f"{case.label.replace(':', '-')}.json").write_text(json.dumps(document, indent=1))
    return comparison


def _say(text: str) -> None:
    print(f"  {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
