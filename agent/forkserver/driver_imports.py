"""Finds the import that starts a GPU driver, after which a process must not be forked.

``python -m elasticd.agent.forkserver.driver_imports PRELUDE`` repeats the imports of a warm process, checks after each module's
body, and prints the name of the module that started the driver. It runs as a separate process, and only after that has happened:
so the imports that every worker waits for are not slowed down.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import subprocess
import sys
import types
from collections.abc import Callable, Sequence

from .gpus import started

AT_THE_START = "what Python itself imports at its start (sitecustomize, a .pth file)"
WITHIN_S = 60.0  # importing torch takes seconds, more on a busy machine or from a file server


class Watching(importlib.abc.MetaPathFinder):
    """Import hook that calls `is_so` after each module's body. `name`: the first module after which it was true; ""."""

    def __init__(self, is_so: Callable[[], object]) -> None:
        self._is_so = is_so
        self._within: list[str] = []  # modules with a running body, innermost last
        self.name = ""

    def look(self, otherwise: str) -> None:
        if not self.name and self._is_so():
            self.name = self._within[-1] if self._within else otherwise

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None and not isinstance(spec.loader, type):  # classes load built-in modules
                    self._watch(fullname, spec.loader)
                return spec
        return None

    def _watch(self, name: str, loader: importlib.abc.Loader) -> None:
        def watched(run: Callable[..., object]) -> Callable[..., object]:
            def inner(*args: object) -> object:
                self.look("")  # done by the importing module itself, before this import
                self._within.append(name)
                try:
                    return run(*args)
                finally:
                    self.look(name)
                    self._within.pop()

            return inner

        for method in ("create_module", "exec_module"):  # create_module loads libraries, which may start a driver too
            setattr(loader, method, watched(getattr(loader, method)))


def find(prelude: str) -> str:
    """Return the module that starts a driver when `prelude` is loaded and prepared; "" if none does."""
    watching = Watching(started)
    watching.look(AT_THE_START)
    sys.meta_path.insert(0, watching)
    module = importlib.import_module(prelude)
    module.prepare()
    watching.look(f"{prelude}.prepare")
    return watching.name


def named(prelude: str) -> str:
    """Return the result of `find` in a child process; "" if it finds no module, fails or takes longer than WITHIN_S."""
    command = [sys.executable, "-m", __name__, prelude]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().splitlines()[-1] if not done.returncode and done.stdout.strip() else ""


if __name__ == "__main__":
    sys.path[:] = sys.path[1:]  # without the start directory, as in the warm process
    print(find(sys.argv[1]))
