"""Seeds the generators of Python, NumPy and torch before a script can draw from them. Standard library alone.

A script may draw before it calls `elastic.join()`: it shuffles a list of files, divides a dataset, makes a model. All
workers of a job, on every server and in every attempt, must draw the same numbers there. So the agent gives them one
seed, the variable `SEED`. This module, which `sitecustomize` beside it calls when the interpreter starts, seeds each of
the three generators when its module is imported: importing torch for that would cost seconds in a process that does not
use it. A process that is forked from a warm one has them loaded, and seeds them at once.

Generators that ask the system for their seed are not seeded: `numpy.random.default_rng()`, `random.Random()`,
`secrets`.
"""

from __future__ import annotations

import sys

# Stands in for `typing.TYPE_CHECKING`, since importing `typing` would cost each interpreter milliseconds
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any

SEED = "ELASTICD_SEED"


def _seed_python(module: Any, value: int) -> None:
    module.seed(value)


def _seed_numpy(module: Any, value: int) -> None:
    module.seed((value ^ value >> 32) & 0xFFFFFFFF)


def _seed_torch(module: Any, value: int) -> None:
    module.manual_seed(value)


SEEDERS: Mapping[str, Callable[[Any, int], None]] = {
    "random": _seed_python,
    "numpy.random": _seed_numpy,
    "torch": _seed_torch,
}


def begin(environ: Mapping[str, str]) -> None:
    """Seed the imported generators now, and the others at their import. Does nothing if the job has no seed."""
    text = environ.get(SEED, "")
    if not text.isdecimal():
        return
    value = int(text)
    for name, seed in SEEDERS.items():
        if (module := sys.modules.get(name)) is not None:
            seed(module, value)
    waiting = [name for name in SEEDERS if name not in sys.modules]
    if waiting:
        sys.meta_path.insert(0, _WhenImported(waiting, value))


class _WhenImported:
    """A finder that finds no module itself: it makes a module's loader seed the module right after executing it."""

    def __init__(self, waiting: list[str], value: int) -> None:
        self._waiting = waiting
        self._value = value

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._waiting:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                self._wrap(name, spec.loader)
                return spec
        return None

    def _wrap(self, name: str, loader: Any) -> None:
        """Replace `exec_module` in the loader's own attributes, which affects one module: each module has a loader of
        its own.
        """
        execute = getattr(loader, "exec_module", None)
        if isinstance(loader, type) or execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            self._imported(name, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:  # the loader has no attributes of its own
            pass

    def _imported(self, name: str, module: ModuleType) -> None:
        if name in self._waiting:
            self._waiting.remove(name)
            try:
                SEEDERS[name](module, self._value)
            except AttributeError:  # another module of that name
                pass
        if not self._waiting and self in sys.meta_path:
            sys.meta_path.remove(self)
