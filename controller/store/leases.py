"""Lease that a separate thread renews, even while the loop of the process is blocked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .interface import Lease, SharedStore, StoreUnavailable

RENEWALS = 3  # per lifetime of the lease
ATTEMPTS = 12  # per lifetime of the lease, after a failed renewal


class KeptLease:
    """Lease that is renewed until `close`, or until the store has ended it.

    A lease lasts at least for its lifetime from the *sending* of its last renewal. So a process that checks `holds`
    before each action never acts under an ended lease, provided that the clocks of its machine and of etcd's run
    equally fast.
    """

    def __init__(
        self, store: SharedStore, lease: Lease, asked_s: float, on_end: Callable[[], None] | None = None
    ) -> None:
        """Start the renewals of `lease`, which was requested at `asked_s` (`time.monotonic`, seconds).

        The thread calls `on_end` once if the store has ended the lease.
        """
        self._store, self.lease = store, lease
        self._until_s = asked_s + lease.ttl_s
        self._on_end = on_end
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    def holds(self) -> bool:
        """Return whether the lease certainly has not ended."""
        return time.monotonic() < self._until_s

    @property
    def until_s(self) -> float:
        """Time until which the lease certainly lasts (`time.monotonic`, seconds)."""
        return self._until_s

    def close(self, revoke: bool = True) -> None:
        """Stop the renewals, and with `revoke` end the lease: at once if the store answers, else when it expires."""
        self._closed.set()
        self._thread.join()
        if revoke:
            self._until_s = 0.0
            try:
                self._store.revoke(self.lease.id)
            except StoreUnavailable:
                pass  # the lease expires by itself

    def _run(self) -> None:
        wait_s = self.lease.ttl_s / RENEWALS
        while not self._closed.wait(wait_s):
            wait_s = self.lease.ttl_s / ATTEMPTS
            asked_s = time.monotonic()
            try:
                left_s = self._store.renew(self.lease.id)
            except StoreUnavailable:
                continue  # the lease may still last, and another member may answer
            if left_s <= 0:
                self._until_s = 0.0
                if self._on_end is not None:
                    self._on_end()
                return
            self._until_s = asked_s + left_s
            wait_s = self.lease.ttl_s / RENEWALS
