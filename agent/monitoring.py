"""Monitoring of GPUs and disks, in threads of its own: their state becomes observations for `health`.

Theory of operation
-------------------
A broken driver may not answer, for minutes or for ever, and so may a file system on a network. So each monitored object
has a thread, a `Looker`: the driver's events (XIDs, at once), the driver's counters (each `interval_s`), and each
directory. The loop's thread only takes their results (`deliver`), and notices threads that have not come back for too
long (`overdue`): that is an observation as well. The agent never waits for a thread.

The answering GPUs may differ from those of the inventory: one was replaced or divided, or the driver was installed only
now. Then an inventory is made again, in a thread too (`inventory_refresh`); the module that applies it calls `learn`.

A GPU is looked up by its UUID each time, since the driver renumbers the GPUs when one is gone. The instances of a
divided GPU (MIG) share its observations.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pynvml

from ..protocol.model import Gpu, Wiring
from . import nvml, shim
from .health import (
    CheckFailed,
    DiskReading,
    DisksRead,
    DriverLooked,
    Foreign,
    GpuReading,
    GpusRead,
    Kept,
    Observation,
    XidSeen,
    foreign_sentence,
    memory_sentence,
)

log = logging.getLogger(__name__)

FILE = "health.json"
EVENT_WAIT_MS = 1000
HANGS_S = 10.0  # a call of the driver, or of a file system, that takes longer hangs
RETRY_S = 1.0  # where the driver does not report events
CHECK_S = 5.0  # for all checks just before a worker starts
CHECK_AGAIN_S = 0.25  # while the memory of the last worker there is being given back
NOT_FOREIGN = frozenset({"nvidia-cuda-mps-server", "nvidia-persistenced"})
GONE = (
    pynvml.NVMLError_Uninitialized,
    pynvml.NVMLError_DriverNotLoaded,
    pynvml.NVMLError_LibraryNotFound,
    pynvml.NVMLError_LibRmVersionMismatch,
)


@dataclass(frozen=True)
class Owned:
    """The processes of this agent, and the GPUs that its workers use. Called from other threads."""

    processes: Callable[[], Iterable[int]]  # shims, or other common ancestors
    gpus: Callable[[], Iterable[int]]


class Looker:
    """A thread that checks one object regularly."""

    def __init__(self, name: str, look: Callable[[], None], interval_s: float, patience_s: float = HANGS_S) -> None:
        """`look` itself reports its results. One that takes longer than `patience_s` hangs."""
        self.name = name
        self._look = look
        self._interval_s = interval_s
        self._patience_s = patience_s
        self._began: float | None = None
        self._closed = threading.Event()
        self._again = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._again.set()

    def look_now(self) -> None:
        self._again.set()

    def hangs_s(self, now: float) -> float:
        """Return for how long the present look has hung (`time.monotonic`); 0: it does not hang."""
        began = self._began
        return now - began if began is not None and now - began > self._patience_s else 0.0

    def _serve(self) -> None:
        failing = False
        while not self._closed.is_set():
            self._began = time.monotonic()
            try:
                self._look()
                failing = False
            except Exception:  # the edge of the thread: a look turns expected failures into observations
                if not failing:
                    log.exception("looking at %s failed", self.name)
                failing = True
            self._began = None
            self._again.wait(RETRY_S if failing else self._interval_s)
            self._again.clear()


class Watch:
    """All lookers of an agent. The methods are for the loop's thread."""

    def __init__(
        self,
        gpus: Sequence[Gpu],
        wiring: Wiring,
        library: str | None,
        disks: Mapping[str, Path],
        least_bytes: int,
        interval_s: float,
        owned: Owned,
        wake: Callable[[], None],
    ) -> None:
        """`disks`: the directories in which the agent needs space, the first one before the others."""
        self._seen: deque[Observation] = deque()
        self._wake = wake
        self._driver = Driver(gpus, wiring, library, owned)
        self._least_bytes = least_bytes
        self._disks = dict(disks)
        self._gone = ""
        self._told = DriverLooked()
        self._asking: list[Looker] = []
        self._hung: set[str] = set()
        self._files = [
            Looker(name, lambda name=name, path=path: self._look_at_disk(name, path), interval_s)  # type: ignore[misc]
            for name, path in disks.items()
        ]
        self._interval_s = interval_s
        if self._driver.numbers:
            self._asking = self._ask_driver()

    @property
    def driver(self) -> Driver:
        return self._driver

    def start(self) -> None:
        for looker in (*self._asking, *self._files):
            looker.start()

    def learn(self, gpus: Sequence[Gpu], wiring: Wiring) -> None:
        """Take the server's GPUs, which have changed."""
        self._driver.learn(gpus, wiring)
        if self._driver.numbers and not self._asking:
            self._asking = self._ask_driver()
            for looker in self._asking:
                looker.start()
        elif self._asking:
            self._asking[-1].look_now()

    def _ask_driver(self) -> list[Looker]:
        patience_s = EVENT_WAIT_MS / 1000 + HANGS_S
        return [
            Looker("the driver's events", self._wait_for_event, 0.0, patience_s),
            Looker("the driver", self._look_at_gpus, self._interval_s),
        ]

    def close(self) -> None:
        for looker in (*self._asking, *self._files):
            looker.close()

    def deliver(self) -> list[Observation]:
        """Return the observations since the last call."""
        found: list[Observation] = []
        while self._seen:
            seen = self._seen.popleft()
            if isinstance(seen, DriverLooked):
                self._gone = seen.gone
            else:
                found.append(seen)
        return [*found, *self._overdue(time.monotonic())]

    def _overdue(self, now: float) -> list[Observation]:
        """Return observations of lookers that hang, or hang no more."""
        found: list[Observation] = []
        hangs_s = max((looker.hangs_s(now) for looker in self._asking), default=0.0)
        hangs = "the driver's library does not answer: see `dmesg`, and restart the server" if hangs_s else ""
        told = DriverLooked(gone=self._gone, hangs=hangs)
        if told != self._told:
            self._told = told
            found.append(told)
        for looker in self._files:
            hung = looker.hangs_s(now)
            if hung and looker.name not in self._hung:
                self._hung.add(looker.name)
                found.append(DisksRead((DiskReading(looker.name, str(self._disks[looker.name]), hangs_s=hung),)))
            elif not hung:
                self._hung.discard(looker.name)
        return found

    # -- in their threads

    def _see(self, seen: Observation) -> None:
        self._seen.append(seen)
        self._wake()

    def _wait_for_event(self) -> None:
        happened = self._driver.wait_for_event()
        for seen in happened or ():
            self._see(seen)
        if happened is None or happened:  # other changes must be noticed at once
            self._asking[-1].look_now()
        if happened is None:
            time.sleep(RETRY_S)

    def _look_at_gpus(self) -> None:
        try:
            readings = self._driver.look()
        except nvml.DriverFailed as error:
            self._see(DriverLooked(gone=f"the NVIDIA driver is gone ({error}): see nvidia-smi"))
            return
        self._see(DriverLooked())
        self._see(GpusRead(readings))

    def _look_at_disk(self, name: str, path: Path) -> None:
        try:
            self._see(DisksRead((self._disk(name, path),)))
        except PermissionError:
            raise  # a file server may admit users, and not the agent
        except OSError as error:  # the disk is broken, or the server of a file system no longer knows it
            self._see(DisksRead((DiskReading(name, str(path), fails=error.strerror or str(error)),)))

    def _disk(self, name: str, path: Path) -> DiskReading:
        """Return the state of the file system at `path`. Raises OSError."""
        there = path
        while not there.exists() and there != there.parent:
            there = there.parent
        first = next(iter(self._disks.values()))
        if path != first and _same_device(there, first):
            return DiskReading(name, str(path))  # the first one's reading covers this one
        room = os.statvfs(there)
        free_bytes = 0 if room.f_files and not room.f_favail else room.f_bavail * room.f_frsize
        return DiskReading(name, str(path), free_bytes, self._least_bytes)


def _same_device(a: Path, b: Path) -> bool:
    return b.exists() and a.stat().st_dev == b.stat().st_dev


# -------------------------------------------------------------------------------------------------------------- the driver


@dataclass(frozen=True)
class GpuUse:
    """Use of a GPU. `busy`: part of the time since the last sample in which it computed; None: unknown."""

    busy: float | None = None
    used_bytes: int = 0  # of its memory; 0: unknown


class Driver:
    """The driver's library, used by several threads. NVML itself is thread-safe."""

    def __init__(self, gpus: Sequence[Gpu], wiring: Wiring, library: str | None, owned: Owned) -> None:
        self.numbers: dict[str, tuple[int, ...]] = {}  # of the GPU with this UUID, or of its instances
        self.learn(gpus, wiring)
        self._library = library
        self._owned = owned
        self._lock = threading.Lock()  # protects the attributes below; held only for a moment
        self._initialised = False
        self._answering: frozenset[str] = frozenset()  # at the last look
        self._asked_for: frozenset[str] = frozenset()  # GPUs with registered events, or without events
        self._events: Any = None
        self._registered: dict[int, str] = {}  # UUIDs by the addresses of handles
        self._sampled_us: dict[str, int] = {}  # by UUID: time of the newest sample of its use; of one thread alone

    def learn(self, gpus: Sequence[Gpu], wiring: Wiring) -> None:
        """Set the server's GPUs."""
        parents = {each.index: each.parent for each in wiring.gpus if each.parent}
        self._instances = frozenset(parents)
        numbers: dict[str, tuple[int, ...]] = {}
        for gpu in gpus:
            if uuid := parents.get(gpu.index) or gpu.uuid:
                numbers[uuid] = (*numbers.get(uuid, ()), gpu.index)
        self.numbers = numbers

    def look(self) -> dict[int, GpuReading]:
        """Return the readings of all GPUs, by number. Raises DriverFailed."""
        handles, failed = self._handles()
        self._answering = frozenset(handles)
        own, used = frozenset(self._owned.processes()), frozenset(self._owned.gpus())
        found: dict[int, GpuReading] = {}
        for uuid, numbers in self.numbers.items():
            reading = GpuReading(lost=failed or "the driver does not count it any more")
            if uuid in handles:
                reading = _reading(handles[uuid], own, bool(used.intersection(numbers)))
            for number in numbers:
                found[number] = reading
        return found

    def use(self, wanted: Iterable[int]) -> dict[int, GpuUse]:
        """Return the use of these GPUs, by number, as far as it is known: of no MIG instance. Raises DriverFailed."""
        asked = frozenset(wanted) - self._instances
        if not asked:
            return {}
        handles, _ = self._handles()
        return {
            number: GpuUse(self._busy(uuid, handles[uuid]), _used_bytes(handles[uuid]))
            for uuid, numbers in self.numbers.items()
            for number in asked.intersection(numbers)
            if uuid in handles
        }

    def _busy(self, uuid: str, handle: Any) -> float | None:
        """Return the mean of the driver's own samples, of which it keeps those of some ten seconds, or its last value."""
        since_us = self._sampled_us.get(uuid, 0)
        told = _quiet(pynvml.nvmlDeviceGetSamples, handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, since_us)
        fresh = [sample for sample in (told[1] if told is not None else ()) if sample.timeStamp > since_us]
        if fresh:
            self._sampled_us[uuid] = max(int(sample.timeStamp) for sample in fresh)
            return _share(sum(int(sample.sampleValue.uiVal) for sample in fresh) / len(fresh))
        rates = _quiet(pynvml.nvmlDeviceGetUtilizationRates, handle)
        return None if rates is None else _share(float(rates.gpu))

    def wait_for_event(self) -> list[XidSeen] | None:
        """Wait for events, for a second at most, and return them. None: the driver does not report events, perhaps
        because a GPU has been lost.
        """
        try:
            self._register()
            happened = pynvml.nvmlEventSetWait_v2(self._events, EVENT_WAIT_MS)
        except pynvml.NVMLError_Timeout:
            return []
        except (nvml.DriverFailed, pynvml.NVMLError):
            self._forget_events()
            return None
        if happened.eventType != pynvml.nvmlEventTypeXidCriticalError:
            return []
        uuid = self._registered.get(_address_of(happened.device))
        return [XidSeen(number, int(happened.eventData)) for number in self.numbers.get(uuid or "", ())]

    def check(self, numbers: Sequence[int], trusted: Iterable[str], least_free_share: float) -> CheckFailed | None:
        """Return why these GPUs are unfit for a worker that is about to start; None: they are fit.

        A worker that has just ended may not have given its memory back: the check waits for that. It takes CHECK_S at
        most, if the driver answers.
        """
        until, over = time.monotonic() + CHECK_S - 1.0, set(trusted)
        while True:
            faults = ((number, self._fault(number, over, least_free_share)) for number in numbers)
            found = next((CheckFailed(number, *fault) for number, fault in faults if fault is not None), None)
            waits = found is not None and found.code in ("memory-held", "foreign-process")
            if not waits or time.monotonic() >= until:
                return found
            time.sleep(CHECK_AGAIN_S)

    def _fault(self, number: int, trusted: set[str], least_free_share: float) -> tuple[str, str] | None:
        uuid = next((uuid for uuid, numbers in self.numbers.items() if number in numbers), None)
        if uuid is None:
            return None
        try:
            handles, failed = self._handles()
        except nvml.DriverFailed as error:
            return "driver-gone", f"the NVIDIA driver does not work: {error}"
        if uuid not in handles:
            return "gpu-lost", f"it does not answer the driver: {failed or 'it is not counted any more'}"
        divided = len(self.numbers[uuid]) > 1
        reading = _reading(handles[uuid], frozenset(self._owned.processes()), divided)
        faults = {
            "gpu-lost": reading.lost,
            "foreign-process": foreign_sentence(reading.foreign),
            "memory-held": "" if divided else memory_sentence(reading, least_free_share),
        }
        return next(((code, text) for code, text in faults.items() if text and code not in trusted), None)

    def _handles(self) -> tuple[dict[str, Any], str]:
        """Return the GPUs that answer, by UUID; and the error of those that do not. Raises DriverFailed."""
        self._begin()
        found: dict[str, Any] = {}
        failed = ""
        try:
            for index in range(int(pynvml.nvmlDeviceGetCount())):
                try:
                    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                    found[nvml.text(pynvml.nvmlDeviceGetUUID(handle))] = handle
                except GONE:
                    raise
                except pynvml.NVMLError as error:
                    failed = str(error)
        except pynvml.NVMLError as error:
            if isinstance(error, GONE):
                self._end()
            raise nvml.DriverFailed(str(error), absent=False) from None
        return found, failed

    def _begin(self) -> None:
        """Initialise NVML, unless it is. Raises DriverFailed."""
        if self._initialised:
            return
        nvml.begin(self._library)
        with self._lock:
            twice, self._initialised = self._initialised, True
        if twice:
            pynvml.nvmlShutdown()

    def _end(self) -> None:
        """Shut NVML down; it is initialised again at the next use."""
        with self._lock:
            was, self._initialised = self._initialised, False
        if was:
            self._end_session()

    def _end_session(self) -> None:
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError as error:
            log.info("NVML does not end: %s", error)

    def _register(self) -> None:
        """Register for the events of all GPUs that answer, unless that is done. Earlier registrations stay."""
        if self._events is not None and not self._answering & self.numbers.keys() - self._asked_for:
            return
        handles, _ = self._handles()
        if self._events is None:
            nvml.begin(self._library)  # a session of its own: others may end theirs while this one waits
            try:
                self._events = pynvml.nvmlEventSetCreate()
            except pynvml.NVMLError:
                self._end_session()
                raise
        known = handles.keys() & self.numbers.keys()
        for uuid in known - self._asked_for:
            try:
                pynvml.nvmlDeviceRegisterEvents(handles[uuid], pynvml.nvmlEventTypeXidCriticalError, self._events)
                self._registered[_address_of(handles[uuid])] = uuid
            except pynvml.NVMLError as error:
                log.info("GPU %s does not tell of XIDs: %s", uuid, error)
        self._asked_for = frozenset(known)

    def _forget_events(self) -> None:
        events, self._events, self._registered = self._events, None, {}
        self._asked_for = frozenset()
        if events is not None:
            try:
                pynvml.nvmlEventSetFree(events)
            except pynvml.NVMLError as error:
                log.info("the driver's events are not freed: %s", error)
            self._end_session()


def _address_of(handle: Any) -> int:
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)


def _reading(handle: Any, own: frozenset[int], occupied: bool) -> GpuReading:
    try:
        memory_bytes, used_bytes = nvml.memory(handle)
    except pynvml.NVMLError as error:
        return GpuReading(lost=str(error))
    uncorrected = _quiet(
        pynvml.nvmlDeviceGetTotalEccErrors,
        handle,
        pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        pynvml.NVML_VOLATILE_ECC,
    )
    retired = _quiet(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)
    rows = _quiet(pynvml.nvmlDeviceGetRemappedRows, handle)
    processes = _quiet(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
    throttle = _quiet(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    return GpuReading(
        uncorrected=None if uncorrected is None else int(uncorrected),
        pending=None if retired is None and rows is None else bool(retired) or bool(rows and rows[2]),
        remap_failed=None if rows is None else bool(rows[3]),
        throttle=None if throttle is None else int(throttle),
        temperature_c=_quiet(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        recovery=_recovery(handle),
        foreign=tuple(_foreign(processes, own)),
        occupied=occupied,
        memory_bytes=memory_bytes,
        used_bytes=used_bytes,
    )


def _share(percent: float) -> float | None:
    return percent / 100 if 0 <= percent <= 100 else None  # others: the driver has no value


def _used_bytes(handle: Any) -> int:
    try:
        return nvml.memory(handle)[1]
    except pynvml.NVMLError:
        return 0


def _recovery(handle: Any) -> int | None:
    values = _quiet(pynvml.nvmlDeviceGetFieldValues, handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if not values or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return int(values[0].value.uiVal)


def _quiet(question: Callable[..., Any], *arguments: Any) -> Any:
    """Return NVML's answer; None if it has none. Without a log line, since it is asked every few seconds."""
    try:
        return question(*arguments)
    except pynvml.NVMLError:
        return None


def _foreign(processes: Iterable[Any], own: frozenset[int]) -> Iterable[Foreign]:
    """Yield the processes that do not descend from this agent's. An invisible one belongs to another container, or has
    ended.
    """
    for each in processes:
        try:
            process = psutil.Process(each.pid)
            family = {process.pid, *(parent.pid for parent in process.parents())}
            name = process.name()
        except psutil.Error:
            continue
        if not family & own and name not in NOT_FOREIGN:
            yield Foreign(each.pid, name, int(each.usedGpuMemory or 0))


# -------------------------------------------------------------------------------------------------------------- on the disk


def load(state: Path) -> Kept:
    """Return the cases of the last agent; empty if there is no such file, or it cannot be read."""
    path = state / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Kept)
    except FileNotFoundError:
        pass
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("%s is not read: %s", path, error)
    return Kept(boot=shim.boot_id())


def save(state: Path, kept: Kept) -> str:
    """Write the cases atomically. Returns why that failed, or ""."""
    path, temporary = state / FILE, state / f"{FILE}.new"
    try:
        temporary.write_bytes(msgspec.json.encode(kept))
        temporary.replace(path)
    except OSError as error:
        return f"{path} cannot be written: {error.strerror}"
    return ""
