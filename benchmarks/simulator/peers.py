"""Run times of other groups' public simulators on the same input, measured on a similar machine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

FILE = "peer_results.json"
NAMES = {  # this project's policy: the simulators that have it, with their names of policy and trace
    "afs-l": (("PCS", "AFS", "trace_{vc}, 64 GPUs"),),
    "themis": (("PCS", "THEMIS", "trace_{vc}, 64 GPUs"),),
    "srtf": (("PCS", "SRTF", "trace_{vc}, 64 GPUs"),),
    "srsf": (("PCS", "SRSF", "trace_{vc}, 64 GPUs"),),
    "fifo": (("PCS", "FIFO", "trace_{vc}, 64 GPUs"), ("Tiresias", "fifo", "philly_{vc}_n16g4")),
    "tiresias-l": (("PCS", "LAS", "trace_{vc}, 64 GPUs"), ("Tiresias", "dlas-gpu", "philly_{vc}_n16g4")),
}


@dataclass(frozen=True)
class Peer:
    """A run of another simulator."""

    name: str
    cpu_s: float


def of(data: Path, policy: str, vc: str) -> list[Peer]:
    """Return the runs of this policy on this virtual cluster; none if there is no such file."""
    path = data / FILE
    if not path.exists():
        return []
    runs = json.loads(path.read_text())
    found = []
    for simulator, name, form in NAMES.get(policy, ()):
        wanted = (simulator, name, form.format(vc=vc))
        found += [
            Peer(f"{simulator}, {name}", run["user_s"] + run.get("sys_s", 0.0))
            for run in runs
            if (run["sim"], run["policy"], run["input"]) == wanted
        ]
    return found
