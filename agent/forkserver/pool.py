"""Set of warm processes that an agent keeps: a permanent one, others on demand, few in all. Pure.

A warm process costs memory and seconds of start-up. The *standard* one is started with the agent, and again whenever it ends.
Others are started when a first worker could have used them, and end after `IDLE_S` without use. Above the limit the least
recently used one is ended, unless it was used just now: then workers start cold. A process that ends by itself is restarted
with exponential backoff; one that reports itself useless (no torch in that interpreter) is never restarted.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ..warm_key import WarmKey

MAX_WARM = 4
MAX_KNOWN = 256
IDLE_S = 600.0
LOADING_S = 300.0  # time limit on loading
IN_USE_S = 30.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 300.0


class Phase(enum.Enum):
    """State of a warm process."""

    AWAY = "away"  # not running; may be started at `retry_at`
    LOADING = "loading"
    READY = "ready"
    USELESS = "useless"  # will never be ready


@dataclass
class _Kept:
    phase: Phase
    since: float  # time of the last change of phase
    used_at: float
    failures: int = 0
    retry_at: float = 0.0


@dataclass(frozen=True)
class Make:
    """Request to start a warm process."""

    key: WarmKey


@dataclass(frozen=True)
class End:
    """Request to end a warm process."""

    key: WarmKey


class Stock:
    """State of the warm processes of one agent."""

    def __init__(self, standard: WarmKey | None) -> None:
        self._standard = standard
        self._kept: dict[WarmKey, _Kept] = {}
        if standard is not None:
            self._kept[standard] = _Kept(Phase.AWAY, 0.0, 0.0)

    def want(self, now: float, key: WarmKey) -> tuple[bool, list[Make | End]]:
        """Note that a worker could use `key`. Returns whether its process is ready, and what to start or end for the next one."""
        kept = self._kept.get(key)
        if kept is None:
            self._forget_oldest()
            kept = self._kept[key] = _Kept(Phase.AWAY, now, now)
        kept.used_at = now
        if kept.phase is Phase.AWAY and now >= kept.retry_at:
            return False, self._make(now, key)
        return kept.phase is Phase.READY, []

    def loads(self, key: WarmKey) -> bool:
        """Return whether the process is loading."""
        kept = self._kept.get(key)
        return kept is not None and kept.phase is Phase.LOADING

    def ready(self, now: float, key: WarmKey) -> None:
        """Note that the process has loaded."""
        self._enter(now, key, Phase.READY)

    def useless(self, now: float, key: WarmKey) -> None:
        """Note that the process has reported itself useless."""
        self._enter(now, key, Phase.USELESS)

    def outdated(self, now: float, key: WarmKey) -> list[Make | End]:
        """Restart a process because files that it has loaded have changed."""
        self._enter(now, key, Phase.AWAY)
        return [End(key), *self._make(now, key)]

    def ended(self, now: float, key: WarmKey) -> None:
        """Note that the process has ended unasked, or had to be ended."""
        kept = self._kept[key]
        if kept.phase is Phase.USELESS:
            return
        lasted = kept.phase is Phase.READY and now - kept.since > LONGEST_PAUSE_S
        self._enter(now, key, Phase.AWAY)
        kept.failures = 1 if lasted else kept.failures + 1
        kept.retry_at = now + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(kept.failures - 1, 16))

    def due(self, now: float) -> list[Make | End]:
        """Return the starts and ends that are due at `now`."""
        asked: list[Make | End] = []
        for key, kept in self._kept.items():
            if kept.phase is Phase.LOADING and now >= kept.since + LOADING_S:
                asked.append(End(key))
                self.ended(now, key)
            elif kept.phase is Phase.READY and key != self._standard and now >= kept.used_at + IDLE_S:
                asked.append(End(key))
                self._enter(now, key, Phase.AWAY)
        standard = self._kept[self._standard] if self._standard is not None else None
        if standard is not None and standard.phase is Phase.AWAY and now >= standard.retry_at:
            assert self._standard is not None
            asked += self._make(now, self._standard)
        return asked

    def next_deadline(self) -> float | None:
        """Return when `due` has work; None if never."""
        deadlines = []
        for key, kept in self._kept.items():
            if kept.phase is Phase.LOADING:
                deadlines.append(kept.since + LOADING_S)
            elif kept.phase is Phase.READY and key != self._standard:
                deadlines.append(kept.used_at + IDLE_S)
            elif kept.phase is Phase.AWAY and key == self._standard:
                deadlines.append(kept.retry_at)
        return min(deadlines, default=None)

    def _make(self, now: float, key: WarmKey) -> list[Make | End]:
        asked: list[Make | End] = []
        alive = [k for k, kept in self._kept.items() if kept.phase in (Phase.LOADING, Phase.READY) and k != key]
        if len(alive) >= MAX_WARM:
            oldest = min((k for k in alive if k != self._standard), key=lambda k: self._kept[k].used_at)
            if self._kept[oldest].used_at > now - IN_USE_S and key != self._standard:
                return []
            self._enter(now, oldest, Phase.AWAY)
            asked.append(End(oldest))
        self._enter(now, key, Phase.LOADING)
        return [*asked, Make(key)]

    def _enter(self, now: float, key: WarmKey, phase: Phase) -> None:
        self._kept[key].phase = phase
        self._kept[key].since = now

    def _forget_oldest(self) -> None:
        """Make room for one more key by forgetting the least recently used one without a process."""
        if len(self._kept) >= MAX_KNOWN:
            gone = [k for k, kept in self._kept.items() if kept.phase in (Phase.AWAY, Phase.USELESS)]
            oldest = min((k for k in gone if k != self._standard), key=lambda k: self._kept[k].used_at)
            del self._kept[oldest]
