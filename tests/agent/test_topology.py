"""What a server offers, read through a library that stands in for the driver's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROBE = """
import json, logging, msgspec
from elasticd.agent.topology import discover
logging.basicConfig(level="INFO")
print(json.dumps(msgspec.to_builtins(discover(None))))
"""

needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to build the stand-in with")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the stand-in."""
    directory = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("nvml_stub.c")
    target = directory / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(target), str(source)], check=True)
    return directory


def probe(library: Path, **variables: str) -> tuple[list[dict], str]:
    """The GPUs that a process finds with `library`, and its log."""
    environment = os.environ | {"LD_LIBRARY_PATH": str(library)} | variables
    done = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout), done.stderr


@needs_compiler
def test_gpus_are_found_with_index_name_uuid_and_memory(library: Path) -> None:
    gpus, _ = probe(library, NVML_STUB_GPUS="2")
    assert gpus == [
        {"index": i, "kind": "cuda", "name": "NVIDIA Stub 40GB", "uuid": f"GPU-0000000{i}", "memory_bytes": 40 << 30}
        for i in range(2)
    ]


@needs_compiler
def test_a_gpu_that_answers_with_an_error_is_left_out_and_the_log_says_why(library: Path) -> None:
    gpus, log = probe(library, NVML_STUB_GPUS="3", NVML_STUB_LOST="1")
    assert [gpu["index"] for gpu in gpus] == [0, 2]
    assert "GPU 1 is left out: GPU is lost" in log


@needs_compiler
def test_without_a_loaded_driver_there_are_cpu_slots_and_the_log_says_so_once(library: Path) -> None:
    gpus, log = probe(library, NVML_STUB_INIT="9")
    assert {gpu["kind"] for gpu in gpus} == {"cpu"}
    assert log.count("CPU slots") == 1
