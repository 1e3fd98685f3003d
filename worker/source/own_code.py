"""Which code is the script's own: code below its directory or the working directory, neither installed nor of this
package.
"""

from __future__ import annotations

import functools
import operator
import os
import sys
import sysconfig
import types
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any


def loop_frame(frame: FrameType | None, code: CodeType | None = None) -> FrameType | None:
    """Return the innermost frame of the script's own code, from `frame` outwards: neither this package's nor an
    installed library's.

    code: prefer a frame of this code, if there is one.
    """
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


def consumers(frame: FrameType) -> list[FrameType]:
    """Return the frames of the script's own code that iterate a running generator, from the generator outwards: their
    variables belong to the loop that it contains. None for other functions.
    """
    found: list[FrameType] = []
    own, outer = directories(), frame.f_back
    while outer is not None and (found[-1] if found else frame).f_code.co_flags & _GENERATOR:
        found += [outer] if is_own_file(outer.f_code.co_filename, own) else []
        outer = outer.f_back
    return found


def _normal(path: str) -> str:
    """Return the absolute path in its normal form. Nearly all of the 2,000 files of a worker have it already."""
    whole = f"{path}/"
    unusual = "//" in whole or "/./" in whole or "/../" in whole
    return path if path.startswith("/") and not unusual else os.path.abspath(path)


# In a development install the package is a directory of links.
_PACKAGE = tuple(
    _normal(str(path)) + os.sep for path in (Path(__file__).parents[2], Path(__file__).resolve().parents[1])
)
_STDLIB = tuple(
    _normal(path) + os.sep for key in ("stdlib", "platstdlib") if (path := sysconfig.get_paths().get(key)) is not None
)
_INSTALLED = frozenset({"site-packages", "dist-packages"})


def directories() -> tuple[str, ...]:
    """Return the directories of the script's own code: the script's directory, and the working directory."""
    main = sys.modules.get("__main__")
    file = None if main is None else variables_of(main).get("__file__")
    found = [os.path.dirname(_normal(file))] if type(file) is str else []
    try:
        found.append(_normal(os.getcwd()))
    except OSError:  # the working directory has been removed
        pass
    return tuple(dict.fromkeys(each.rstrip(os.sep) + os.sep for each in found))


@functools.lru_cache(maxsize=1 << 16)
def is_own_file(file: str, directories: tuple[str, ...]) -> bool:
    """Return whether this file of code is the script's own: in one of the directories, in no hidden one, and not
    installed.
    """
    if file.startswith("<"):  # a notebook's cell, or generated code
        return file.startswith(("<ipython", "<stdin"))
    path = _normal(file)
    if f"{os.sep}ipykernel_" in path:
        return True
    if not path.startswith(directories):  # as nearly all files
        return False
    root = _nearest(path, directories)
    hidden = any(part.startswith(".") for part in path[len(root) :].split(os.sep)[:-1])
    return not hidden and not is_installed(path, directories)


@functools.lru_cache(maxsize=1 << 16)
def is_installed(file: str, directories: tuple[str, ...] = ()) -> bool:
    """Return whether this file belongs to Python, to this package, to a virtual environment or to an installed package.

    Packages are installed in directories named `site-packages`, or in directories on `sys.path` with a `*.dist-info`
    (`pip install --target`). directories: the script's own; a directory of packages that contains one of them does not
    count.
    """
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
    """Return the innermost of these directories that contains the path; "" without any."""
    return max((each for each in directories if path.startswith(each)), key=len, default="")


@functools.lru_cache(maxsize=256)
def _has_distributions(directory: str) -> bool:
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(directory))
    except OSError:  # an archive, or no such directory
        return False


_VARIABLES: Any = vars(types.ModuleType)["__dict__"]


def variables_of(module: types.ModuleType) -> dict[str, Any]:
    """Return a module's variables from Python's own storage."""
    found: dict[str, Any] = _VARIABLES.__get__(module)
    return found


def own_modules(directories: tuple[str, ...], apart: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the variables of the script's own modules, sorted by module name.

    apart: the variables of a module to leave out.
    """
    found = _own_modules(_Imported(), directories)
    return {name: variables for name, variables in found if variables is not apart}


class _Imported:
    """All imported modules, as a key of a cache. Equal if the same modules have the same names.

    A worker looks at them dozens of times, and between most looks no module is imported.
    """

    def __init__(self) -> None:
        self.modules: dict[Any, Any] = dict(sys.modules)

    def __hash__(self) -> int:
        return len(self.modules)

    def __eq__(self, other: object) -> bool:
        """Compare identities, which runs no code of the script."""
        if not isinstance(other, _Imported) or len(self.modules) != len(other.modules):
            return False
        mine, theirs = self.modules, other.modules
        return all(map(operator.is_, mine, theirs)) and all(map(operator.is_, mine.values(), theirs.values()))


@functools.lru_cache(maxsize=1)
def _own_modules(imported: _Imported, directories: tuple[str, ...]) -> list[tuple[str, dict[str, Any]]]:
    found: dict[str, dict[str, Any]] = {}
    for name, module in imported.modules.items():
        if type(name) is not str or not issubclass(type(module), types.ModuleType) or name in MAIN:
            continue
        variables = variables_of(module)
        file = variables.get("__file__")
        if type(file) is str and is_own_file(file, directories):
            found[name] = variables
    return sorted(found.items())


def own_names(directories: tuple[str, ...]) -> frozenset[str]:
    """Return the names of the script's own modules, as classes record them."""
    names = set(own_modules(directories, {}))
    main = sys.modules.get("__main__")
    file = None if main is None else variables_of(main).get("__file__")
    if type(file) is not str or is_own_file(file, directories):
        names.update(MAIN)
    return frozenset(names)


def is_own_class(kind: type) -> bool:
    """Return whether a class is defined in a file of the script's own code."""
    return _is_own_class(kind, directories())


@functools.lru_cache(maxsize=1 << 10)
def _is_own_class(kind: type, directories: tuple[str, ...]) -> bool:
    name = module_of(kind)
    module = sys.modules.get(name)
    file = None if module is None else getattr(module, "__file__", None)
    return is_own_file(file, directories) if type(file) is str else name in MAIN


MAIN = ("__main__", "__mp_main__")


# -- reading objects from Python's own storage: no code of the script runs

_SNAPSHOT_USERS = frozenset({"locals", "vars", "eval", "exec", "dir"})
_OPTIMIZED = 1  # inspect.CO_OPTIMIZED: the flag of a function's code
_GENERATOR = 0x20  # inspect.CO_GENERATOR


def variables_in(frame: FrameType) -> dict[str, Any]:
    """Return a function's variables.

    Up to Python 3.12 the frame keeps the dict of `f_locals`, and with it the last losses and their graphs. The dict is
    emptied, unless the function may have given it to the script by `locals()`.
    """
    if not frame.f_code.co_flags & _OPTIMIZED:
        return {} if frame.f_locals is frame.f_globals else dict(frame.f_locals)
    snapshot = frame.f_locals
    variables = dict(snapshot)
    if type(snapshot) is dict and not _SNAPSHOT_USERS & set(frame.f_code.co_names):
        snapshot.clear()
    return variables


def variables_of_loop(frame: FrameType) -> dict[str, Any]:
    """Return the variables that code in the frame of a loop reaches by their names, and those of `consumers`."""
    return {
        **frame.f_globals,
        **{name: value for each in reversed(consumers(frame)) for name, value in variables_in(each).items()},
        **variables_in(frame),
    }


_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)  # the latter of `types.SimpleNamespace`
_MRO = type.__dict__["__mro__"]
_NAMES = type.__dict__["__dict__"]


def mro_of(kind: type) -> tuple[type, ...]:
    """Return a class and its base classes."""
    found: tuple[type, ...] = _MRO.__get__(kind)
    return found


def module_of(kind: type) -> str:
    """Return the name of the module that defines a class."""
    module = type.__dict__["__module__"].__get__(kind)
    return module if type(module) is str else ""


def attributes_of(value: Any, kind: type) -> dict[str, Any]:
    """Return the object's own attributes, in `__dict__` and `__slots__`, from Python's own storage."""
    found: dict[str, Any] = {}
    inner: Any = None
    for each in mro_of(kind):
        for name, member in _NAMES.__get__(each).items():
            if name == "__dict__" and type(member) in _DESCRIPTORS:
                inner = member.__get__(value) if inner is None else inner
            elif type(member) is types.MemberDescriptorType and module_of(each) != "builtins":
                try:
                    found.setdefault(name, member.__get__(value))
                except AttributeError:  # not assigned
                    continue
    if issubclass(type(inner), dict):
        found.update({name: each for name, each in list(dict.items(inner)) if type(name) is str})
    return found
