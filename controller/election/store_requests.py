"""Requests of the leader election to the store, and their answers. Each call may last for the store's time limit."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from ..records import LEADER_KEY, LeaderRecord
from ..store.interface import If, Put, PutLeased, SharedStore, StoreUnavailable
from .events import (
    Ask,
    Campaign,
    CampaignLost,
    CampaignWon,
    Event,
    Grant,
    Holder,
    LeaderObserved,
    LeaseGone,
    LeaseGranted,
    Reign,
    Renew,
    Renewed,
    RequestFailed,
)
from .records import LEADING_KEY, PRESENT, PresenceRecord


def since_boot() -> float:
    """Return CLOCK_BOOTTIME (seconds), which runs on while the machine is suspended, and cannot be set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ElectionRequests:
    """Requests of one controller's election to the store. `presence` describes the controller to the others."""

    def __init__(self, store: SharedStore, presence: PresenceRecord, lease_s: int) -> None:
        self._store = store
        self.presence = presence
        self._told = presence  # the presence record in the store
        self._lease_s = lease_s
        self.present: tuple[PresenceRecord, ...] = ()  # all running controllers, by name, as of the last renewal
        self.trouble = ""  # why the store did not answer the last request; "" if the store answered

    def hears(self, agents: int) -> None:
        """Publish with the next renewal that this controller hears so many agents."""
        self.presence = replace(self.presence, agents_heard=agents)

    def carry_out(self, ask: Ask) -> list[Event]:
        """Send the request `ask` to the store, and return the events that result: `RequestFailed` without an answer."""
        try:
            match ask:
                case Grant():
                    found = self._grant()
                case Renew(lease):
                    found = self._renew(lease)
                case Campaign(lease, above):
                    found = [self._campaign(lease, above)]
        except StoreUnavailable as error:
            self.trouble = str(error)
            return [RequestFailed(ask, str(error))]
        self.trouble = ""
        return found

    def revoke(self, lease: int) -> None:
        """Revoke the lease; if the store does not answer, the lease expires by itself."""
        try:
            self._store.revoke(lease)
        except StoreUnavailable as error:
            self.trouble = str(error)

    def _grant(self) -> list[Event]:
        asked_s = since_boot()
        lease = self._store.grant(self._lease_s)
        self._tell(lease.id)
        return [LeaseGranted(lease.id, lease.ttl_s, asked_s), self._look()]

    def _renew(self, lease: int) -> list[Event]:
        asked_s = since_boot()
        ttl_s = self._store.renew(lease)
        if ttl_s <= 0:
            return [LeaseGone(lease), self._look()]
        found: list[Event] = [Renewed(lease, ttl_s, asked_s)]
        try:
            if self._told != self.presence:
                self._tell(lease)
            found.append(self._look())
        except StoreUnavailable as error:
            self.trouble = str(error)  # the lease is renewed nevertheless
        return found

    def _tell(self, lease: int) -> None:
        presence = self.presence
        self._store.claim((), (PutLeased(PRESENT + presence.name, msgspec.msgpack.encode(presence), lease),))
        self._told = presence

    def _look(self) -> LeaderObserved:
        """Return the controller that leads, and refresh the list `present` of running controllers."""
        listing = self._store.list(LEADING_KEY)
        holder = next((Holder(one.value.decode(), one.mod_revision) for one in listing.records), None)
        self.present = tuple(_present(record.value) for record in self._store.list(PRESENT).records)
        return LeaderObserved(holder, listing.revision)

    def _campaign(self, lease: int, above: int) -> Event:
        found = self._store.get(LEADER_KEY)
        last = msgspec.msgpack.decode(found.value, type=LeaderRecord).term if found is not None else 0
        presence = self.presence
        term = max(last, above) + 1
        record = LeaderRecord(
            term=term, name=presence.name, agents_at=presence.agents_at, clients_at=presence.clients_at
        )
        conditions = (If(LEADING_KEY, 0), If(LEADER_KEY, found.mod_revision if found is not None else 0))
        writes: Sequence[Put | PutLeased] = (
            PutLeased(LEADING_KEY, presence.name.encode(), lease),
            Put(LEADER_KEY, msgspec.msgpack.encode(record)),
        )
        revision = self._store.claim(conditions, writes)
        return CampaignLost(lease) if revision is None else CampaignWon(lease, Reign(term, revision))


def _present(value: bytes) -> PresenceRecord:
    try:
        return msgspec.msgpack.decode(value, type=PresenceRecord)
    except msgspec.MsgspecError:  # the record is of a newer version
        return PresenceRecord(name="(unreadable)", version="", since_s=0.0)
