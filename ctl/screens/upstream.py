"""Answers of the controller, shared by all viewers.

Each request is sent at most once in an interval, for any number of viewers, and never without a viewer. While no
controller answers, viewers get the last answer with its age.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from ...protocol.errors import ClusterUnreachable, ElasticError, NotAllowed, RequestRefused, UserError
from ..context import Context

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Work: TypeAlias = Callable[[Context], T]

INTERVAL_S = 2.0  # least time between two equal requests
STALE_AFTER_S = 1.0  # a viewer who has waited this long gets the previous answer
MOST_WAITING = 64  # most waiting requests of one thread
MOST_KEPT = 256  # most cached answers

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CachedAnswer(Generic[T_co]):
    """An answer, its age, and the reason why no newer one is available; "": it is up to date."""

    value: T_co
    age_s: float
    trouble: str


class RequestThread:
    """A connection to the controller with a thread of its own: sockets of ZeroMQ belong to one thread, and a log that is slow to
    read must not hold up the rest.
    """

    def __init__(self, name: str, connect: Callable[[], Context]) -> None:
        """`connect`: returns a context without a connection yet."""
        self._connect = connect
        self._waiting: queue.Queue[tuple[Work[Any], asyncio.Future[Any]]] = queue.Queue(MOST_WAITING)
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def run(self, work: Work[T]) -> asyncio.Future[T]:
        """Return the outcome of `work` in the thread. Raises ClusterUnreachable if too many
        requests wait for the thread."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            self._waiting.put_nowait((work, future))
        except queue.Full:
            raise ClusterUnreachable(f"{MOST_WAITING} requests wait for the controller already") from None
        return future

    def _serve(self) -> None:
        context: Context | None = None
        while True:
            work, future = self._waiting.get()
            try:
                context = context or self._connect()
                outcome, error = work(context), None
            except (
                Exception
            ) as raised:  # the edge of the thread: the error is passed to the caller that awaits the outcome
                outcome, error = None, raised
            if context is not None and isinstance(error, ClusterUnreachable):
                context.close()  # addresses and keys may have changed
                context = None
            with contextlib.suppress(RuntimeError):  # the loop has been closed: the process ends
                future.get_loop().call_soon_threadsafe(_settle, future, outcome, error)


def _settle(future: asyncio.Future[Any], outcome: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(outcome)
    else:
        future.set_exception(error)


@dataclass
class _Kept:
    """A cached answer of the controller, and the state of its renewal."""

    value: Any = None
    taken_s: float | None = None  # time of the value; None: there is no value
    asked_s: float = float("-inf")
    trouble: str = ""
    refused: ElasticError | None = None  # the controller's last answer is a refusal
    running: asyncio.Task[None] | None = field(default=None, repr=False)


class Upstream:
    """The last answers of the controller, by request."""

    def __init__(self, connect: Callable[[], Context], clock: Callable[[], float] = time.monotonic) -> None:
        self._connect = connect
        self._clock = clock
        self._threads: dict[str, RequestThread] = {}
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()

    async def get(self, thread: str, key: Hashable, work: Work[T], interval_s: float = INTERVAL_S) -> CachedAnswer[T]:
        """Return the outcome of `work`, at most `interval_s` old if the controller answers.

        Raises UserError, RequestRefused and NotAllowed of the controller, and ClusterUnreachable if it has never answered.
        """
        kept = self._renewed(thread, key, work, interval_s)
        if kept.running is not None:
            await asyncio.wait({kept.running}, timeout=None if kept.taken_s is None else STALE_AFTER_S)
        if kept.refused is not None:
            raise kept.refused
        if kept.taken_s is None:
            raise ClusterUnreachable(kept.trouble)
        return CachedAnswer(kept.value, max(0.0, self._clock() - kept.taken_s), kept.trouble)

    def at_hand(self, thread: str, key: Hashable, work: Work[T], interval_s: float) -> T | None:
        """Return the last outcome of `work`, which is renewed as by `get`, without waiting; None: there is none yet."""
        value: T | None = self._renewed(thread, key, work, interval_s).value
        return value

    def _renewed(self, thread: str, key: Hashable, work: Work[Any], interval_s: float) -> _Kept:
        kept = self._kept.setdefault(key, _Kept())
        self._kept.move_to_end(key)
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        if kept.running is None and self._clock() - kept.asked_s >= interval_s:
            kept.asked_s = self._clock()
            kept.running = asyncio.ensure_future(self._ask(kept, thread, work))
        return kept

    async def _ask(self, kept: _Kept, thread: str, work: Work[Any]) -> None:
        try:
            if thread not in self._threads:
                self._threads[thread] = RequestThread(thread, self._connect)
            kept.value = await self._threads[thread].run(work)
            kept.taken_s, kept.trouble, kept.refused = self._clock(), "", None
        except (UserError, RequestRefused, NotAllowed) as error:
            kept.refused, kept.trouble = error, ""
        except ElasticError as error:
            kept.trouble = str(error)
        except Exception:
            log.exception("a request to the controller failed")
            kept.trouble = "a fault of elasticctl, which its log shows"
        finally:
            kept.running = None
