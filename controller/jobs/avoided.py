"""Servers and GPUs where one job cannot work, and the times until which the job avoids them (`reconcile.avoidance`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ...protocol.model import GpuAddress, ServerId
from ...protocol.times import FIRST_SERVER_BACK_OFF_S, LONGEST_SERVER_BACK_OFF_S


class Avoidance(Enum):
    """Restriction of a job on a server that the job avoids."""

    BEGIN = "its first worker starts elsewhere, and hands the state on to others there"
    START = "no worker starts there as long as no worker has the job's state"
    STAY = "no worker starts there at all"
    REFUSED = "no worker starts there but where one has the state: one was refused there by those that have it"


@dataclass
class Avoided:
    """Server or GPU where a job cannot work, and the time until which the job avoids it.

    The time grows with each failure.
    """

    reason: str
    extent: Avoidance
    failures: int = 0
    until_s: float | None = None  # Unix time; None: the job may try it again

    def tried_again(self, placed: bool) -> bool:
        """Return whether the job tries this place again at `until_s`. placed: the job has GPUs elsewhere.

        While the job is tried elsewhere, the result there decides, except after a refusal.
        """
        return not placed or self.extent is Avoidance.REFUSED


@dataclass
class AvoidedPlaces:
    """All servers and GPUs that a job avoids, or has avoided since it trained last."""

    servers: dict[ServerId, Avoided] = field(default_factory=dict)
    gpus: dict[GpuAddress, Avoided] = field(default_factory=dict)

    @property
    def servers_now(self) -> frozenset[ServerId]:
        """Return the servers where the job may not begin now."""
        return frozenset(server for server, avoided in self.servers.items() if avoided.until_s is not None)

    @property
    def all(self) -> tuple[Avoided, ...]:
        return (*self.servers.values(), *self.gpus.values())

    @property
    def refusals(self) -> tuple[Avoided, ...]:
        """Return the servers where workers of the job have been refused."""
        found = [self.servers[server] for server in sorted(self.servers_now)]
        return tuple(avoided for avoided in found if avoided.extent is Avoidance.REFUSED)

    def add_server(self, now: float, server: ServerId, reason: str, extent: Avoidance, at_least_s: float) -> None:
        """Avoid a server for a while, for at least `at_least_s` seconds."""
        if (avoided := _again(now, self.servers.get(server), reason, extent, at_least_s)) is not None:
            self.servers[server] = avoided

    def add_gpu(self, now: float, gpu: GpuAddress, reason: str) -> None:
        """Avoid a GPU on which this job alone has failed, for a while."""
        if (avoided := _again(now, self.gpus.get(gpu), reason, Avoidance.START)) is not None:
            self.gpus[gpu] = avoided

    def end(self, now: float, placed: bool) -> bool:
        """End the avoidances that have expired by `now`; return whether there are any. placed: the job has GPUs."""
        over = [each for each in self.all if each.until_s is not None and now >= each.until_s]
        over = [each for each in over if each.tried_again(placed)]
        for each in over:
            each.until_s = None
        return bool(over)

    def leave_out(self, gap_s: float) -> None:
        """Move the ends of all avoidances by `gap_s` seconds without a controller."""
        for each in self.all:
            if each.until_s is not None:
                each.until_s += gap_s

    def trains_on(self, server: ServerId) -> None:
        """Note that a worker on `server` has the job's state, and end all avoidances but refusals on other servers."""
        refused = {name: avoided for name, avoided in self.servers.items() if avoided.extent is Avoidance.REFUSED}
        refused.pop(server, None)
        self.servers, self.gpus = refused, {}

    def timers(self, placed: bool) -> dict[str, float]:
        """Return when the job tries a place again (Unix time), by a description."""
        places = [*self.servers.items(), *self.gpus.items()]
        return {
            f"{place} is avoided": each.until_s
            for place, each in places
            if each.until_s is not None and each.tried_again(placed)
        }


def _again(
    now: float, before: Avoided | None, reason: str, extent: Avoidance, at_least_s: float = 0.0
) -> Avoided | None:
    """Return the new entry for a place that a job must avoid, for longer after each failure.

    Return None if the job avoids the place already, as when several workers were started there together and all failed.
    """
    if before is not None and before.until_s is not None:
        return None
    failures = before.failures if before is not None else 0
    back_off_s = min(LONGEST_SERVER_BACK_OFF_S, FIRST_SERVER_BACK_OFF_S * 2.0 ** min(failures, 30))
    return Avoided(reason, extent, failures + 1, now + max(back_off_s, at_least_s))
