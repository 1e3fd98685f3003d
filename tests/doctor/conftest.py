"""Environments for the checks of `elasticctl doctor`: real configurations with real faults."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from elasticd.agent import config as agent_config
from elasticd.controller import config as controller_config
from elasticd.ctl.doctor import command, targets
from elasticd.ctl.doctor.checks import Finding
from elasticd.ctl.doctor.targets import Described, Machine, Subject, Target

ELASTICCTL = str(Path(sys.executable).with_name("elasticctl"))
LOOKS = {(check.subject, check.name): check for check in command.all_checks()}


class Bench:
    """Makes environments below a directory, and runs checks on them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.processes: list[subprocess.Popen[bytes]] = []
        self.machine = Machine.here()

    def file(self, kind: str, **options: object) -> Path:
        """A daemon's configuration."""
        path = self.directory / f"{kind}.yaml"
        given = {
            "state_directory": str(self.directory / kind),
            **({"server": "s1"} if kind == "agent" else {}),
            **options,
        }
        path.write_text(yaml.safe_dump(given))
        return path

    def target(self, kind: str = "agent", machine: Machine | None = None, **options: object) -> Target:
        """The inputs of a daemon's checks."""
        machine = machine or self.machine
        found = targets._daemon(self.file(kind, **options), kind, machine, describe)
        assert found.described is not None, found.error
        subject = Subject.SERVER if kind == "agent" else Subject.CONTROLLER
        return Target(subject, machine, sys.executable, daemon=found, daemons=(found,))

    def desk(self, **given: Any) -> Target:
        return Target(Subject.DESK, self.machine, given.pop("python", sys.executable), **given)

    def look(self, name: str, target: Target) -> Finding:
        """The finding of one check."""
        return LOOKS[target.subject, name].look(target)

    def stand_in(self, kind: str = "agent", limit: Callable[[], None] | None = None) -> int:
        """A process with a daemon's command line that does nothing."""
        line = ["-m", f"elasticd.{kind}", "--config", str(self.directory / f"{kind}.yaml")]
        program = "import sys, time; print(flush=True); time.sleep(600)"
        process = subprocess.Popen(
            [sys.executable, "-c", program, *line], preexec_fn=limit, stdout=subprocess.PIPE, start_new_session=True
        )
        assert process.stdout is not None
        process.stdout.read(1)
        self.processes.append(process)
        return process.pid

    def run(self, *arguments: object, before: str = "", code: int = 1, desk: bool = False, **variables: str) -> str:
        """Run the `elasticctl doctor` command. `before`: shell lines that run first, in private namespaces.

        `desk`: use the cluster of the user's configuration; otherwise there is none.
        """
        names = ("PATH", "HOME", "LANG")
        environ = {**{name: os.environ[name] for name in names if name in os.environ}, **variables}
        if not desk:
            environ["ELASTICCTL_DIR"] = str(self.directory / "none")
        line = [ELASTICCTL, "doctor", *map(str, arguments)]
        if before:
            apart()
            script = f'set -e\n{before}\nexec "$@"'
            line = ["unshare", "--mount", "--uts", "--net", "--ipc", "bash", "-c", script, "bash", *line]
        done = subprocess.run(line, env=environ, capture_output=True, text=True, timeout=120, cwd="/")
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stdout + done.stderr
        return " ".join((done.stdout + done.stderr).split())

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def describe(file: Path, kind: str) -> tuple[Described | None, str]:
    """Equals `--options`, without a process."""
    config = {"agent": agent_config, "controller": controller_config}[kind]
    return msgspec.convert(config.described(file), Described), ""


def apart() -> None:
    """Skip where this machine does not permit namespaces."""
    if (
        shutil.which("unshare") is None
        or subprocess.run(["unshare", "--mount", "--uts", "--net", "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("namespaces cannot be made here: root is needed")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


@pytest.fixture
def open_bench() -> Iterator[Bench]:
    """A bench in a directory that all accounts may traverse."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        made = Bench(Path(directory))
        yield made
        made.close()


@pytest.fixture
def as_root() -> None:
    if os.getuid() != 0:
        pytest.skip("root is needed")
