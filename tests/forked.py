"""Runs scripts as forks of a process that has already imported PyTorch: `python -m tests.forked`.

Input is one errand per line as JSON: a script to run, whose process number is the answer, or a process number to wait for, whose
exit code is the answer, as in `subprocess`. A script runs as with `python script.py`, as the main module of its process.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

ROOT = Path(__file__).parents[1]


class Scripts:
    """Client of the forking process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forked"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def close(self) -> None:
        """Closing the pipe is not enough, since other forks may hold its end open."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(None)}\n")
        self._process.stdin.close()
        self._process.wait()

    def run(
        self, script: Path, *arguments: str, cwd: Path | None = None, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Like `subprocess.run([python, script, *arguments])`; variables: added to the environment."""
        with TemporaryDirectory() as directory:
            out, error = Path(directory) / "out", Path(directory) / "error"
            pid = self._fork(script, arguments, cwd, variables, (os.devnull, str(out), str(error)))
            code = self.wait(pid)
            return subprocess.CompletedProcess([str(script), *arguments], code, out.read_text(), error.read_text())

    def start(self, script: Path) -> Started:
        """Like `subprocess.Popen([python, script])` with pipes to its input and from its output."""
        with TemporaryDirectory() as directory:
            there, back = Path(directory) / "in", Path(directory) / "out"
            os.mkfifo(there)
            os.mkfifo(back)
            pid = self._fork(script, (), None, None, (str(there), str(back), None))
            return Started(self, pid, there.open("w"), back.open())

    def wait(self, pid: int) -> int:
        """Exit code of a script."""
        return self._ask({"wait": pid})

    def _fork(
        self,
        script: Path,
        arguments: tuple[str, ...],
        cwd: Path | None,
        variables: Mapping[str, str] | None,
        files: tuple[str | None, ...],
    ) -> int:
        """Process number. files: its standard streams; None: as that of this process."""
        errand = {
            "arguments": [str(script), *arguments],
            "cwd": str(cwd or Path.cwd()),
            "variables": {**os.environ, **(variables or {})},
            "files": files,
        }
        return self._ask(errand)

    def _ask(self, errand: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(errand)}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@dataclass(frozen=True)
class Started:
    """A script that runs, and takes lines from its standard input."""

    scripts: Scripts
    pid: int
    stdin: IO[str]
    stdout: IO[str]

    def ask(self, line: str) -> str:
        """Write a line, and read the one that answers it."""
        self.stdin.write(f"{line}\n")
        self.stdin.flush()
        return self.stdout.readline()

    def close(self) -> int:
        """End its input and wait for its end. Returns its exit code."""
        self.stdin.close()
        code = self.scripts.wait(self.pid)
        self.stdout.close()
        return code


def serve() -> types.CodeType | None:
    """Fork per input line. Returns the script's code in its process, and None at the end of the input."""
    for line in sys.stdin:
        errand = json.loads(line)
        if errand is None:
            break
        if (pid := errand.get("wait")) is not None:
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        elif (child := os.fork()) == 0:
            for number, path in enumerate(errand["files"]):
                if path is None:
                    continue
                opened = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT, 0o600)
                os.dup2(opened, number)
                os.close(opened)
            os.environ.clear()
            os.environ.update(errand["variables"])
            os.chdir(errand["cwd"])
            sys.argv[:] = errand["arguments"]
            sys.path[0] = str(Path(sys.argv[0]).parent)
            elasticd.worker.warm.renew()
            return compile(Path(sys.argv[0]).read_text(), sys.argv[0], "exec")
        else:
            print(child, flush=True)
    return None


if __name__ == "__main__":
    gc.disable()  # modules are no garbage
    import elasticd.worker.api
    from elasticd.worker import warm

    warm.prepare()
    gc.freeze()  # objects of this process are not the script's garbage
    gc.enable()
    if (code := serve()) is not None:
        main = types.ModuleType("__main__")
        main.__file__ = sys.argv[0]
        sys.modules["__main__"] = main
        exec(code, vars(main))
