"""Executed by a worker's interpreter when it starts: the agent puts this directory first in PYTHONPATH.

Seeds the generators (`_elasticd_seeds`), takes its directory out of `sys.path`, and then runs the environment's own
`sitecustomize`. Variables stay as they are, since a launcher's child is the process that trains.
"""

import os
import sys


def _run() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    try:
        import _elasticd_seeds  # type: ignore[import-not-found]  # as a script's path has it, this file belongs to no package

        _elasticd_seeds.begin(os.environ)
    finally:
        sys.path[:] = [each for each in sys.path if os.path.abspath(each or ".") != here]
    this = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401  # the module that this file replaces
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", this)


if __name__ == "sitecustomize":
    _run()
