"""What controllers that share a store write there about themselves, and where. What reigns record: `controller.records`."""

from __future__ import annotations

from ...protocol.model import Value

LEADING_KEY = (
    "/leading"  # bound to the lease of the controller that leads: the revision of its record is that of the reign
)
PRESENT = "/controllers/"  # and a name: bound to the lease of each controller that runs
JOB_KEYS_KEY = "/job-keys"  # the secret from which the keys of jobs' workers are made


class PresenceRecord(Value, frozen=True, kw_only=True):
    """A controller that runs."""

    name: str
    version: str
    since_s: float  # Unix time of its start, by its own clock
    clients_at: tuple[str, ...] = ()
    agents_at: tuple[str, ...] = ()
    agents_heard: int = 0  # agents that have lately said something to it
