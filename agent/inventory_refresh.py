"""Renewal of the inventory of a server's GPUs, in a thread of its own, when it is out of date.

Theory of operation
-------------------
A driver is installed or mended, a GPU is replaced or comes back, MIG instances are made or removed: all that happens
while the agent runs. So a thread asks the driver regularly which GPUs answer (`nvml.count`, a few calls for each GPU).
If there are more than in the inventory, or others, it makes a new inventory (`topology.discover`). A GPU that stops
answering changes nothing: it is lost, keeps its number, and is a trouble (`monitoring`).

The agent takes a new inventory only if every GPU with a worker is in it, under the same number (`fits`). Until then the
thread makes another one with each look. Workers go on: they know their GPU by its UUID. The controller learns of it
from a new hello, as after a restart of the agent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from ..protocol.model import Gpu
from . import nvml
from .monitoring import Looker
from .topology import Inventory


class InventoryRefresh:
    """The thread, with its latest inventory. The methods are for the loop's thread."""

    def __init__(
        self,
        inventory: Inventory,
        discover: Callable[[], Inventory],
        library: str | None,
        interval_s: float,
        wake: Callable[[], None],
    ) -> None:
        """`discover`: makes an inventory. It may raise; the error is written to the log."""
        self._used = inventory
        self._discover = discover
        self._library = library
        self._wake = wake
        self._lock = threading.Lock()
        self._found: Inventory | None = None
        self._looker = Looker("the inventory", self._look, interval_s)

    def start(self) -> None:
        self._looker.start()

    def close(self) -> None:
        self._looker.close()

    def deliver(self) -> Inventory | None:
        """Return a new inventory, if one has been made since the last call."""
        with self._lock:
            found, self._found = self._found, None
        return found

    def use(self, inventory: Inventory) -> None:
        """Record that the agent uses this inventory now."""
        self._used = inventory

    # -- in the thread

    def _look(self) -> None:
        try:
            with nvml.session(self._library):
                now = nvml.count()
        except nvml.DriverFailed:
            return
        used = self._used
        if used.counted is not None and not now.outdates(used.counted):
            return
        found = self._discover()
        if found.counted is None or found.counted == used.counted:
            return
        with self._lock:
            self._found = found
        self._wake()


def fits(before: Sequence[Gpu], after: Sequence[Gpu], used: Iterable[int]) -> bool:
    """Return whether every GPU in use is still there, under its number."""
    there = {gpu.index: gpu.uuid for gpu in after}
    busy = set(used)
    return all(there.get(gpu.index) == gpu.uuid for gpu in before if gpu.index in busy)
