"""Troubles of a server and its GPUs, pure: observations in, troubles out (`model.Trouble`).

Theory of operation
-------------------
Three kinds of things are observed:

* *Conditions* hold or not, and each look decides which: a GPU does not answer, memory errors have been counted, a foreign
  process uses a GPU, a disk is full, the driver does not answer. Some count only when they have lasted for a while.
* *XIDs* are single events. One that calls for a reset stays until the server has booted again, or until the GPU was lost and
  is back: only that shows that an operator has acted. An operator who has reset a GPU says so (`elasticctl uncordon --trust`).
* A mere note (an XID of an application) is shown for a while, and keeps no work away.

After the end of a trouble that kept new work away, the GPU is on *probation*: it gets no new work for a while, twice as
long with each return of the same trouble, so that a GPU with a loose plug does not fail one job after the other. A case
that has not come back for a day is forgotten.

All cases that keep work away outlast a restart of the agent (`kept`, `restore`): an agent that has just started must
not offer a GPU that the last one has found broken.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from ..protocol.model import Severity, Trouble, Value
from . import xids

MOST_CASES = 512
RELAPSES_KEPT_S = 86_400.0
MOST_DOUBLINGS = 16

_GRAVITY = list(Severity)
THROTTLED: Mapping[int, str] = {  # NVML's reasons for lower clocks that show a fault
    0x08: "the hardware slows it down",
    0x20: "it is too hot (driver)",
    0x40: "it is too hot (hardware)",
    0x80: "the power supply asks for less",
}
RECOVERY: Mapping[int, tuple[str, Severity]] = {  # NVML's recovery actions
    1: ("reset the GPU", Severity.MOVE_AWAY),
    2: ("restart the server", Severity.MOVE_AWAY),
    3: ("let no GPUs exchange data with it, and reset it", Severity.NO_NEW_WORK),
    4: ("take the work off, and reset the GPU", Severity.MOVE_AWAY),
    5: ("recover the IMEX domain", Severity.NO_NEW_WORK),
    6: ("reset the bus of the GPU", Severity.MOVE_AWAY),
    7: ("restart the server", Severity.MOVE_AWAY),
}


@dataclass(frozen=True)
class Rules:
    """Rules that stay fixed while the agent runs."""

    xid_actions: Mapping[int, Severity] = field(default_factory=dict)  # the operator's, which override the table
    trouble_actions: Mapping[str, Severity] = field(default_factory=dict)  # the operator's, by code
    probation_s: float = 60.0
    longest_probation_s: float = 3600.0
    note_s: float = 3600.0  # how long an XID that is only a note is shown
    lasting_s: float = 15.0  # least time of throttling, or of memory held by unknown processes, before it counts
    least_free_share: float = 0.8  # of a GPU's memory, when no worker is there


# ------------------------------------------------------------------------------------------------------------- observations


@dataclass(frozen=True)
class Foreign:
    """A process on a GPU that is not a worker of this agent."""

    pid: int
    name: str
    used_bytes: int  # 0: unknown


@dataclass(frozen=True)
class GpuReading:
    """The driver's report on one GPU. None: not reported."""

    lost: str = ""  # why the GPU does not answer; then all else is unknown
    uncorrected: int | None = None  # memory errors since the driver was loaded
    pending: bool | None = None  # a part of the memory is to be taken out of use at the next reset
    remap_failed: bool | None = None
    throttle: int | None = None  # NVML's mask of reasons
    temperature_c: int | None = None
    recovery: int | None = None  # the action that the driver recommends
    foreign: tuple[Foreign, ...] = ()
    occupied: bool = False  # a worker of this agent is there, or was a moment ago
    memory_bytes: int = 0
    used_bytes: int = 0


@dataclass(frozen=True)
class DiskReading:
    """State of a file system that the agent needs."""

    name: str  # the agent's use of it: "state", "checkpoints"
    path: str
    free_bytes: int = 0
    least_bytes: int = 0
    hangs_s: float = 0.0  # time without an answer
    fails: str = ""  # its error


@dataclass(frozen=True)
class XidSeen:
    """The driver has reported an error."""

    gpu: int
    xid: int


@dataclass(frozen=True)
class GpusRead:
    """A look at all GPUs."""

    readings: Mapping[int, GpuReading]


@dataclass(frozen=True)
class DriverLooked:
    """State of the driver's library as a whole. Both empty: it works."""

    gone: str = ""  # its report that there is no driver any more
    hangs: str = ""  # description of a call that does not return


@dataclass(frozen=True)
class DisksRead:
    """A look at the disks."""

    readings: tuple[DiskReading, ...]


@dataclass(frozen=True)
class CheckFailed:
    """A check just before a worker's start has found a GPU unfit."""

    gpu: int
    code: str
    text: str


@dataclass(frozen=True)
class LimitsTried:
    """Result of a trial of the workers' limits and private directories."""

    unheld: str = ""  # why they are unavailable; "": they work


@dataclass(frozen=True)
class HealthTick:
    """The deadline may have passed."""


Observation = XidSeen | GpusRead | DriverLooked | DisksRead | CheckFailed | LimitsTried | HealthTick

# ---------------------------------------------------------------------------------------------------------------- the cases

_Key = tuple[int | None, str]  # GPU and code

OF_THE_SERVER = frozenset(
    {"no-driver", "nvml-failed", "no-gpu", "none-visible", "not-there", "mig-empty"}
)  # codes of the inventory (`topology`)
LIMITS = "limits"
OF_THE_START = frozenset({"gpu-missing", "gpu-error"})


class KeptCase(Value, frozen=True, kw_only=True):
    """A case, as it is recorded."""

    trouble: Trouble
    latched: bool = False
    over_s: float | None = None
    times: int = 1


class Kept(Value, frozen=True, kw_only=True):
    """Cases that outlast an agent."""

    boot: str  # the kernel's name of the boot in which the record was written
    cases: tuple[KeptCase, ...] = ()


@dataclass
class _Case:
    """A trouble that is present, or was until lately."""

    text: str
    severity: Severity
    since_s: float
    latched: bool = False  # the trouble does not end by itself
    times: int = 1  # number of occurrences, as far as they are remembered
    over_s: float | None = None  # end of the trouble; None: present
    until_s: float | None = None  # end of its probation, or of the time for which it is shown


class Health:
    """The state machine of one server's health."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._cases: dict[_Key, _Case] = {}
        self._past: dict[_Key, tuple[int, float]] = {}  # number of occurrences, and time of the final end
        self._first_seen: dict[_Key, float] = {}  # of conditions that have not lasted long enough

    # -- output

    def troubles(self) -> tuple[Trouble, ...]:
        """Return all troubles: those of the server first, then by GPU and code."""
        found = [self._trouble(key, case) for key, case in self._cases.items()]
        return tuple(sorted(found, key=lambda one: (-1 if one.gpu is None else one.gpu, one.code)))

    def next_deadline(self) -> float | None:
        """Return when `handle` wants a HealthTick."""
        return min((case.until_s for case in self._cases.values() if case.until_s is not None), default=None)

    def kept(self, boot: str) -> Kept:
        """Return the cases to record."""
        cases = [
            KeptCase(trouble=self._raw(key, case), latched=case.latched, over_s=case.over_s, times=case.times)
            for key, case in self._cases.items()
            if case.severity.blocks_new_work
        ]
        return Kept(boot=boot, cases=tuple(cases))

    def restore(self, now: float, kept: Kept, boot: str) -> None:
        """Start with the cases that an earlier agent has recorded. After a boot all of them are over, and on probation."""
        for one in kept.cases[:MOST_CASES]:
            trouble = one.trouble
            key = (trouble.gpu, trouble.code)
            case = _Case(trouble.text, trouble.severity, min(trouble.since_s, now), one.latched, max(1, one.times))
            self._cases[key] = case
            if kept.boot != boot or one.over_s is not None:
                self._end(now, key, case)

    def begin(self, now: float, found: tuple[Trouble, ...], gpus: Collection[int] | None = None) -> None:
        """Take the troubles found by an inventory; later looks at a GPU may end them. `gpus`: the GPUs of the
        inventory; cases of others are forgotten. None: all GPUs stay.

        A trouble that only an inventory can find ends if this one has not found it: a newly installed driver needs no
        probation, as nothing has failed; a GPU that was missing or did not answer does.
        """
        there = {(trouble.gpu, trouble.code) for trouble in found}
        for key, case in list(self._cases.items()):
            if gpus is not None and key[0] is not None and key[0] not in gpus:
                del self._cases[key]
                continue
            if key[1] in OF_THE_START and key not in there and case.over_s is None:
                self._end(now, key, case)
            if key[1] in OF_THE_SERVER and key not in there:
                del self._cases[key]
        for trouble in found:
            severity = self._rules.trouble_actions.get(trouble.code, trouble.severity)
            self._begin(now, (trouble.gpu, trouble.code), trouble.text, severity)

    # -- input

    def handle(self, now: float, seen: Observation) -> bool:
        """Take one observation. Return whether the troubles have changed in more than their wording."""
        before = self._signature()
        match seen:
            case XidSeen(gpu, xid):
                self._on_xid(now, gpu, xid)
            case GpusRead(readings):
                for gpu, reading in sorted(readings.items()):
                    self._on_gpu(now, gpu, reading)
            case DriverLooked(gone, hangs):
                known = any((None, code) in self._cases for code in OF_THE_SERVER)  # already reported
                self._condition(now, (None, "driver-gone"), "" if known else gone, Severity.NO_NEW_WORK)
                self._condition(now, (None, "driver-hangs"), hangs, Severity.NO_NEW_WORK)
            case DisksRead(disks):
                self._on_disks(now, disks)
            case CheckFailed(gpu, code, text):
                severity = Severity.STOP if code == "gpu-lost" else Severity.NO_NEW_WORK
                self._condition(now, (gpu, code), text, severity)
            case LimitsTried(unheld):
                key = (None, LIMITS)
                if unheld:
                    self._condition(now, key, unheld, Severity.NO_NEW_WORK)
                else:
                    # Without probation: an operator has mended it, and the trial has succeeded
                    self._cases.pop(key, None)
            case HealthTick():
                pass
        self._pass_time(now)
        return self._signature() != before

    def _signature(self) -> tuple[object, ...]:
        """Return the cases without the figures in their sentences, which change with each look."""
        return tuple((key, case.severity, case.since_s, case.over_s) for key, case in self._cases.items())

    def _on_xid(self, now: float, gpu: int, xid: int) -> None:
        severity = self._rules.xid_actions.get(xid, xids.followed(xid).severity)
        key = (gpu, f"xid-{xid}")
        case = self._begin(now, key, xids.sentence(xid), severity)
        if case is not None:
            case.since_s = now  # each occurrence counts as new
            case.latched = severity.blocks_new_work
            case.until_s = None if severity.blocks_new_work else now + self._rules.note_s

    def _on_gpu(self, now: float, gpu: int, reading: GpuReading) -> None:
        was_lost = (case := self._cases.get((gpu, "gpu-lost"))) is not None and case.over_s is None
        lost = f"it does not answer the driver: {reading.lost}; restart the server" if reading.lost else ""
        self._condition(now, (gpu, "gpu-lost"), lost, Severity.STOP)
        if lost:
            return
        for code in (
            "gpu-missing",
            "gpu-error",
            "driver-gone",
            "check-hangs",
        ):  # found at the start, or before a worker's
            self._condition(now, (gpu, code), "", Severity.NO_NEW_WORK)
        if was_lost:  # an operator has reset it
            for key, case in list(self._cases.items()):
                if key[0] == gpu and case.latched and case.over_s is None:
                    self._end(now, key, case)
        self._on_memory(now, gpu, reading)
        self._on_use(now, gpu, reading)
        reasons = [text for bit, text in THROTTLED.items() if (reading.throttle or 0) & bit]
        at = f" at {reading.temperature_c} C" if reading.temperature_c is not None else ""
        slow = f"it is slowed down{at}: {', '.join(reasons)}" if reasons else ""
        self._condition(now, (gpu, "throttled"), slow, Severity.NOTE, self._rules.lasting_s)
        advice, severity = RECOVERY.get(reading.recovery or 0, ("", Severity.NOTE))
        if reading.recovery and not advice:
            advice, severity = f"action {reading.recovery}", Severity.NO_NEW_WORK
        asked = f"the driver asks for help: {advice}" if advice else ""
        self._condition(now, (gpu, "recovery-action"), asked, severity)

    def _on_memory(self, now: float, gpu: int, reading: GpuReading) -> None:
        if reading.uncorrected is not None:
            count = f"{reading.uncorrected} uncorrectable memory errors since its last reset; reset the GPU"
            self._condition(now, (gpu, "ecc-uncorrected"), count if reading.uncorrected else "", Severity.STOP)
        if reading.pending is not None:
            text = "a bad part of its memory is taken out of use at the next reset; reset the GPU"
            self._condition(now, (gpu, "ecc-pending"), text if reading.pending else "", Severity.NO_NEW_WORK)
        if reading.remap_failed is not None:
            text = "a bad part of its memory could not be taken out of use: have the GPU replaced"
            self._condition(now, (gpu, "remap-failed"), text if reading.remap_failed else "", Severity.MOVE_AWAY)

    def _on_use(self, now: float, gpu: int, reading: GpuReading) -> None:
        others = foreign_sentence(reading.foreign)
        self._condition(now, (gpu, "foreign-process"), others, Severity.NO_NEW_WORK)
        held = "" if reading.occupied or others else memory_sentence(reading, self._rules.least_free_share)
        self._condition(now, (gpu, "memory-held"), held, Severity.NO_NEW_WORK, self._rules.lasting_s)

    def _on_disks(self, now: float, disks: tuple[DiskReading, ...]) -> None:
        for disk in disks:
            full = not disk.hangs_s and not disk.fails and disk.free_bytes < disk.least_bytes
            text = (
                f"{disk.path} ({disk.name}) has {disk.free_bytes >> 20} MiB left, and {disk.least_bytes >> 20} are kept free: "
                "make room there"
            )
            self._condition(now, (None, f"disk-full-{disk.name}"), text if full else "", Severity.NO_NEW_WORK)
            hangs = f"the file system of {disk.path} ({disk.name}) does not answer" if disk.hangs_s else ""
            self._condition(now, (None, f"disk-hangs-{disk.name}"), hangs, Severity.NO_NEW_WORK)
            fails = f"the file system of {disk.path} ({disk.name}) cannot be used: {disk.fails}" if disk.fails else ""
            self._condition(now, (None, f"disk-fails-{disk.name}"), fails, Severity.NO_NEW_WORK)

    # -- cases

    def _condition(self, now: float, key: _Key, text: str, severity: Severity, lasting_s: float = 0.0) -> None:
        """Start, update or end a condition. `text`: the condition holds, and why; "": it does not."""
        case = self._cases.get(key)
        if not text:
            self._first_seen.pop(key, None)
            if case is not None and case.over_s is None:
                self._end(now, key, case)
            return
        severity = self._rules.trouble_actions.get(key[1], severity)
        if case is not None and case.over_s is None:
            if _GRAVITY.index(severity) > _GRAVITY.index(case.severity):
                case.since_s = now  # an operator who trusts the GPU did so before this rise in severity
            case.text, case.severity = text, severity
            return
        if now - self._first_seen.setdefault(key, now) < lasting_s:
            return
        self._begin(now, key, text, severity)

    def _begin(self, now: float, key: _Key, text: str, severity: Severity) -> _Case | None:
        """Start a case, or renew it. None: there are too many."""
        case = self._cases.get(key)
        if case is None:
            if len(self._cases) >= MOST_CASES:
                return None
            times, _ = self._past.pop(key, (0, 0.0))
            case = self._cases[key] = _Case(text, severity, now, times=times + 1)
        elif case.over_s is not None:  # on probation
            case.since_s, case.times = now, case.times + 1
        case.text, case.severity, case.over_s, case.until_s = text, severity, None, None
        return case

    def _end(self, now: float, key: _Key, case: _Case) -> None:
        """End a case. A case that kept work away continues to do so for its probation."""
        self._first_seen.pop(key, None)
        case.over_s = now
        doublings = min(case.times - 1, MOST_DOUBLINGS)
        probation_s = min(self._rules.longest_probation_s, self._rules.probation_s * 2.0**doublings)
        case.until_s = now + (probation_s if case.severity.blocks_new_work else 0.0)

    def _pass_time(self, now: float) -> None:
        for key, case in list(self._cases.items()):
            if case.until_s is not None and now >= case.until_s:
                del self._cases[key]
                if case.severity.blocks_new_work:
                    self._past[key] = (case.times, now)
        for key in [key for key, (_, over_s) in self._past.items() if now - over_s >= RELAPSES_KEPT_S]:
            del self._past[key]
        while len(self._past) > MOST_CASES:
            del self._past[next(iter(self._past))]

    def _raw(self, key: _Key, case: _Case) -> Trouble:
        return Trouble(code=key[1], severity=case.severity, text=case.text, gpu=key[0], since_s=case.since_s)

    def _trouble(self, key: _Key, case: _Case) -> Trouble:
        """Return a trouble for the controller. On probation it keeps new work away, and moves no job."""
        told = self._raw(key, case)
        if case.over_s is None:
            return told
        text = f"on probation, as it was so until lately: {case.text}"
        return msgspec.structs.replace(told, severity=Severity.NO_NEW_WORK, text=text)


def foreign_sentence(foreign: tuple[Foreign, ...]) -> str:
    """Return a sentence about the first foreign process on a GPU; "": there is none."""
    if not foreign:
        return ""
    first = foreign[0]
    used = f" with {first.used_bytes >> 20} MiB of its memory" if first.used_bytes else ""
    more = f" (and {len(foreign) - 1} more)" if len(foreign) > 1 else ""
    return f"process {first.pid} ({first.name}){used}{more} is no worker of this agent: end it"


def memory_sentence(reading: GpuReading, least_free_share: float) -> str:
    """Return a sentence about a GPU's memory that invisible processes hold; "": enough is free."""
    free_bytes = reading.memory_bytes - reading.used_bytes
    if not reading.memory_bytes or free_bytes >= least_free_share * reading.memory_bytes:
        return ""
    return (
        f"only {free_bytes >> 20} of {reading.memory_bytes >> 20} MiB of its memory are free, though no worker is there: "
        "end what holds the rest, or reset the GPU"
    )
