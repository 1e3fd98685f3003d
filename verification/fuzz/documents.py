"""Corrupted files that users and operators may receive from others: job files, traces, policies, configurations, key files.

Whatever a file contains, its reader must report the problem in an error of its own, within a moment.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from elasticd.agent import config as agent_config
from elasticd.controller import config as controller_config
from elasticd.ctl import jobfile
from elasticd.protocol.errors import ElasticError
from elasticd.runtime import config
from elasticd.runtime.keys import KeyFile, Pair
from elasticd.scheduler.scheduler import load_scheduler
from elasticd.simulator import traces

from .grammar import TEXTS, Grammar
from .mutate import Mutator

JOB = """name: digits
command: /bin/true
gpus: {min: 1, max: 4}
virtual_workers: 4
max_steps: 1000
checkpoint: {every: 10m, keep: 2, save_timeout: 60}
priority: high
throughput: {1: 10.0, 2: 19.1}
env: {A: b, C: 1}
step_timeout: 1h30m
"""
POLICY = """policy: elastic
parameters: {constancy: 0.4, inertia: 0.05}
admission: {name: bounded, parameters: {waiting_jobs: 200}}
packing: network
placement: buddy
"""
CONTROLLER = """cluster: lab
state_directory: /nowhere
listen_clients: ipc:///nowhere/clients
limits: {connections: 10, messages_per_s: 5.0, messages_at_once: 10}
server_lease_s: 10
measuring: {way_down: true, steps: 20}
history: {jobs: 10, days: 1}
profiles: []
"""
AGENT = """server: s1
controller: ipc:///nowhere/agents
state_directory: /nowhere
cpu_slots: 4
heartbeat_interval_s: 1.0
worker_environment: {A: b}
"""
TRACE = (
    "vc,job,submit_s,duration_s,gpus,model\n0e4a51,0,5,100,1,Vgg\n0e4a51,1,7,60,4,Resnet\n0e4a51,2,2017-10-09,60,4,\n"
)

# Surprises of YAML, numbers, dates and CSV.
TRICKS = (
    b"!!python/object/apply:os.system ['reboot']", b"&a [*a, *a]", b"*x", b"<<: *x", b"2001-99-99", b"1e999", b".nan", b"-.inf",
    b"9" * 5000, b"0x" + b"f" * 400, b"[" * 3000, b"{a: " * 1500, b"? :", b"\t", b"---\n---", b"%YAML 9.9", b"!!binary x",
    b"\xff\xfe", b"\0", b"\xef\xbb\xbf", b'"', b",,,,", b"=cmd|' /C calc'!A0", b"1:60:60", b"~", b"!!set {a, b}", b"'\n",
    b"a: &b [1]\nc: [" + b"*b, " * 50 + b"]", b"12:30:45.5", b"\r", b"#", b"|\n x", b"> ", b"{}", b"[]", b"-", b"-0", b"1_000",
    b"nan", b"inf", b"0001-01-01", b"9999-12-31T23:59:59", b"-" * 5000,
)  # fmt: skip


@dataclass(frozen=True)
class Document:
    """A valid file, and its reader."""

    sample: bytes
    read: Callable[[Path], object]
    suffix: str = ".yaml"


def documents() -> Mapping[str, Document]:
    """Return all kinds of files, by name."""
    key = KeyFile.parsed  # not `read`, which also checks permissions
    pair, controller = Pair.new(), Pair.new()
    lines = {
        "principal": "user:alice",
        "public": pair.public.decode(),
        "secret": pair.secret.decode(),
        "controller_public": controller.public.decode(),
    }
    text = "".join(f"{name}: '{value}'\n" for name, value in lines.items())
    return {
        "job": Document(
            JOB.encode(), lambda path: jobfile.build(path, jobfile.Overrides(), path.parent, {"PATH": "/bin"})
        ),
        "policy": Document(POLICY.encode(), lambda path: load_scheduler(config.load_yaml(path), str(path))),
        "controller": Document(CONTROLLER.encode(), controller_config.load),
        "agent": Document(AGENT.encode(), agent_config.load),
        "trace": Document(TRACE.encode(), traces.load, ".csv"),
        "key": Document(text.encode(), lambda path: key(path.read_bytes(), str(path))),
    }


def spoil(rng: random.Random, data: bytes) -> bytes:
    """Return `data` corrupted: a surprising value, lines removed or added, corrupted bytes."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        lines = data.split(b"\n")
        at = rng.randrange(len(lines))
        match rng.randrange(6):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, rng.choice(lines))
            case 2:
                name, colon, _ = lines[at].partition(b": ")
                trick = rng.choice((*TRICKS, *(text.encode() for text in TEXTS)))
                lines[at] = name + colon + trick if colon else trick
            case 3:
                cut = rng.randrange(len(lines[at]) + 1)
                lines[at] = lines[at][:cut] + rng.choice(TRICKS) + lines[at][cut + rng.randrange(3) :]
            case 4:
                lines[at] = b"  " + lines[at]
            case _:
                return Mutator(rng, Grammar(rng)).data(data)
        data = b"\n".join(lines)
    return data


def read(document: Document, data: bytes, directory: Path) -> str:
    """Return the reader's error for `data`; "" if it accepts them. Raises any exception that the reader must not raise."""
    path = directory / f"document{document.suffix}"
    path.write_bytes(data)
    try:
        document.read(path)
    except ElasticError as error:
        return str(error) or "an error without a word"
    return ""
