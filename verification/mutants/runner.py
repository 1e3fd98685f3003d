"""One machine: its tests are collected once; then each mutant is tried in a forked process, in which everything is loaded.

The code of one function is replaced there (`replace`), all tests that call that function run until one fails, the cheapest first,
and then histories of the simulated cluster that call it. So a mutant takes less than a second, unless nothing notices it.
Which tests and histories call which function, and how long they take, is found out first, with the code as it is; what fails or
takes long there is left out.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import importlib
import json
import os
import resource
import select
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from verification.bits.nursery import end_with_parent
from verification.world.campaign import Settings
from verification.world.history import play

from .machines import KEPT, MACHINES, ROOT, Machine
from .operators import Mutant, mutants

SEEDS = (22, 9, 13, 0, 11, 16, 2)  # of histories, one of each kind and some more
SLOW_S = 1.5  # of processor time: a test that takes longer is left out
MOST_TESTS_S = 25.0  # of processor time, for the tests of one mutant
CPU_S, WALL_S = 60, 240.0  # a mutant that takes longer never comes to an end
MORE_BYTES = 3_000_000_000
PACKAGE = "elasticd."


@dataclass(frozen=True)
class Verdict:
    """Result of a mutant. `by`: killed by "tests", "world" or "time" (it never comes to an end); "": it survives."""

    mutant: Mutant
    by: str
    killer: str
    took_s: float


@dataclass
class _Calls:
    """Functions that tests and histories call in the unchanged code."""

    tests: dict[str, tuple[float, frozenset[str]]]  # by test: processor time (s), and the functions that it calls
    worlds: dict[int, frozenset[str]]


class Runner:
    """A plugin of pytest that tries mutants in the place of running its tests."""

    def __init__(
        self, machine: Machine, wanted: Callable[[Sequence[Mutant]], Sequence[Mutant]], tell: Callable[[Verdict], None]
    ) -> None:
        """`wanted`: which of all mutants are to be tried, in this order."""
        self._machine, self._wanted, self._tell = machine, wanted, tell
        self._failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed = report.nodeid

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        sources = self._machine.sources()
        for file in sources:
            importlib.import_module(_module(file))
        everything = [mutant for file in sources for mutant, _ in mutants(file, _text(file))]
        chosen = self._wanted(everything)
        if not chosen:
            return True
        gc.freeze()
        calls = self._find_calls(session.items)
        for mutant in chosen:
            began = time.monotonic()
            by, killer = self._try(session.items, calls, mutant)
            self._tell(Verdict(mutant, by, killer, time.monotonic() - began))
        return True

    # -- with the code as it is

    def _find_calls(self, items: Sequence[pytest.Item]) -> _Calls:
        """Kept beside the results, as long as neither the code nor the tests change."""
        everything = [file for machine in MACHINES for file in machine.sources()]
        tests = _kept(self._machine.name, [*everything, *self._machine.tried()], partial(self._watch_tests, items))
        worlds = _kept("world", everything, partial(_watch_worlds, everything))
        watched = json.loads(tests)
        for why in ("fail", "take long"):
            if left_out := watched[why]:
                print(f"left out, since they {why} with the code as it is: {', '.join(left_out)}", file=sys.stderr)
        return _Calls(
            {name: (cpu_s, frozenset(found)) for name, (cpu_s, found) in watched["tests"].items()},
            {int(seed): frozenset(found) for seed, found in json.loads(worlds).items()},
        )

    def _watch_tests(self, items: Sequence[pytest.Item]) -> str:
        files = {os.path.realpath(_path(file)): file for file in self._machine.sources()}
        tests: dict[str, tuple[float, list[str]]] = {}
        left_out: dict[str, list[str]] = {"fail": [], "take long": []}
        for item, following in _pairs(items):
            cpu_s, found = _watched(files, partial(self._run, item, following))
            if self._failed:
                left_out["fail"].append(item.nodeid)
            elif found and cpu_s > SLOW_S:
                left_out["take long"].append(item.nodeid)
            elif found:
                tests[item.nodeid] = cpu_s, sorted(found)
            self._failed = ""
        return json.dumps({"tests": tests, **left_out})

    def _run(self, item: pytest.Item, following: pytest.Item | None) -> None:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    # -- one mutant

    def _try(self, items: Sequence[pytest.Item], calls: _Calls, mutant: Mutant) -> tuple[str, str]:
        name = f"{mutant.file}:{mutant.function}"
        concerned = [item for item in items if name in calls.tests.get(item.nodeid, (0.0, frozenset()))[1]]
        costs = {item.nodeid: calls.tests[item.nodeid][0] for item in concerned}
        cheapest = {
            item.location[0]: min(costs[o.nodeid] for o in concerned if o.location[0] == item.location[0])
            for item in concerned
        }
        concerned.sort(key=lambda item: (cheapest[item.location[0]], item.location[0], costs[item.nodeid]))
        seeds = [seed for seed, found in calls.worlds.items() if name in found]

        def attempt() -> str:
            if not replace(mutant):
                return "\0"
            spent_s = 0.0
            for item, following in _pairs(concerned):
                spent_s += costs[item.nodeid]
                if spent_s > MOST_TESTS_S:
                    break
                self._run(item, following)
                if self._failed:
                    return f"tests\0{self._failed}"
            for seed in seeds:
                if invariant := _broken(seed):
                    return f"world\0seed {seed}: {invariant}"
            return "\0"

        by, _, killer = _forked(attempt, CPU_S, WALL_S).partition("\0")
        return by, killer


def replace(mutant: Mutant) -> bool:
    """Put the code of a mutant in the place of its function's. False: the function was not found as it is expected."""
    for other, tree in mutants(mutant.file, _text(mutant.file)):
        if other.key == mutant.key:
            ast.fix_missing_locations(tree)
            code = compile(tree, str(_path(mutant.file)), "exec")
            break
    else:
        return False
    module = importlib.import_module(_module(mutant.file))
    new = list(_codes(code, mutant.function))
    live = list(_functions(module, mutant.function))
    if len(new) != len(live) or not live:
        return False
    try:
        for function, made in zip(live, new, strict=True):
            function.__code__ = made
    except ValueError:  # it has lost a variable that it shares with a function inside: nothing that can be put there
        return False
    return True


def _watch_worlds(everything: Sequence[str]) -> str:
    files = {os.path.realpath(_path(file)): file for file in everything}
    worlds: dict[int, list[str]] = {}
    for seed in SEEDS:
        broken: list[str] = []
        _, found = _watched(files, lambda seed=seed, broken=broken: broken.append(_broken(seed)))  # type: ignore[misc]
        if not broken[0]:
            worlds[seed] = sorted(found)
    return json.dumps(worlds)


def _kept(name: str, files: Sequence[str], work: Callable[[], str]) -> str:
    """Return the cached result of `work`, which depends only on these files."""
    digest = hashlib.sha256(repr(SEEDS).encode())
    for file in files:
        digest.update(f"{file}\0{_text(file)}\0".encode())
    path = KEPT / f"watched-{name}-{digest.hexdigest()[:12]}.json"
    if not path.exists():
        found = _forked(work, 3600, 3600.0)
        KEPT.mkdir(parents=True, exist_ok=True)
        path.write_text(found)
    return path.read_text()


def _broken(seed: int) -> str:
    """Return the invariant that a history breaks; empty: none."""
    return play(Settings().plan(seed)).invariant


def _codes(code: types.CodeType, name: str) -> Iterator[types.CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            if inner.co_qualname == name:
                yield inner
            elif name.startswith(inner.co_qualname + "."):
                yield from _codes(inner, name)


def _functions(module: types.ModuleType, name: str) -> Iterator[types.FunctionType]:
    """Yield the functions that a module has under this name, without decorators around them."""
    holder: Any = module
    *outer, last = name.split(".")
    for part in outer:
        holder = getattr(holder, part)
    found = vars(holder)[last]
    parts = (found.fget, found.fset) if isinstance(found, property) else (found,)
    for function in parts:
        while function is not None and not isinstance(function, types.FunctionType):
            inner = (getattr(function, name, None) for name in ("__func__", "func", "__wrapped__"))
            function = next((each for each in inner if each is not None), None)
        while function is not None and hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        if function is not None:
            yield function


# ------------------------------------------------------------------------------------------------------------------ plumbing


def _path(file: str) -> str:
    return str(ROOT / file)


def _text(file: str) -> str:
    return (ROOT / file).read_text()


def _module(file: str) -> str:
    return PACKAGE + file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _pairs(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    yield from zip(items, [*items[1:], None], strict=False)


def _watched(files: dict[str, str], work: Callable[[], object]) -> tuple[float, set[str]]:
    """Processor time (s) of some work, and the functions of these files that it calls."""
    found: set[str] = set()
    known: dict[types.CodeType, str] = {}

    def watch(frame: types.FrameType, event: str, _: object) -> None:
        if event == "call":
            code = frame.f_code
            name = known.get(code)
            if name is None:
                file = files.get(os.path.realpath(code.co_filename), "")
                name = known[code] = f"{file}:{code.co_qualname.partition('.<locals>')[0]}" if file else ""
            if name:
                found.add(name)

    began = time.process_time()
    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    return time.process_time() - began, found


def _forked(work: Callable[[], str], cpu_s: int, wall_s: float) -> str:
    """Return the result of `work` in a forked process; "time" if it exceeds a limit, "tests" if the process dies."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        end_with_parent()
        os.close(reading)
        os.setpgid(0, 0)
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        own_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        with open("/proc/self/statm") as statm:
            own_bytes = max(own_bytes, int(statm.read().split()[0]) * resource.getpagesize())
        resource.setrlimit(resource.RLIMIT_AS, (own_bytes + MORE_BYTES, own_bytes + MORE_BYTES))
        used_s = int(time.process_time()) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (used_s + cpu_s, used_s + cpu_s))
        try:
            told = work()
        except BaseException as error:  # whatever a mutant does to pytest itself
            told = f"tests\0{type(error).__name__}"
        with open(writing, "w") as pipe:
            pipe.write(told)
        os._exit(0)
    os.close(writing)
    until, pieces, waits = time.monotonic() + wall_s, [b""], True
    while waits and (left_s := until - time.monotonic()) > 0:
        if select.select([reading], [], [], left_s)[0]:
            pieces.append(os.read(reading, 1 << 16))
            waits = bool(pieces[-1])
    os.close(reading)
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    _, status = os.waitpid(child, 0)
    answer = b"".join(pieces).decode()
    if answer and not waits:
        return answer
    if waits or (os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)):
        return "time\0"
    return "tests\0the process dies"
