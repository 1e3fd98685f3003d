"""A server with stand-in GPUs: NVIDIA's own bindings load the stand-in instead of the driver's library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elasticd.ctl.standins import library


class Standin:
    """A described server. `say` appends lines (`ctl/standins/nvml.c` lists them) while a process has the library loaded."""

    def __init__(self, directory: Path, file: Path, text: str) -> None:
        self.directory = directory  # of the library: for LD_LIBRARY_PATH
        self.file = file
        self.file.write_text(text)

    def say(self, *lines: str) -> None:
        with self.file.open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))

    @property
    def environment(self) -> dict[str, str]:
        """Environment of a process that finds the stand-in in place of the driver's library."""
        return {**os.environ, "LD_LIBRARY_PATH": str(self.directory), "NVML_SERVER": str(self.file)}

    def run(self, code: str, *arguments: str) -> Any:
        """The JSON in the last output line of a Python program, run with the library in place."""
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert not done.returncode, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the stand-in, built once."""
    return library.build(tmp_path_factory.mktemp("nvml"), "-Wall", "-Wextra", "-Werror").parent


@pytest.fixture
def standin(nvml_library: Path, tmp_path: Path) -> Callable[..., Standin]:
    """A factory: `standin("a100")`, or `standin(None, "gpus 1", ...)` for an inline description."""

    def make(model: str | None, *lines: str) -> Standin:
        text = "" if model is None else library.description(model)
        return Standin(nvml_library, tmp_path / "server.txt", text + "".join(f"{line}\n" for line in lines))

    return make
