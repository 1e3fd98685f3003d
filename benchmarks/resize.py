"""Cost of resizes and losses for the digits job: pauses between two applied steps, against the median step.

    python -m benchmarks.resize [--rounds 10] [--losses 5] [--json out/resize.json]

A cluster of two servers with two CPU slots each runs under a temporary directory, operated through `elasticctl`. The job is
scaled out (1 -> 3) and in (3 -> 1) in turn; then, with three workers, one after another is killed with SIGKILL. A pause is the
longest time between two applied steps around the switch, less the median step on the fewer workers. The time from a SIGKILL to
the next applied step is at most the longest gap around it, which is the figure shown.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ELASTICCTL = str(Path(sys.executable).with_name("elasticctl"))


class Cluster:
    """Cluster of this benchmark."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.run("up", "--servers", "2", "--gpus", "2")

    def run(self, *arguments: str) -> str:
        command = [ELASTICCTL, "--dir", self._directory, *arguments]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout

    def ask(self, *arguments: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.run(*arguments, "--json"))
        return document

    def until(self, job: str, what: Callable[[dict[str, Any]], Any], timeout_s: float = 120.0) -> Any:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if found := what(self.ask("status", job)):
                return found
            time.sleep(0.1)
        raise SystemExit(f"{job} did not get there within {timeout_s:.0f} s")


def scalings(cluster: Cluster, job: str, rounds: int) -> list[dict[str, Any]]:
    """Scale out and in, `rounds` times each, with a second of undisturbed training between them."""
    found = []
    for _ in range(rounds):
        for share in ("3", "1"):
            found.append(cluster.ask("scale", job, share))
            show(found[-1])
            time.sleep(1.0)
    return found


def losses(cluster: Cluster, job: str, count: int) -> list[dict[str, Any]]:
    """Kill one of three workers by SIGKILL, `count` times, the leader included."""
    cluster.run("scale", job, "3")
    found = []
    for turn in range(count):
        cluster.until(job, lambda view: view["share_gpus"] == 3)
        time.sleep(2.0)
        view = cluster.ask("status", job)
        known = {resize["generation"] for resize in view["resizes"]}
        victims = [worker["pid"] for worker in view["workers"]]
        os.kill(victims[turn % len(victims)], signal.SIGKILL)
        found.append(
            cluster.until(
                job,
                lambda view, known=known: next(
                    (r for r in view["resizes"] if r["recovery"] and r["generation"] not in known), None
                ),
            )
        )
        show(found[-1])
    return found


def show(resize: dict[str, Any]) -> None:
    kind = "loss" if resize["recovery"] else "scale"
    change = f"{resize['workers_before']} -> {resize['workers_after']}"
    before, after, gap = (resize[key] * 1000 for key in ("median_step_s", "median_step_after_s", "longest_gap_s"))
    print(f"{kind:<6} {change}  gap {gap:7.1f} ms  median step {before:6.1f} ms, then {after:6.1f} ms")


def summary(name: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the longest and the median pause (ms)."""
    gaps = [entry["longest_gap_s"] * 1000 for entry in entries]
    steps = [max(entry["median_step_s"], entry["median_step_after_s"]) * 1000 for entry in entries]
    pauses = [max(0.0, gap - step) for gap, step in zip(gaps, steps, strict=True)]
    row = {
        "what": name,
        "count": len(entries),
        "median_step_ms": round(median(steps), 1),
        "median_pause_ms": round(median(pauses), 1),
        "longest_pause_ms": round(max(pauses), 1),
        "longest_gap_ms": round(max(gaps), 1),
    }
    print(" | ".join(f"{key} {value}" for key, value in row.items()))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description="What resizing and losses cost the digits job.")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--losses", type=int, default=6)
    parser.add_argument("--json", default="out/resize.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="elasticctl-bench-") as directory:
        cluster = Cluster(f"{directory}/cluster")
        try:
            output = f"{directory}/digits.pt"
            command = [sys.executable, "examples/digits/train.py", "--epochs", "100000", "--output", output]
            job = cluster.run("submit", "--name", "digits", "--gpus", "1:4", "--", *command).strip()
            cluster.run("scale", job, "1")
            cluster.until(job, lambda view: (view["step"] or 0) > 40)
            changes = scalings(cluster, job, options.rounds)
            lost = losses(cluster, job, options.losses)
            rows = [
                summary("scale out", [c for c in changes if c["workers_after"] > c["workers_before"]]),
                summary("scale in", [c for c in changes if c["workers_after"] < c["workers_before"]]),
                summary("worker killed", lost),
            ]
            cluster.run("cancel", job)
        finally:
            cluster.run("down", "--purge", "--yes")
    target = ROOT / options.json
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"summary": rows, "changes": changes, "losses": lost}, indent=2))
    print(f"written to {options.json}")


if __name__ == "__main__":
    main()
