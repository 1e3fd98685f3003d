"""Policy plug-ins: a user's own policy, in a Python file (docs/research.md has an example).

The file has one class that is derived from `PolicyPlugin`. It runs inside the process that decides, a simulation or the
controller, with all permissions of this process. So a controller takes such a file from its operator's configuration
alone.

Errors that the class raises, and impossible shares, become a `PolicyError` that names file and line. A controller then
keeps its last plan, and asks again.
"""

from __future__ import annotations

import hashlib
import importlib.util
import random
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType, TracebackType
from typing import Any

import msgspec
import numpy as np

from ..protocol.errors import OperatorError
from ..protocol.texts import gpu_count
from .arrays import Floats as Floats
from .arrays import Ints as Ints
from .options import WrongOption, convert
from .policies.base import Shares as Shares
from .policies.base import waits_for
from .view import JobTable as JobTable
from .view import Reason

ENDING = ".py"


class NoParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The policy takes no parameters."""


class PolicyPlugin:
    """Divides the GPUs of a cluster among its jobs. Derive a class from it, and write `shares`.

    `needs_lengths`: whether it may see `jobs.told_s` and `jobs.left_s`. On a real cluster only jobs that report their
    steps have a length. `Parameters`: a msgspec.Struct with the fields that a policy file may set; `self.parameters`
    has them.

    The same object is called for every decision. It should keep no state: the same jobs should get the same shares.
    """

    needs_lengths: bool = False
    Parameters: type[msgspec.Struct] = NoParameters

    def __init__(self, parameters: msgspec.Struct) -> None:
        self.parameters: Any = parameters

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Sequence[int] | Ints | Shares:
        """Return how many GPUs each job gets, in the order of `jobs`.

        That is 0, or from its `min_gpus` to its `max_gpus`; all together no more than `gpus`. A `Shares` in place of
        the numbers may also state why a job waits, and when to ask again without an event.

        `jobs`: numpy columns with an entry for each job, in the order of submission. They are read-only: copy one to
        change it.

        * `share` (GPUs that it has now), `min_gpus`, `max_gpus`, `requested_gpus`, `priority`.
        * `submitted_s`, `waiting_since_s` (nan while it has GPUs): times like `now`.
        * `executed_s`: seconds with any GPU; `attained_gpu_s`: GPU-seconds.
        * `done_s`: the work that it has done so far, in seconds on one GPU.
        * `told_s`, `left_s`, with `needs_lengths` alone: seconds that it takes on one GPU in all, and from now on, as
          it reports; nan and 1e9 without a report.
        * `jobs.speedup(rows, gpus)`: throughput with so many GPUs over that with one, as measured: it may have dents.

        `now`: seconds; Unix time on a cluster, since the first submission in a simulation. `rng`: the only source of
        randomness.
        """
        raise NotImplementedError


class PolicyError(OperatorError):
    """A policy in a user's own file is wrong. The message has file, line and reason."""

    line: int | None = None


class LoadedPlugin:
    """The policy that the class in `path` implements; `parameters` are plain values.

    Raises PolicyError, or WrongOption naming `source`.
    """

    def __init__(self, path: str, parameters: dict[str, Any], source: str) -> None:
        self.name = path.rpartition("/")[2]
        self._path, self._plain, self._source = path, parameters, source
        kind, self.code = _class_in(path)
        known = kind.Parameters.__struct_encode_fields__
        for name in parameters:  # the user's struct may not set `forbid_unknown_fields`
            if name not in known:
                text = f"is unknown; known are {', '.join(known)}" if known else "is unknown; there are none"
                raise WrongOption(source, f"parameters.{name}", text)
        self.parameters = convert(parameters, kind.Parameters, source, "parameters")
        try:
            self._policy = kind(self.parameters)
        except Exception as error:
            raise _policy_error(path, error) from None
        self.needs_lengths = bool(kind.needs_lengths)
        self._line = kind.shares.__code__.co_firstlineno

    @property
    def plugin(self) -> PolicyPlugin:
        """The policy itself."""
        return self._policy

    def __reduce__(self) -> tuple[Any, ...]:
        return LoadedPlugin, (self._path, self._plain, self._source)  # another process reads the file for itself

    def shares(self, jobs: JobTable, gpus: int, now: float, rng: random.Random) -> Shares:
        """Return the shares of the class, if they are possible. Raises PolicyError otherwise."""
        try:
            decided = self._policy.shares(jobs, gpus, now, rng)
            found = decided if isinstance(decided, Shares) else self._with_reasons(jobs, decided, gpus)
            wrong = _impossible(jobs, found.gpus, gpus)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also `sys.exit`: it must not end a controller
            raise _policy_error(self._path, error, self._line) from None
        if wrong:
            raise _error(self._path, self._line, wrong)
        return found

    def _with_reasons(self, jobs: JobTable, decided: Sequence[int] | Ints, gpus: int) -> Shares:
        numbers = np.asarray(decided)
        if numbers.shape != (len(jobs),) or not (numbers == np.floor(numbers)).all():
            raise ValueError(f"shares gave {_short(decided)} for {len(jobs)} jobs; a whole number for each is wanted")
        given = numbers.astype(np.int64)
        free = gpus - int(given.sum())

        def why(row: int) -> Reason | None:
            return waits_for(int(jobs.min_gpus[row]), free, gpus, f"left by {self.name}") if not given[row] else None

        return Shares(given, why)


def load(path: str, parameters: dict[str, Any], source: str) -> LoadedPlugin:
    """Return the policy in the Python file `path`.

    Raises PolicyError, naming file and line, or WrongOption, naming `source`.
    """
    return LoadedPlugin(path, parameters, source)


def try_out(policy: LoadedPlugin) -> None:
    """Call a policy with some tables of jobs, the first of them empty. Raises PolicyError."""
    from .samples import samples

    for jobs, gpus in samples():
        policy.shares(jobs if policy.needs_lengths else jobs.without_lengths(), gpus, 1000.0, random.Random(0))


def _class_in(path: str) -> tuple[type[PolicyPlugin], str]:
    """Return the class, and a digest of the file's text."""
    module, text = _module(path)
    kinds = [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, PolicyPlugin) and kind.__module__ == module.__name__
    ]
    if len(kinds) != 1:
        names = ", ".join(kind.__name__ for kind in kinds)
        found = f"there are {len(kinds)}: {names}" if kinds else "there is none"
        raise PolicyError(f"{path}: wanted is one class derived from elasticd.scheduler.plugin.PolicyPlugin; {found}")
    return kinds[0], hashlib.sha256(text.encode()).hexdigest()[:16]


def _module(path: str) -> tuple[ModuleType, str]:
    name = "elasticd_policy_" + "".join(sign if sign.isalnum() else "_" for sign in path)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        code: CodeType = compile(text, path, "exec")
    except FileNotFoundError:
        raise PolicyError(f"{path}: no such file") from None
    except SyntaxError as error:
        raise _error(path, error.lineno, error.msg) from None
    except (OSError, ValueError) as error:  # unreadable, or not text
        raise PolicyError(f"{path}: cannot be read: {error}") from None
    spec = importlib.util.spec_from_loader(name, loader=None, origin=path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = path
    sys.modules[name] = module  # dataclasses and msgspec look up types of fields there
    try:
        exec(code, module.__dict__)
    except Exception as error:
        raise _policy_error(path, error) from None
    return module, text


def _policy_error(path: str, error: BaseException, line: int | None = None) -> PolicyError:
    """Return the error as raised at the last line of the file in its traceback; `line`: used if there is none."""
    here, at = error.__traceback__, None
    while here is not None:
        if here.tb_frame.f_code.co_filename == path:
            at = here
        here = here.tb_next
    policy_error = _error(path, at.tb_lineno if at is not None else line, f"{type(error).__name__}: {error}")
    return (
        policy_error
        if at is None
        else policy_error.with_traceback(TracebackType(None, at.tb_frame, at.tb_lasti, at.tb_lineno))
    )


def _error(path: str, line: int | None, reason: str) -> PolicyError:
    error = PolicyError(f"{path}: line {line}: {reason}" if line is not None else f"{path}: {reason}")
    error.line = line
    return error


def _impossible(jobs: JobTable, given: Ints, gpus: int) -> str:
    """Return why these shares are impossible; "" if they are possible."""
    if len(given) != len(jobs):
        return f"{len(given)} shares for {len(jobs)} jobs"
    most = np.maximum(jobs.min_gpus, jobs.max_gpus)
    wrong = np.flatnonzero((given != 0) & ((given < jobs.min_gpus) | (given > most)))
    if len(wrong):
        row = int(wrong[0])
        least = int(jobs.min_gpus[row])
        return f"{jobs.name(row)} gets {gpu_count(int(given[row]))}; it can have none, or from {least} to {most[row]}"
    total = int(given.sum())
    return f"{gpu_count(total)} are given, and there are {gpus}" if total > gpus else ""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def refused(source: str) -> WrongOption:
    """Return the error where a Python file may not be named."""
    return WrongOption(
        source,
        "policy",
        "a policy in a Python file runs inside the controller, so that only the operator's controller.yaml may name it",
    )
