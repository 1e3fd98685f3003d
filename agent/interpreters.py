"""Interpreters on disk: the one that a command starts, and whether the files that a warm one has loaded still stand."""

from __future__ import annotations

import os
from collections.abc import Mapping

from .warm_key import Interpreter


def find_interpreter(program: str, environment: Mapping[str, str], workdir: str) -> Interpreter | None:
    """Return the program that exec would find in `workdir`; None if there is none, or a relative PATH entry comes first."""
    if "/" in program:
        found = os.path.join(workdir, program)
        return located(found) if os.access(found, os.X_OK) else None
    for directory in environment.get("PATH", "").split(":"):
        if not directory.startswith("/"):
            return None
        found = os.path.join(directory, program)
        if os.path.isfile(found) and os.access(found, os.X_OK):
            return located(found)
    return None


def located(executable: str) -> Interpreter:
    """Return the interpreter at an absolute path."""
    return Interpreter(executable, os.path.realpath(os.path.dirname(executable)), os.path.realpath(executable))


def have_changed(files: Mapping[str, int]) -> bool:
    """Return whether any of these files, with modification times (ns), differs on disk."""
    try:
        return any(os.stat(path).st_mtime_ns != changed for path, changed in files.items())
    except (OSError, ValueError):  # ValueError: a name from an untrusted process that is no path
        return True
