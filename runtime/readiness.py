"""Notifications to the service manager (``Type=notify``, sd_notify(3)): datagrams to the socket named in NOTIFY_SOCKET.

No call here blocks or fails: a service manager that hangs must not hang its services.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping

FEEDS_PER_LIMIT = 4  # of the watchdog, so that a lost or late one does no harm


def notify(state: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Send `state` ("READY=1", "STOPPING=1") to the service manager. Returns False if there is none, or it does not listen."""
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
    """Report that the configuration is read again; "READY=1" ends that state."""
    notify(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}", environment)


class Watchdog:
    """Feeds the service manager's watchdog (``WatchdogSec=``), if there is one, as often as needed.

    Call `feed` once per completed round of the daemon's work, and nowhere else: then an unfed watchdog means that work hangs.
    """

    def __init__(
        self, environment: Mapping[str, str] = os.environ, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._environment = environment
        self._monotonic = monotonic
        self.interval_s = _limit_s(environment) / FEEDS_PER_LIMIT  # 0: no watchdog
        self._fed_s = -self.interval_s

    def feed(self) -> None:
        """Report a completed round of work."""
        if not self.interval_s:
            return
        now = self._monotonic()
        if now - self._fed_s >= self.interval_s:
            self._fed_s = now
            notify("WATCHDOG=1", self._environment)


def _limit_s(environment: Mapping[str, str]) -> float:
    """Return the watchdog's timeout (s); 0 if there is none, or it watches another process."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    try:
        return max(0, int(environment.get("WATCHDOG_USEC", "0"))) / 1e6
    except ValueError:
        return 0.0
