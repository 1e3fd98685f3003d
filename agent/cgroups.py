"""A control group (cgroup) for each worker: its limits, its remaining processes, and an end that no process survives.

Theory of operation
-------------------
A process cannot leave its cgroup without root's rights, however it forks and opens sessions. So the cgroup is the only
certain list of a worker's processes. Two kinds of kernels are served:

* version 2 with its controllers (all present distributions): one directory for each worker;
* version 1, or a hybrid: a directory in the hierarchy of each controller (memory, pids, cpu), and one in the unified
  hierarchy, if that is mounted, since only there all processes are killed at once.

The tree is ``elasticctl-TAG``, where TAG distinguishes agents of one machine. It stands

* in the delegated part of each hierarchy, where the agent is a service of systemd: the group of ``elasticctl-workers.service``,
  beside the agent's own (``Delegate=``, systemd.resource-control(5)). Root without CAP_DAC_OVERRIDE, as that service is,
  may make groups there, since it owns the directory, and nowhere above. The tree is not below the agent's service, since
  version 2 allows no process in a group that has controllers enabled for groups below: systemd could not start the agent
  again while workers run;
* else at the top of each hierarchy, as those of container engines do.

All workers together get the machine's memory less a reserve, so memory runs out among them and not for the agent.

`Cgroups.unheld` reports a limit that was requested and cannot be enforced, and no worker is started without it. An
agent that runs jobs of other accounts needs the groups themselves as well: without one a daemon outlives its job. Any
other agent runs workers without groups where none are available (no root, no such file system); the log reports this
once.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

MOUNTS = Path("/proc/self/mounts")
OWN = Path("/proc/self/cgroup")
DELEGATED = "elasticctl-workers.service"
KEEPER = "keeper"  # the group of the process that systemd has put into the delegated one
CONTROLLERS = ("memory", "pids", "cpu")
PERIOD_US = 100_000
EMPTY_WITHIN_S = 2.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.0005, 0.02
WARM = "warm-"
READABLE = 0o755  # as all cgroups of a machine, whatever the agent's umask: podman reads those in which it runs
OWN_SERVICE = re.compile(r"/elasticctl-agent\.service$", re.MULTILINE)
NO_CONTROLLER = "this kernel, or systemd, has no control groups of that kind for elasticctl"


@dataclass(frozen=True)
class Limits:
    """Limits of one worker; None: no limit."""

    memory_bytes: int | None = None
    tasks: int | None = None
    cpus: float | None = None

    @property
    def names(self) -> frozenset[str]:
        """The limits that are set, as `WorkerLimits.asked` names them."""
        given = {"memory": self.memory_bytes, "tasks": self.tasks, "CPUs": self.cpus}
        return frozenset(name for name, value in given.items() if value is not None)

    def and_(self, other: Limits) -> Limits:
        """Return limits that bind as both do."""

        def least(a: float | None, b: float | None) -> float | None:
            return min((each for each in (a, b) if each is not None), default=None)

        memory, tasks = least(self.memory_bytes, other.memory_bytes), least(self.tasks, other.tasks)
        return Limits(
            None if memory is None else int(memory), None if tasks is None else int(tasks), least(self.cpus, other.cpus)
        )


NO_LIMITS = Limits()


@dataclass(frozen=True)
class Mounted:
    """Hierarchies in which cgroups can be made."""

    unified: Path | None = None  # version 2
    unified_controllers: bool = False  # whether the unified hierarchy has the available ones of CONTROLLERS
    old: tuple[tuple[str, Path], ...] = ()  # version 1: a hierarchy for each controller
    below: str = ""  # the delegated part of each of them, from its top; "": the top itself


def mounted(mounts: Path = MOUNTS, own: Path = OWN) -> Mounted:
    """Return this machine's hierarchies, and the part of them in which the process whose groups `own` lists may make
    groups.
    """
    unified: Path | None = None
    old: dict[str, Path] = {}
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return Mounted()
    for line in lines:
        _, where, kind, options, *_ = line.split(" ")
        if kind == "cgroup2" and unified is None:
            unified = Path(where)
        elif kind == "cgroup":
            for controller in CONTROLLERS:
                if controller in options.split(","):
                    old.setdefault(controller, Path(where))
    has = bool(unified) and "memory" in _read(unified / "cgroup.controllers").split() if unified else False
    tops = [*([unified] if unified is not None else []), *old.values()]
    return Mounted(unified, has, tuple(sorted(old.items())), _delegated(tops, own))


def _delegated(tops: list[Path], own: Path) -> str:
    """Return the part of the tree that systemd has delegated to the agent; "": none."""
    for line in _read(own).splitlines():
        _, named, path = line.split(":", 2)
        if named not in ("", "name=systemd") or not path.endswith(".service"):
            continue
        beside = f"{path.rpartition('/')[0]}/{DELEGATED}".lstrip("/")
        if any((top / beside).is_dir() for top in tops):
            return beside
    return ""


class Cgroups:
    """The cgroups of one agent's workers. Except for `make`, no method fails: unavailable features are left out."""

    def __init__(
        self,
        tag: str,
        limits: Limits,
        all_memory_bytes: int | None,
        found: Mounted,
        own_too: bool = False,
        needed: bool = False,
        asked: frozenset[str] = frozenset(),
        strict: bool = True,
    ) -> None:
        """`all_memory_bytes`: limit of all workers together. `own_too`: workers of the agent's own account have
        cgroups, too. `needed`: no worker is started without a cgroup. `asked`: nor without these limits (names as in
        `Limits`). `strict`: nor without those that its job asks for.
        """
        self.strict = strict
        self.own_too = own_too
        self._limits = limits
        self._all_memory_bytes = all_memory_bytes
        self._needed = needed or bool(asked)
        self._asked = asked
        hierarchies = [found.unified] if found.unified is not None else []
        if not found.unified_controllers:
            hierarchies += [hierarchy for _, hierarchy in found.old]
        bases = [hierarchy / found.below for hierarchy in hierarchies]
        # systemd has no group in a hierarchy of version 1 whose controller it does not use: a limit of that one is not
        # held.
        bases = [base for base in bases if not found.below or base.is_dir()]
        self._unified = bases[0] if bases and found.unified is not None else None
        self._enabled = bases[0] if bases and found.unified_controllers else None
        self._below = found.below
        self._tops = tuple(base / f"elasticctl-{tag}" for base in bases)
        self._ready = False
        self._told: set[str] = set()

    @property
    def notes(self) -> tuple[str, ...]:
        """Limits that are not enforced here and were not requested, a sentence each."""
        return tuple(sorted(self._told))

    @property
    def unified(self) -> bool:
        """Whether the first directory of each cgroup is one of version 2."""
        return self._unified is not None

    def make(self, name: str, wanted: Limits = NO_LIMITS) -> tuple[str, ...]:
        """Make a cgroup and return its directories, none where cgroups are unavailable. An earlier one of this name is
        emptied. `wanted`: limits that a job asks for, which bind beside the operator's.

        Raises OSError where a cgroup is needed and unavailable, or lacks a limit that was requested.
        """
        needed = self._needed or (bool(wanted.names) and self.strict)
        asked = self._asked | (wanted.names if self.strict else frozenset())
        made = tuple(str(top / name) for top in self._tops)
        try:
            self._make(made)
        except OSError as error:
            remove(made)
            text = f"{error.filename}: {error.strerror}"
            if needed:
                raise OSError(error.errno, f"it has no control group: {text}{self._mend()}") from None
            self._tell(f"workers run without cgroups, so without limits: {text}")
            return ()
        if not made:
            if needed:
                raise OSError(errno.ENOENT, f"it has no control group: none are mounted{self._mend()}")
            self._tell("workers run without cgroups, so without limits: none are mounted")
        missing = _limit(made, self._limits.and_(wanted)) if made else []
        if unheld := [each for each in missing if each in asked]:
            remove(made)
            raise OSError(errno.ENODEV, f"its limit of {' and '.join(unheld)} cannot hold: {NO_CONTROLLER}")
        if missing:
            self._tell(f"this kernel has no cgroups for {', '.join(missing)}: these limits do not hold")
        return made

    def _make(self, paths: tuple[str, ...]) -> None:
        """Make the directories of a cgroup. Raises OSError."""
        for again in (True, False):
            try:
                if not self._ready:
                    self._set_up()
                for path in paths:
                    try:
                        os.mkdir(path)
                        os.chmod(path, READABLE)
                    except FileExistsError:
                        clear((path,))
                return
            except FileNotFoundError:  # another process has removed the tree above
                if not (self._ready and again):
                    raise
                self._ready = False

    def unheld(self, kill: bool = True) -> str:
        """Return why workers cannot have the cgroups and limits that they need, found by a trial; "": they can. Blocks
        for the kernel.

        `kill`: also try whether a process can be put into a group and killed there.
        """
        if not self._needed:
            return ""
        name = f"probe-{os.getpid()}"
        try:
            paths = self.make(name)
        except OSError as error:
            return error.strerror or str(error)
        try:
            if not kill:
                return ""
            with subprocess.Popen(["/bin/sleep", "60"], cwd="/", env={}, stdin=subprocess.DEVNULL) as child:
                try:
                    enter(paths, child.pid)
                    return "" if clear(paths) else f"processes in {paths[0]} cannot be killed"
                finally:
                    child.kill()
        except OSError as error:
            return f"no process can be put into a control group: {error.filename}: {error.strerror}"
        finally:
            remove(paths)

    def unheld_of_jobs(self) -> str:
        """Return why a job's own limits of cores and memory cannot be held, found by a trial; "": they can, or need not."""
        if not self.strict:
            return ""
        name = f"probe-jobs-{os.getpid()}"
        try:
            paths = self.make(name, Limits(memory_bytes=1 << 30, cpus=1.0))
        except OSError as error:
            return error.strerror or str(error)
        remove(paths)
        return ""

    def _mend(self) -> str:
        if self._below or not OWN_SERVICE.search(_read(OWN)):
            return ""
        return f"; {DELEGATED} does not run beside the agent's service: `systemctl start {DELEGATED}`, then restart the agent"

    def _set_up(self) -> None:
        if self._below and self._unified is not None:
            self._settle_keeper(self._unified)
        for top in self._tops:
            top.mkdir(exist_ok=True)
            top.chmod(READABLE)
        if self._enabled is not None:
            for directory in (self._enabled, self._tops[0]):
                _enable(directory)
        _limit(tuple(map(str, self._tops)), Limits(memory_bytes=self._all_memory_bytes))
        self._ready = True

    @staticmethod
    def _settle_keeper(base: Path) -> None:
        """Move the processes in the delegated group itself into a group below, so that controllers can be enabled.
        Raises OSError.
        """
        if pids := sorted(_in_itself(base)):  # not the workers' below
            (base / KEEPER).mkdir(mode=0o755, exist_ok=True)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    enter((str(base / KEEPER),), pid)

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            log.warning("%s", text)

    def close(self) -> None:
        """Remove the empty directories."""
        for top in self._tops:
            with contextlib.suppress(OSError):
                top.rmdir()

    def others(self, known: frozenset[str]) -> list[str]:
        """Return the existing cgroups, without those that are `known`."""
        found = []
        for top in self._tops:
            with contextlib.suppress(OSError), os.scandir(top) as entries:
                found += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        return sorted(path for path in found if path not in known)

    @property
    def memory_text(self) -> str:
        """Return the limit of the memory of a worker whose job has asked for none, for people."""
        if self._limits.memory_bytes is not None:
            return f"a worker here may use {_gib(self._limits.memory_bytes)}"
        if self._all_memory_bytes is not None:
            return f"all workers of this server may use {_gib(self._all_memory_bytes)}"
        return "the server's memory is full"


def enter(paths: tuple[str, ...], pid: int) -> None:
    """Move a process, which has no children yet, into a cgroup. Raises OSError."""
    for path in paths:
        with open(f"{path}/cgroup.procs", "w", encoding="ascii") as file:
            file.write(str(pid))


def let_out(paths: tuple[str, ...], pid: int) -> None:
    """Move a new process that was put into a cgroup by mistake back to its parent's cgroup, in which it was born."""
    try:
        parent = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
        lines = Path(f"/proc/{parent}/cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except (OSError, IndexError):
        lines = []
    found = dict(
        line.split(":", 2)[1:] for line in lines
    )  # paths by controllers; those of version 2 have no name there
    for path in paths:
        hierarchy = next(above for above in Path(path).parents if os.path.ismount(above) or above == above.parent)
        named = [where for names, where in found.items() if set(names.split(",")) & set(hierarchy.name.split(","))]
        origin = (*named, found.get("", "/"))[0].lstrip("/")
        if not _write(f"{hierarchy / origin}/cgroup.procs", str(pid)):
            _write(f"{hierarchy}/cgroup.procs", str(pid))


def processes(paths: tuple[str, ...]) -> frozenset[int]:
    """Return the processes in a cgroup, and in those below it, which a container may have."""
    found = list(paths[:1])
    found += [each for path in paths[:1] for each in _below(path)]
    return frozenset(pid for path in found for pid in _in_itself(Path(path)))


def _in_itself(path: Path) -> list[int]:
    return [int(word) for word in _read(path / "cgroup.procs").split()]


def _below(path: str) -> list[str]:
    """Return the cgroups below one, the deepest first."""
    found = []
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                found += [*_below(entry.path), entry.path]
    return found


def out_of_memory(paths: tuple[str, ...]) -> bool:
    """Return whether the kernel has killed a process of this cgroup for lack of memory."""
    for path in paths:
        for name in ("memory.events", "memory.oom_control"):
            for line in _read(Path(path) / name).splitlines():
                word, _, count = line.partition(" ")
                if word == "oom_kill" and count != "0":
                    return True
    return False


def used(paths: tuple[str, ...]) -> tuple[float | None, int | None]:
    """Return the processor time (core-seconds) that a cgroup has used so far, and the memory (bytes) that it has now, without
    the cache of files, which the kernel takes back when it is short of memory; None: this kernel does not count it.
    """
    cpu_s: float | None = None
    memory_bytes: int | None = None
    for path in paths:
        counts = {
            name: value for name in ("cpu.stat", "cpuacct.usage", "memory.stat") for name, value in _counts(path, name)
        }
        if "usage_usec" in counts:
            cpu_s = counts["usage_usec"] / 1e6
        elif "cpuacct.usage" in counts:
            cpu_s = counts["cpuacct.usage"] / 1e9
        anonymous = counts.get("anon", counts.get("total_rss"))
        if anonymous is not None:
            memory_bytes = anonymous + counts.get("shmem", 0) + counts.get("total_swap", 0)
    return cpu_s, memory_bytes


def _counts(path: str, name: str) -> list[tuple[str, int]]:
    """Return the counts in a file: one a line with its name, or a single one, which gets the name of the file."""
    words = [line.split() for line in _read(Path(path) / name).splitlines()]
    return [(each[0] if len(each) > 1 else name, int(each[-1])) for each in words if each and each[-1].isdecimal()]


def clear(paths: tuple[str, ...], spare: int | None = None) -> bool:
    """Kill all processes in a cgroup, and wait a little for their end. Return whether none is left, except process
    `spare`.
    """
    give_up_at, pause_s = time.monotonic() + EMPTY_WITHIN_S, FIRST_PAUSE_S
    while (left := processes(paths)) and left != {spare}:
        if time.monotonic() >= give_up_at:
            return False
        if spare not in left and _write(f"{paths[0]}/cgroup.kill", "1"):
            pass  # all at once; without this file one after the other, as often as some are left
        else:
            _kill(paths, left - {spare})
        time.sleep(pause_s)
        pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
    return True


def remove(paths: tuple[str, ...]) -> None:
    """Remove a cgroup, after killing all its processes, with those below it."""
    clear(paths)
    beside = [each for each in _beside(paths) if each not in paths]
    tops = [os.path.dirname(each) for each in beside]
    for path in [each for group in (*paths, *beside) for each in (*_below(group), group)]:
        for attempt in range(20):
            try:
                os.rmdir(path)
            except FileNotFoundError:
                break
            except OSError as error:
                if error.errno != errno.EBUSY or attempt == 19:
                    log.warning("%s cannot be removed: %s", path, error.strerror)
                    break
                time.sleep(0.005)
            else:
                break
    for top in tops:
        with contextlib.suppress(OSError):  # other workers have groups there
            os.rmdir(top)


def _beside(paths: tuple[str, ...]) -> list[str]:
    """Return the groups of this name in other hierarchies of version 1: a container's runtime makes them in all of them."""
    for path in paths[:1]:
        top = next(above for above in Path(path).parents if os.path.ismount(above) or above == above.parent)
        if top.name != "cgroup" and top.parent.name == "cgroup":
            return [
                str(each)
                for name in sorted(os.listdir(top.parent))
                if (each := top.parent / name / Path(path).relative_to(top)).is_dir()
            ]
    return []


def _kill(paths: tuple[str, ...], pids: frozenset[int] | set[int]) -> None:
    for path in paths:
        _write(f"{path}/pids.max", "0")  # no new processes meanwhile
    for pid in sorted(pids):
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(pid)
            try:
                if pid in processes(paths):  # its number has not been reused by another process
                    import signal

                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            finally:
                os.close(descriptor)


def _limit(paths: tuple[str, ...], limits: Limits) -> list[str]:
    """Set the limits of a cgroup. Returns the controllers that it lacks."""
    missing = []
    for controller, wanted, files in (
        ("memory", limits.memory_bytes, (("memory.max", "{0}"), ("memory.limit_in_bytes", "{0}"))),
        ("tasks", limits.tasks, (("pids.max", "{0}"),)),
        ("CPUs", _quota_us(limits.cpus), (("cpu.max", f"{{0}} {PERIOD_US}"), ("cpu.cfs_quota_us", "{0}"))),
    ):
        if wanted is not None:
            taken = [_write(f"{path}/{name}", text.format(wanted)) for path in paths for name, text in files]
            if not any(taken):
                missing.append(controller)
    return missing


def _quota_us(cpus: float | None) -> int | None:
    return None if cpus is None else max(1000, int(cpus * PERIOD_US))


def _enable(directory: Path) -> None:
    there = _read(directory / "cgroup.controllers").split()
    for controller in CONTROLLERS:
        if controller in there:
            _write(f"{directory}/cgroup.subtree_control", f"+{controller}")


def _write(path: str, text: str) -> bool:
    """Write to a control file and return whether the kernel accepted it. The file is never created: a missing one is
    unsupported.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(descriptor, text.encode())
    except OSError as error:
        log.debug("%s: %s", path, error.strerror)
        return False
    finally:
        os.close(descriptor)
    return True


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"
