"""Runs scripts as forks of a process that has already imported PyTorch: `python -m tests.forked`.

Input is one script per line as JSON; the answer is its exit code, as in `subprocess`. A script runs as with `python script.py`,
as the main module of its process.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

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
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with TemporaryDirectory() as directory:
            out, error = Path(directory) / "out", Path(directory) / "error"
            errand = {
                "arguments": [str(script), *arguments],
                "cwd": str(cwd or Path.cwd()),
                "variables": {**os.environ, **(variables or {})},
                "out": str(out),
                "error": str(error),
            }
            self._process.stdin.write(f"{json.dumps(errand)}\n")
            self._process.stdin.flush()
            code = int(self._process.stdout.readline())
            return subprocess.CompletedProcess([str(script), *arguments], code, out.read_text(), error.read_text())


def serve() -> types.CodeType | None:
    """Fork per input line. Returns the script's code in its process, and None at the end of the input."""
    for line in sys.stdin:
        errand = json.loads(line)
        if errand is None:
            break
        if (child := os.fork()) == 0:
            for number, path in ((0, os.devnull), (1, errand["out"]), (2, errand["error"])):
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
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return None


if __name__ == "__main__":
    import elasticd.worker.api
    from elasticd.worker import warm

    warm.prepare()
    gc.freeze()  # objects of this process are not the script's garbage
    if (code := serve()) is not None:
        main = types.ModuleType("__main__")
        main.__file__ = sys.argv[0]
        sys.modules["__main__"] = main
        exec(code, vars(main))
