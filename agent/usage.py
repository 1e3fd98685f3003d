"""Samples of what workers use: GPUs by the driver's counters, processor time, memory; and since when GPUs are idle.

Theory of operation
-------------------
A thread samples all workers every few seconds (`Sampler`). GPUs are asked through NVML; processor time and memory are read
from the worker's control group, or else summed over the processes below its shims, all of them found in one pass over
/proc. What processes share (a loader's workers their parent's data) counts once; the kernel needs some 30 ms for each GiB to
tell that, so memory of several processes is sampled less often. Each of both rests after it, for as long as MOST_SHARE says.

`Uses` turns the samples into sums and peaks for each worker, which grow as long as this agent knows the worker. So a report
that is lost costs nothing: the next one contains it.

On a server whose workers compute on CPU slots, a slot is busy as far as a core computes for it. Whatever cannot be read (a MIG
instance, an old driver, a process of another account) is unknown, which is neither busy nor idle.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from dataclasses import replace as with_values

from msgspec.structs import replace

from ..protocol.messages import WorkerUse
from ..protocol.model import NO_USE, Use, WorkerId
from . import cgroups, nvml
from .monitoring import Driver, GpuUse, Looker

MOST_SHARE = 0.01  # of one core, for the passes over /proc; and as much for memory that processes share
LONGEST_REST_S = 60.0  # after a pass
LONGEST_GAP_S = 300.0  # between two samples of a worker, beyond which the time between them is left out
IDLE_GPU = 0.005  # a GPU that computes for a smaller part of the time is idle
IDLE_CORES = 0.05  # a worker on CPU slots is idle below: a Python process that only waits takes up to half of that
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


Name = tuple[str, WorkerId]  # the uid of its job, and a worker


@dataclass(frozen=True)
class Present:
    """A worker that runs here."""

    worker: WorkerId
    uid: str  # of its job
    gpus: tuple[int, ...]
    shims: tuple[int, ...]  # its own, and those of commands beside it: all of its processes descend from them
    cgroups: tuple[str, ...] = ()

    @property
    def name(self) -> Name:
        return self.uid, self.worker


@dataclass(frozen=True)
class Reading:
    """One sample of one worker. None: unknown."""

    gpus: int
    busy_gpus: float | None = None  # GPUs that compute: the sum of the parts of the time in which each does
    cpu_s: float | None = None  # core-seconds since the worker's start
    memory_bytes: int | None = None
    gpu_memory_bytes: int = 0  # of the GPU with most
    slots: bool = False  # its GPUs are CPU slots, on which processor time counts


@dataclass
class _Known:
    """A worker that has been sampled."""

    at: float
    last: Reading
    use: Use = NO_USE
    idle_since: float | None = None
    sure: bool = False  # it is known whether its GPUs are busy


class Uses:
    """Sums and peaks of all workers. Pure: times are arguments, of any steady clock."""

    def __init__(self) -> None:
        self._known: dict[Name, _Known] = {}

    def take(self, now: float, readings: Mapping[Name, Reading]) -> tuple[WorkerUse, ...]:
        """Take one sample of all workers that run; others are forgotten. Return what each has used so far."""
        self._known = {name: known for name, known in self._known.items() if name in readings}
        found = []
        for name, reading in readings.items():
            known = self._known.get(name)
            if known is None:
                known = self._known[name] = _Known(now, reading)
            elif now > known.at:
                self._add(now, known, reading)
            known.use = _with_peaks(known.use, reading)
            idle_s = None
            if known.sure:
                idle_s = now - known.idle_since if known.idle_since is not None else 0.0
            found.append(WorkerUse(worker=name[1], uid=name[0], use=known.use, idle_s=idle_s))
        return tuple(found)

    def _add(self, now: float, known: _Known, reading: Reading) -> None:
        seconds, before, since = now - known.at, known.last, known.at
        known.at, known.last = now, reading
        if seconds > LONGEST_GAP_S:  # this process was stopped: use in that time is unknown
            known.idle_since, known.sure = None, False
            return
        use, cpu_s = known.use, None
        if reading.cpu_s is not None and before.cpu_s is not None:
            cpu_s = max(0.0, reading.cpu_s - before.cpu_s)
            use = replace(use, cpu_s=use.cpu_s + cpu_s, wall_s=use.wall_s + seconds)
        busy, idle = reading.busy_gpus, IDLE_GPU * reading.gpus
        if reading.slots:
            cores = cpu_s / seconds if cpu_s is not None else None
            busy, idle = (min(cores, float(reading.gpus)) if cores is not None else None), IDLE_CORES
        if busy is not None:
            use = replace(use, gpu_s=use.gpu_s + seconds * reading.gpus, busy_gpu_s=use.busy_gpu_s + seconds * busy)
        known.use, known.sure = use, busy is not None
        if busy is None or busy >= idle:
            known.idle_since = None
        elif known.idle_since is None:
            known.idle_since = since


def _with_peaks(use: Use, reading: Reading) -> Use:
    memory_bytes = max(use.memory_bytes, reading.memory_bytes or 0)
    gpu_memory_bytes = max(use.gpu_memory_bytes, reading.gpu_memory_bytes)
    return replace(use, memory_bytes=memory_bytes, gpu_memory_bytes=gpu_memory_bytes)


# ----------------------------------------------------------------------------------------------------------------- samples


class Sampler:
    """A thread that samples all workers regularly. `deliver` is for the loop's thread."""

    def __init__(
        self,
        present: Callable[[], Iterable[Present]],
        slots: Callable[[], bool],
        driver: Driver,
        interval_s: float,
        wake: Callable[[], None],
    ) -> None:
        """`present`: the workers that run; `slots`: they compute on CPU slots. Both are called from the thread."""
        self._present = present
        self._slots = slots
        self._driver = driver
        self._wake = wake
        self._uses = Uses()
        self._found: deque[tuple[WorkerUse, ...]] = deque(maxlen=1)
        self._gpus: dict[int, GpuUse] = {}
        self._rest_until = 0.0  # by `time.monotonic`
        self._shared_rest_until = 0.0  # likewise, for the memory of several processes
        self._looker = Looker("what workers use", self._look, interval_s)

    def start(self) -> None:
        self._looker.start()

    def close(self) -> None:
        self._looker.close()

    def deliver(self) -> tuple[WorkerUse, ...]:
        """Return the use of all workers, if there was a sample since the last call."""
        return self._found.popleft() if self._found else ()

    @property
    def gpus(self) -> Mapping[int, GpuUse]:
        """Use of the GPUs that workers have, by number, at the last sample."""
        return self._gpus

    def _look(self) -> None:
        began = time.monotonic()
        if began < self._rest_until:
            return
        begun_s = time.thread_time()
        readings, shared = self._read(tuple(self._present()))
        passed_s = time.thread_time()
        if shared and began >= self._shared_rest_until:
            for name, family in shared.items():
                readings[name] = with_values(readings[name], memory_bytes=shared_memory_of(family))
            self._shared_rest_until = began + (time.thread_time() - passed_s) / MOST_SHARE
        self._rest_until = began + min(LONGEST_REST_S, (passed_s - begun_s) / MOST_SHARE)
        uses = self._uses.take(began, readings)
        if uses:
            self._found.append(uses)
            self._wake()

    def _read(self, present: tuple[Present, ...]) -> tuple[dict[Name, Reading], dict[Name, list[Counted]]]:
        """Return the readings, and the processes of those workers whose memory is not known without asking for each."""
        slots = self._slots()
        gpus: dict[int, GpuUse] = {}
        if not slots:
            try:
                gpus = self._driver.use(gpu for each in present for gpu in each.gpus)
            except nvml.DriverFailed:
                gpus = {}  # `monitoring` reports the failure
        self._gpus = gpus
        counted = {each.name: cgroups.used(each.cgroups) for each in present}
        alone = [shim for each in present if None in counted[each.name] for shim in each.shims]
        below = descendants(alone, processes()) if alone else {}
        found: dict[Name, Reading] = {}
        shared: dict[Name, list[Counted]] = {}
        for each in present:
            cpu_s, memory_bytes = counted[each.name]
            family = [process for shim in each.shims for process in below.get(shim, ())]
            if cpu_s is None and family:
                cpu_s = sum(one.cpu_s for one in family)
            if memory_bytes is None and len(family) == 1:
                memory_bytes = family[0].resident_bytes
            elif memory_bytes is None and family:
                shared[each.name] = family
            uses = [gpus.get(gpu, GpuUse()) for gpu in each.gpus]
            parts = [use.busy for use in uses if use.busy is not None]
            found[each.name] = Reading(
                gpus=len(each.gpus),
                busy_gpus=sum(parts) if len(parts) == len(uses) else None,
                cpu_s=cpu_s,
                memory_bytes=memory_bytes,
                gpu_memory_bytes=max((use.used_bytes for use in uses), default=0),
                slots=slots,
            )
        return found, shared


@dataclass(frozen=True)
class Counted:
    """A process, as /proc shows it."""

    pid: int
    parent: int
    cpu_s: float  # of its own and of its children that have ended
    resident_bytes: int


def processes() -> list[Counted]:
    """Return all processes of the machine."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            ticks = sum(int(each) for each in fields[11:15])
            found.append(Counted(int(name), int(fields[1]), ticks / TICKS_PER_S, int(fields[21]) * PAGE_BYTES))
        except (OSError, ValueError, IndexError):
            continue  # it has ended
    return found


def descendants(roots: Iterable[int], every: Iterable[Counted]) -> dict[int, list[Counted]]:
    """Return the processes below each root, without the root itself; a root without any is left out."""
    children: dict[int, list[Counted]] = {}
    for process in every:
        children.setdefault(process.parent, []).append(process)
    found: dict[int, list[Counted]] = {}
    for root in roots:
        below = list(children.get(root, ()))
        for process in below:  # grows meanwhile
            below += children.get(process.pid, ())
        if below:
            found[root] = below
    return found


def shared_memory_of(family: list[Counted]) -> int:
    """Return the memory of these processes; what several of them share counts once, as far as the kernel tells."""
    return sum(_proportional_bytes(each.pid) or each.resident_bytes for each in family)


def _proportional_bytes(pid: int) -> int | None:
    """Return the memory of a process, of shared pages its part of them; None: this agent may not read it, or it has ended."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) << 10
    except (OSError, ValueError):
        pass
    return None
