"""The command `elasticctl` in a process of its own, with a cluster directory of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

PATIENCE_S = 120.0  # on a loaded machine
ELASTICCTL = str(Path(sys.executable).with_name("elasticctl"))


class Cli:
    """The command with its own cluster directory."""

    def __init__(self, directory: Path, cwd: Path) -> None:
        self.directory = directory
        self.cwd = cwd

    def __call__(
        self, *arguments: str, code: int = 0, timeout_s: float = PATIENCE_S
    ) -> subprocess.CompletedProcess[str]:
        command = [ELASTICCTL, "--dir", str(self.directory), *arguments]
        environ = {**os.environ, "ELASTICCTL_DIR": "", "ELASTICCTL_CONTROLLER": ""}
        environ = {key: value for key, value in environ.items() if value}
        done = subprocess.run(command, cwd=self.cwd, env=environ, capture_output=True, text=True, timeout=timeout_s)
        assert done.returncode == code, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr + done.stdout
        assert "\x1b" not in done.stdout + done.stderr, "control characters in a pipe"
        return done

    def json(self, *arguments: str, code: int = 0) -> Any:
        command = 2 if arguments[0] == "policy" else 1
        return json.loads(self(*arguments[:command], "--json", *arguments[command:], code=code).stdout)

    def processes(self) -> list[psutil.Process]:
        """All processes of the cluster, found by its directory in command line or environment."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.pid != os.getpid() and str(self.directory) in " ".join(
                    [*process.cmdline(), *process.environ().values()]
                ):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        return found


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The message of a refusal: one sentence on stderr, nothing on stdout."""
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("elasticctl: ")
    return line


def completed(cli: Cli, line: str) -> list[str]:
    """bash's completions after `line` and a Tab."""
    words = line.split(" ")
    environ = {
        **os.environ,
        "_ELASTICCTL_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(len(words) - 1),
        "ELASTICCTL_DIR": str(cli.directory),
    }
    done = subprocess.run([ELASTICCTL], env=environ, cwd=cli.cwd, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stderr == ""
    return done.stdout.split()
