"""What the service manager is told (``Type=notify``, sd_notify(3)): datagrams to the socket that it names.

Nothing here waits or fails: a service manager that hangs must not hang its services.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping

FEEDS_PER_LIMIT = 4  # of the watchdog: one that is lost, or late, does no harm


def notify(state: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Tell the service manager `state` ("READY=1", "STOPPING=1"). False: there is none, or it does not listen."""
    path = environment.get("NOTIFY_SOCKET")
    if not path:
        return False
    flags = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    with socket.socket(socket.AF_UNIX, flags) as connection:
        try:
            connection.connect("\0" + path[1:] if path.startswith("@") else path)
            connection.sendall(state.encode())
        except OSError:
            return False
    return True


def reloading(environment: Mapping[str, str] = os.environ) -> None:
    """The configuration is read again; "READY=1" ends it."""
    notify(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}", environment)


class Watchdog:
    """Feeds the watchdog of the service manager (``WatchdogSec=``), if there is one, as often as it needs.

    Whoever holds one calls `feed` each time that his work has gone round, and nowhere else: then a watchdog that is not fed
    means work that hangs.
    """

    def __init__(
        self, environment: Mapping[str, str] = os.environ, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._environment = environment
        self._monotonic = monotonic
        self.interval_s = _limit_s(environment) / FEEDS_PER_LIMIT  # 0: there is none
        self._fed_s = -self.interval_s

    def feed(self) -> None:
        """The work has gone round once more."""
        if not self.interval_s:
            return
        now = self._monotonic()
        if now - self._fed_s >= self.interval_s:
            self._fed_s = now
            notify("WATCHDOG=1", self._environment)


def _limit_s(environment: Mapping[str, str]) -> float:
    """After how long without food the watchdog acts; 0: there is none, or it is another process that is watched."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    try:
        return max(0, int(environment.get("WATCHDOG_USEC", "0"))) / 1e6
    except ValueError:
        return 0.0
