"""Sets up a forked process as the interpreter does when it is started as ``python SCRIPT`` or ``python -m MODULE``.

A script must not be able to notice that its process was forked from a warm one. So ``__main__``, arguments, path and environment
are set up as in the interpreter's own sources (Modules/main.c, Python/pythonrun.c). The interpreter itself then ends the process,
so exit codes, exit handlers and the joining of threads are the interpreter's own.
"""

from __future__ import annotations

import importlib.machinery
import os
import runpy
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass

from ..firstline import _elasticd_seeds


@dataclass(frozen=True)
class Script:
    """Script or module that the interpreter is to run."""

    executable: str
    command: list[str]  # complete, as exec would pass it to `executable`
    module: bool
    name: str  # of the module, or path of the script
    arguments: list[str]


def become(script: Script, environment: dict[str, str], paths: list[str], renew: Callable[[], None]) -> None:
    """Run `script` as if the interpreter had been started with it.

    paths: initial `sys.path`. renew: resets the state of loaded modules that each process has to itself.
    """
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].tempdir = None  # type: ignore[attr-defined]  # a cached value of TMPDIR
    sys.executable = script.executable
    sys.orig_argv[:] = script.command
    sys.path[:] = paths
    renew()
    _elasticd_seeds.begin(environment)
    uncaught: BaseException | None = None
    try:
        if script.module:
            _run_module(script.name, script.arguments)
        else:
            _run_script(script)
    except SystemExit:
        raise
    except BaseException as error:
        uncaught = error
    if uncaught is not None:  # outside the except block, so that the exception has no context
        _tell(uncaught)
        raise uncaught  # the interpreter prints nothing more, and exits with the right code


def _run_module(name: str, arguments: list[str]) -> None:
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())
    sys.argv[:] = ["-m", *arguments]
    sys.modules["__main__"] = _main_module()
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # what the interpreter itself calls for -m


def _run_script(script: Script) -> None:
    name = script.name
    path = name if os.path.isabs(name) else f"{os.getcwd()}/{name}"
    sys.argv[:] = [name, *script.arguments]
    if not sys.flags.safe_path:
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    main = _main_module()
    main.__file__ = path
    main.__dict__["__cached__"] = None
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    sys.modules["__main__"] = main
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        problem = f"can't open file {path!r}: [Errno {error.errno}] {error.strerror}"
        print(f"{script.command[0]}: {problem}", file=sys.stderr)
        raise SystemExit(2) from None
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)


def _main_module() -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__annotations__ = {}
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    return main


def _tell(error: BaseException) -> None:
    """Report an uncaught exception as the interpreter does, without the frames of this module."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    try:
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    except SystemExit:
        raise
    except BaseException as failure:  # sys.excepthook may be the script's own
        inner = failure.__traceback__.tb_next if failure.__traceback__ else None
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(type(failure), failure.with_traceback(inner), inner)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, trace)
    sys.excepthook = lambda *_: None
