"""Keys for many agents: each server of a cluster has its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from benchmarks.control.store import server
from elasticd.runtime.directories import write_secret
from elasticd.runtime.keys import KNOWN_FILE, KeyDirectory, Pair

FILE = "agents.json"


@dataclass(frozen=True)
class Keys:
    """Keys for a process with many agents."""

    pairs: tuple[Pair, ...]  # by number of the agent
    controller: bytes  # public key

    @classmethod
    def read(cls, path: Path) -> Keys:
        told = json.loads(path.read_text())
        return cls(tuple(Pair.of(secret.encode()) for secret in told["secrets"]), told["controller"].encode())


def make(directory: Path, agents: int) -> Path:
    """Create a controller's keys. Returns the file with those of its agents."""
    known = KeyDirectory(directory / "keys")
    controller = known.make()
    pairs = [Pair.new() for _ in range(agents)]
    lines = [
        {"principal": f"server:{server(number, 1).server}", "public": pair.public.decode()}
        for number, pair in enumerate(pairs)
    ]
    write_secret(known.path / KNOWN_FILE, json.dumps({"version": 1, "known": lines}).encode())
    told = {"controller": controller.public.decode(), "secrets": [pair.secret.decode() for pair in pairs]}
    write_secret(directory / FILE, json.dumps(told).encode())
    return directory / FILE
