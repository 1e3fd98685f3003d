"""A lease that is kept alive by a thread of its own, however long the process's loop stands still."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .interface import Lease, SharedStore, StoreUnavailable

RENEWALS = 3  # in the time of a lease
ATTEMPTS = 12  # in that time, after one that has failed


class KeptLease:
    """Renews `lease` until it is closed or lost.

    A lease certainly lasts for its time from when its last renewal was *asked for*. So whoever asks `holds` before each act of
    its own, acts by no lease that has ended, provided that clocks of this machine and of etcd's run equally fast.
    """

    def __init__(
        self, store: SharedStore, lease: Lease, asked_s: float, on_end: Callable[[], None] | None = None
    ) -> None:
        """`asked_s`: when it was asked for (`time.monotonic`). `on_end` is called in that thread, once, when it has been lost."""
        self._store, self.lease = store, lease
        self._until_s = asked_s + lease.ttl_s
        self._on_end = on_end
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    def holds(self) -> bool:
        """Is it certain that the lease has not ended?"""
        return time.monotonic() < self._until_s

    @property
    def until_s(self) -> float:
        """Until then it certainly lasts (`time.monotonic`)."""
        return self._until_s

    def close(self, revoke: bool = True) -> None:
        """Renew it no more; and end it now, if the store can be reached."""
        self._closed.set()
        self._thread.join()
        if revoke:
            self._until_s = 0.0
            try:
                self._store.revoke(self.lease.id)
            except StoreUnavailable:
                pass  # it ends by itself

    def _run(self) -> None:
        wait_s = self.lease.ttl_s / RENEWALS
        while not self._closed.wait(wait_s):
            wait_s = self.lease.ttl_s / ATTEMPTS
            asked_s = time.monotonic()
            try:
                left_s = self._store.renew(self.lease.id)
            except StoreUnavailable:
                continue  # it may still last, and another member may answer
            if left_s <= 0:
                self._until_s = 0.0
                if self._on_end is not None:
                    self._on_end()
                return
            self._until_s = asked_s + left_s
            wait_s = self.lease.ttl_s / RENEWALS
