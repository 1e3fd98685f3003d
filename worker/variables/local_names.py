"""Names whose values may differ between workers: `run.local("running_loss")`, for values that only a log reads."""

from __future__ import annotations

import builtins
import re
from types import FrameType

from ...protocol.errors import UserError

_NAME = re.compile(r"[^\W\d]\w*")


class LocalNames:
    """The local names of one script."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def add(self, names: tuple[str, ...], frame: FrameType | None) -> None:
        """Add names.

        frame: of the caller. Raises UserError, adding none, for a name that neither the frame nor its module has.
        """
        if not names:
            raise UserError('local() was called without a name: give those that may differ, run.local("running_loss")')
        for name in names:
            root = _NAME.match(name) if isinstance(name, str) else None
            if root is None:
                raise UserError(f'local({name!r}): give the name of a variable as text, run.local("running_loss")')
            if not _knows(frame, root[0]):
                raise UserError(
                    f"local({name!r}): the script has no variable {root[0]!r} where local() is called, nor in that module"
                )
        self._names.update(names)

    def has(self, name: str) -> bool:
        """Return whether a name is one of these, or a part of one."""
        return name in self._names or any(
            name.startswith(each) and name[len(each)] in ".[(" for each in self._names if len(name) > len(each)
        )


def _knows(frame: FrameType | None, name: str) -> bool:
    if frame is None:
        return False
    code = frame.f_code
    own = (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
    if name in own or name in frame.f_globals:
        return True
    # A module's code has no local variables: its names include those that it will bind.
    return name in code.co_names and frame.f_locals is frame.f_globals and not hasattr(builtins, name)
