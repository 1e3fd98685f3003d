"""Records in a shared store about the controllers themselves. Records of the cluster: `controller.records`."""

from __future__ import annotations

from ...protocol.model import Value

LEADING_KEY = "/leading"  # bound to the leader's lease; the revision of its record is the revision of the reign
PRESENT = "/controllers/"  # followed by a name; bound to the lease of the controller with that name
JOB_KEYS_KEY = "/job-keys"  # the secret from which the keys of jobs' workers are derived


class PresenceRecord(Value, frozen=True, kw_only=True):
    """A running controller."""

    name: str
    version: str
    since_s: float  # Unix time of the controller's start, by the clock of its machine
    clients_at: tuple[str, ...] = ()
    agents_at: tuple[str, ...] = ()
    agents_heard: int = 0  # number of agents that have lately sent a message to the controller (`reachability`)
