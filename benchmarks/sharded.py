"""Divided optimizer state: memory, steps and resizes beside replicas and PyTorch's ZeroRedundancyOptimizer.

    python -m benchmarks.sharded [--rounds 3] [--steps 40] [--width 1024] [--layers 16] [--json out/sharded.json]

Four workers on a cluster of two servers, one job after the other, in turns. Figures are medians over rounds and
workers. Processor time is that of one worker per step, and does not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from benchmarks.resize import Cluster

ARMS = {"replicas": "none", "divided": "optimizer", "ZeroRedundancyOptimizer": None}


def job_file(directory: Path, arm: str, options: argparse.Namespace) -> Path:
    sharding = ARMS[arm]
    kind = "zero" if sharding is None else "elastic"
    document: dict[str, Any] = {
        "name": f"{kind}-{sharding or 'torch'}",
        "command": f"{sys.executable} benchmarks/sharded_job.py {kind} {options.steps} {options.width} {options.layers}",
        "workdir": str(Path(__file__).resolve().parent.parent),
        "gpus": {"min": 4, "max": 4},
        "virtual_workers": 4,
    }
    if sharding is not None:
        document["sharding"] = sharding
    path = directory / f"{document['name']}.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def figures_of(cluster: Cluster, path: Path) -> list[dict[str, Any]]:
    job = cluster.run("submit", str(path)).split()[0]
    cluster.run("wait", job)
    lines = [line.partition("{") for line in cluster.run("logs", job).splitlines()]
    return [json.loads(brace + rest) for _, brace, rest in lines if brace and '"step_s"' in rest]


def main() -> None:
    parser = argparse.ArgumentParser(description="What a divided optimizer state saves and costs.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--json", default="out/sharded.json")
    options = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory(prefix="elasticctl-bench-") as directory:
        cluster = Cluster(f"{directory}/cluster")
        try:
            for _ in range(options.rounds):
                for arm in ARMS:
                    found[arm] += figures_of(cluster, job_file(Path(directory), arm, options))
        finally:
            cluster.run("down", "--purge", "--yes", "--now")
    rows = {arm: {key: median(each[key] for each in figures) for key in figures[0]} for arm, figures in found.items()}
    for arm, row in rows.items():
        print(
            f"{arm:<24} step {row['step_s'] * 1000:7.1f} ms  processor {row['processor_s'] * 1000:7.1f} ms  "
            f"optimizer state {row['state_bytes'] / 2**20:7.1f} MiB  resident {row['rss_bytes'] / 2**20:7.1f} MiB"
        )
    sums = {figures["sum"] for arm in ("replicas", "divided") for figures in found[arm]}
    print(f"replicas and divided end with {'equal' if len(sums) == 1 else 'DIFFERENT'} parameters")
    Path(options.json).parent.mkdir(parents=True, exist_ok=True)
    Path(options.json).write_text(json.dumps({"rows": rows, "equal": len(sums) == 1}, indent=1))
    if len(sums) != 1:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
