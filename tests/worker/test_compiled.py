"""Compilation caches of torch.compile are sent to newcomers of the same job only; long compilations are reported."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticd.worker import compiled
from elasticd.worker.compiled import Compilations, Compiled
from elasticd.worker.events import Noticed

KEY = "k" * 40


def of(key: str = KEY) -> Compiled:
    return Compiled(key, lambda told: None)


@pytest.fixture
def artefacts(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """torch's caches contain b"code"; loaded caches are recorded."""
    loaded: list[bytes] = []
    monkeypatch.setitem(sys.modules, "torch._inductor", sys.modules.get("torch._inductor", sys))
    monkeypatch.setattr(torch.compiler, "save_cache_artifacts", lambda: (b"code", None), raising=False)
    monkeypatch.setattr(torch.compiler, "load_cache_artifacts", lambda data: loaded.append(data) or data, raising=False)
    return loaded


def test_a_newcomer_takes_the_artefacts_of_its_own_job_and_the_header_is_without_them(artefacts: list[bytes]) -> None:
    header: dict[str, Any] = {"format": 3, **of().offer()}
    assert of().take(header)
    assert artefacts == [b"code"]
    assert header == {"format": 3}


@pytest.mark.parametrize(
    "change", [{"data": b"evil"}, {"code": b"0" * 32}, {"code": None}, {"data": "text"}, {"torch": "1.0"}]
)
def test_what_no_worker_of_the_job_has_made_is_not_loaded(artefacts: list[bytes], change: dict[str, Any]) -> None:
    header = of().offer()
    header["compiled"].update(change)
    assert not of().take(header)
    assert not of("another job's key").take(of().offer())
    assert artefacts == []


def test_without_a_key_nothing_is_offered_and_nothing_taken(artefacts: list[bytes]) -> None:
    assert of("").offer() == {}
    assert not of("").take(of().offer())
    assert artefacts == []


def test_too_much_is_not_offered(artefacts: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "MOST_BYTES", 3)
    assert of().offer() == {}


def test_a_compilation_that_takes_long_is_told_when_it_does_and_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Noticed] = []
    now = [100.0]
    timers: list[Any] = []

    class Timer:
        daemon = False

        def __init__(self, seconds: float, call: Any) -> None:
            timers.append((seconds, call))

        def start(self) -> None: ...

        def cancel(self) -> None: ...

    monkeypatch.setattr("elasticd.worker.compiled.time.monotonic", lambda: now[0])
    monkeypatch.setattr("elasticd.worker.compiled.threading.Timer", Timer)
    compilations = Compilations(told.append)
    compilations.begins()
    now[0] += 20
    compilations.ends()
    assert told == []
    compilations.begins()
    assert timers[-1][0] == 40
    now[0] += 40
    timers[-1][1]()
    now[0] += 15
    compilations.ends()
    assert [each.text.partition(";")[0] for each in told] == [
        "compiles (torch.compile), for 60 s so far",
        "compiled (torch.compile) for 75 s",
    ]
    compilations.begins()
    now[0] += 5
    compilations.ends()
    assert len(told) == 2, "each graph of many does not become an event"


WORKER = """
import json, sys, torch
from elasticd.worker.compiled import Compiled
me = Compiled("k" * 40, lambda told: None)
model = torch.compile(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)))
taken = None
if sys.argv[1] == "join":
    data = open(sys.argv[2], "rb").read()
    taken = me.take({"compiled": {"torch": torch.__version__, "data": data[32:], "code": data[:32]}})
torch.manual_seed(0)
loss = model(torch.ones(4, 8)).sum()
loss.backward()
found = me.offer()["compiled"]
if sys.argv[1] == "begin":
    open(sys.argv[2], "wb").write(found["code"] + found["data"])
from torch._dynamo.utils import counters
hits = counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
print(json.dumps({"taken": taken, "hits": hits}))
"""


@pytest.mark.cluster
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a compiler")
@pytest.mark.skipif(not hasattr(torch.compiler, "load_cache_artifacts"), reason="needs torch 2.6")
def test_a_newcomer_finds_compiled_what_another_worker_has_compiled(tmp_path: Path) -> None:
    found = []
    for part in ("begin", "join"):
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / part), "TMPDIR": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", WORKER, part, str(tmp_path / "artefacts")],
            env={**os.environ, **caches},
            check=True,
            timeout=600,
            stdout=subprocess.PIPE,
        )
        found.append(json.loads(done.stdout.splitlines()[-1]))
    first, joiner = found
    assert (first["taken"], first["hits"]) == (None, 0)
    assert joiner["taken"]
    assert joiner["hits"] > 0
