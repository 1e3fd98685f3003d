"""Which import starts a GPU's driver, so that nothing may be forked from a process with it.

``python -m elasticd.agent.forkserver.blame PRELUDE`` loads once more what a warm process has loaded, with an eye on each module,
and prints the name of the one in whose body the driver was started. It is a process of its own, run only where that has happened:
the loading that every worker waits for is not watched.
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
WITHIN_S = 60.0  # importing torch takes seconds, on a machine that is busy, or from a file server


class Watching(importlib.abc.MetaPathFinder):
    """Looks after each module's body whether `is_so` has become true. `name`: of the first module after which it was; ""."""

    def __init__(self, is_so: Callable[[], object]) -> None:
        self._is_so = is_so
        self._within: list[str] = []  # modules whose bodies run now, the innermost last
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
                if spec.loader is not None and not isinstance(spec.loader, type):  # types: those of built-in modules
                    self._watch(fullname, spec.loader)
                return spec
        return None

    def _watch(self, name: str, loader: importlib.abc.Loader) -> None:
        def watched(run: Callable[..., object]) -> Callable[..., object]:
            def inner(*args: object) -> object:
                self.look("")  # the module that imports this one has done it before
                self._within.append(name)
                try:
                    return run(*args)
                finally:
                    self.look(name)
                    self._within.pop()

            return inner

        for method in ("create_module", "exec_module"):  # the first one loads libraries, which may start things, too
            setattr(loader, method, watched(getattr(loader, method)))


def find(prelude: str) -> str:
    """What starts a driver when `prelude` is loaded and prepares; "": nothing does."""
    watching = Watching(started)
    watching.look(AT_THE_START)
    sys.meta_path.insert(0, watching)
    module = importlib.import_module(prelude)
    module.prepare()
    watching.look(f"{prelude}.prepare")
    return watching.name


def named(prelude: str) -> str:
    """The same in a process of its own; "" where that does not find it either."""
    command = [sys.executable, "-m", __name__, prelude]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().splitlines()[-1] if not done.returncode and done.stdout.strip() else ""


if __name__ == "__main__":
    sys.path[:] = sys.path[1:]  # as in the warm process: not the directory that it was started in
    print(find(sys.argv[1]))
