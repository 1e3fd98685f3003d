"""Which code is the script's own: that in its directory or the one it works in, neither installed nor of this package."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import types
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any


def loop_frame(frame: FrameType | None, code: CodeType | None = None) -> FrameType | None:
    """The innermost frame of the script's own code, from `frame` outwards: neither this package's nor an installed library's. Of
    this code, if it is given and there is one."""
    own = directories()
    found: FrameType | None = None
    while frame is not None:
        if frame.f_code is code:
            return frame
        if found is None and is_own_file(frame.f_code.co_filename, own):
            found = frame
            if code is None:
                break
        frame = frame.f_back
    return found


def _normal(path: str) -> str:
    return os.path.normcase(os.path.abspath(path))


# Installed for development, the package is a directory of links.
_PACKAGE = tuple(_normal(str(path)) + os.sep for path in (Path(__file__).parents[1], Path(__file__).resolve().parent))
_STDLIB = tuple(
    _normal(path) + os.sep for key in ("stdlib", "platstdlib") if (path := sysconfig.get_paths().get(key)) is not None
)
_INSTALLED = frozenset({"site-packages", "dist-packages"})


def directories() -> tuple[str, ...]:
    """Where the script's own code is: its directory, and the one that it works in."""
    main = sys.modules.get("__main__")
    file = None if main is None else variables_of(main).get("__file__")
    found = [os.path.dirname(_normal(file))] if type(file) is str else []
    try:
        found.append(_normal(os.getcwd()))
    except OSError:  # it is there no more
        pass
    return tuple(dict.fromkeys(each.rstrip(os.sep) + os.sep for each in found))


@functools.lru_cache(maxsize=1 << 16)
def is_own_file(file: str, directories: tuple[str, ...]) -> bool:
    """Is this file of code in one of the directories, in none that is hidden, and the script's own?"""
    if file.startswith("<"):  # a notebook's cell, or what a program has made
        return file.startswith(("<ipython", "<stdin"))
    path = _normal(file)
    if f"{os.sep}ipykernel_" in path:
        return True
    root = _nearest(path, directories)
    hidden = any(part.startswith(".") for part in path[len(root) :].split(os.sep)[:-1])
    return bool(root) and not hidden and not is_installed(path, directories)


@functools.lru_cache(maxsize=1 << 16)
def is_installed(file: str, directories: tuple[str, ...] = ()) -> bool:
    """Is this file Python's, this package's, a virtual environment's, or in a directory that an installer has filled: one that is
    called `site-packages`, or one on `sys.path` with a `*.dist-info` (`pip install --target`)? directories: the script's own,
    which none of the latter contains."""
    path = _normal(file)
    root = _nearest(path, directories)
    environment = [sys.prefix] if sys.prefix != sys.base_prefix else []
    filled = [each for each in sys.path if each and _has_distributions(each)]
    outer = [_normal(each) + os.sep for each in (*environment, *filled)]
    return (
        path.startswith((*_PACKAGE, *_STDLIB))
        or any(path.startswith(each) and not root.startswith(each) for each in outer)
        or not _INSTALLED.isdisjoint(path[len(root) :].split(os.sep)[:-1])
    )


def _nearest(path: str, directories: tuple[str, ...]) -> str:
    """The innermost of these directories that the path is in. "": it is in none."""
    return max((each for each in directories if path.startswith(each)), key=len, default="")


@functools.lru_cache(maxsize=256)
def _has_distributions(directory: str) -> bool:
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(directory))
    except OSError:  # an archive, or nothing at all
        return False


_VARIABLES: Any = vars(types.ModuleType)["__dict__"]


def variables_of(module: types.ModuleType) -> dict[str, Any]:
    """A module's, from where Python keeps them."""
    found: dict[str, Any] = _VARIABLES.__get__(module)
    return found


def own_modules(directories: tuple[str, ...], apart: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The variables of the script's own modules, by and in the order of their names. apart: those of one to leave out."""
    found: dict[str, dict[str, Any]] = {}
    for name, module in list(sys.modules.items()):
        if type(name) is not str or not issubclass(type(module), types.ModuleType) or name in MAIN:
            continue
        variables = variables_of(module)
        file = variables.get("__file__")
        if variables is not apart and type(file) is str and is_own_file(file, directories):
            found[name] = variables
    return {name: found[name] for name in sorted(found)}


def own_names(directories: tuple[str, ...]) -> frozenset[str]:
    """The names of the script's own modules, as classes have them."""
    names = set(own_modules(directories, {}))
    main = sys.modules.get("__main__")
    file = None if main is None else variables_of(main).get("__file__")
    if type(file) is not str or is_own_file(file, directories):
        names.update(MAIN)
    return frozenset(names)


MAIN = ("__main__", "__mp_main__")


# -- what there is, from where Python keeps it: none of the script's code runs

_SNAPSHOT_USERS = frozenset({"locals", "vars", "eval", "exec", "dir"})
_OPTIMIZED = 1  # inspect.CO_OPTIMIZED: a function's code


def variables_in(frame: FrameType) -> dict[str, Any]:
    """A function's variables. Up to Python 3.12 the frame keeps what `f_locals` has given, and with it the last losses and their
    graphs: that is emptied, unless the function may have given it to the script by `locals()`."""
    if not frame.f_code.co_flags & _OPTIMIZED:
        return {} if frame.f_locals is frame.f_globals else dict(frame.f_locals)
    snapshot = frame.f_locals
    variables = dict(snapshot)
    if type(snapshot) is dict and not _SNAPSHOT_USERS & set(frame.f_code.co_names):
        snapshot.clear()
    return variables


_MRO = type.__dict__["__mro__"]
_NAMES = type.__dict__["__dict__"]


def mro_of(kind: type) -> tuple[type, ...]:
    """A class, and those that it is made of."""
    found: tuple[type, ...] = _MRO.__get__(kind)
    return found


def module_of(kind: type) -> str:
    """The name of the module that a class is in."""
    module = type.__dict__["__module__"].__get__(kind)
    return module if type(module) is str else ""


def attributes_of(value: Any, kind: type) -> dict[str, Any]:
    """Those of the object itself, in `__dict__` and `__slots__`, from where Python keeps them."""
    found: dict[str, Any] = {}
    inner: Any = None
    for each in mro_of(kind):
        for name, member in _NAMES.__get__(each).items():
            if type(member) is types.MemberDescriptorType and module_of(each) != "builtins":
                try:
                    found.setdefault(name, member.__get__(value))
                except AttributeError:  # not assigned
                    continue
            elif name == "__dict__" and type(member) is types.GetSetDescriptorType and inner is None:
                inner = member.__get__(value)
    if issubclass(type(inner), dict):
        found.update({name: each for name, each in list(dict.items(inner)) if type(name) is str})
    return found
