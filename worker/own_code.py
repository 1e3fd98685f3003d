"""Which code is the script's own: that in its directory or the one it works in, neither installed nor of this package."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import types
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any


def loop_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the script's own code, from `frame` outwards: neither this package's nor an installed library's."""
    while frame is not None and not is_own_file(frame.f_code.co_filename, directories_of(frame)):
        frame = frame.f_back
    return frame


def _normal(path: str) -> str:
    return os.path.normcase(os.path.abspath(path))


# Installed for development, the package is a directory of links.
_PACKAGE = tuple(_normal(str(path)) + os.sep for path in (Path(__file__).parents[1], Path(__file__).resolve().parent))
_STDLIB = tuple(
    _normal(path) + os.sep for key in ("stdlib", "platstdlib") if (path := sysconfig.get_paths().get(key)) is not None
)
_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


def directories_of(frame: FrameType | None) -> tuple[str, ...]:
    """Where the script's own code is: its directory, and the one that it works in."""
    main = sys.modules.get("__main__")
    files = [getattr(main, "__file__", None), frame.f_code.co_filename if frame is not None else None]
    found = [os.path.dirname(_normal(file)) for file in files[:1] if isinstance(file, str)]
    try:
        found.append(_normal(os.getcwd()))
    except OSError:  # it is there no more
        pass
    return tuple(dict.fromkeys(directory.rstrip(os.sep) + os.sep for directory in found))


@functools.lru_cache(maxsize=4096)
def is_own_file(file: str, directories: tuple[str, ...]) -> bool:
    if file.startswith("<"):  # a notebook's cell, or what a program has made
        return file.startswith(("<ipython", "<stdin"))
    path = _normal(file)
    if path.startswith((*_PACKAGE, *_STDLIB)) or any(part in path for part in _INSTALLED):
        return False
    return path.startswith(directories)


_VARIABLES: Any = vars(types.ModuleType)["__dict__"]


def variables_of(module: types.ModuleType) -> dict[str, Any]:
    """A module's, from where Python keeps them."""
    found: dict[str, Any] = _VARIABLES.__get__(module)
    return found


def own_modules(directories: tuple[str, ...], apart: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The variables of the script's own modules, in the order of their names, but of one."""
    found: dict[str, dict[str, Any]] = {}
    for name, module in list(sys.modules.items()):
        if type(name) is not str or not issubclass(type(module), types.ModuleType) or name in MAIN:
            continue
        variables = variables_of(module)
        file = variables.get("__file__")
        if variables is not apart and type(file) is str and is_own_file(file, directories):
            found[name] = variables
    return [{**found[name], "__name__": name} for name in sorted(found)]


MAIN = ("__main__", "__mp_main__")
