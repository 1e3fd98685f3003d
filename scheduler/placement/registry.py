"""Placements by name: by which rule a job gets its GPUs, given how many."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from ..view import Gpus, Ints, ServerInView
from . import fewest_servers
from .buddy import Buddy
from .fewest_servers import Placements, place


class Standing(Protocol):
    """Who is where. Jobs are numbers in the order of submission."""

    @property
    def gpus(self) -> Mapping[int, Gpus]:
        """Of all jobs that have some."""
        ...

    def leave(self, job: int) -> Gpus:
        """A job is over. The GPUs that it had."""
        ...

    def change(self, shares: Mapping[int, int], *, stay: Collection[int] = ()) -> Mapping[int, tuple[Gpus, Gpus]]:
        """Place jobs whose shares change; 0: it gets none. The GPUs before and after of all jobs that have others now.

        `stay`: as for `place`.
        """
        ...


class Placement(Protocol):
    """A rule that chooses GPUs. Pure."""

    name: str

    @property
    def parameters(self) -> msgspec.Struct:
        """As they are in use."""
        ...

    def place(
        self,
        servers: Sequence[ServerInView],
        present: Mapping[int, Gpus],
        shares: Ints | Mapping[int, int],
        first: Mapping[int, Gpus] | None = None,
        stay: Collection[int] = (),
    ) -> Placements:
        """A placement for every row with a share; arguments and errors as for `fewest_servers.place`."""
        ...

    def standing(self, servers: Sequence[ServerInView]) -> Standing:
        """The same rule for one decision after another, on servers where nobody is yet."""
        ...


class FewestServersParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None."""


class FewestServers:
    """Each job on the fewest servers, and at most one job on a server that talks to others; then as many jobs as possible keep
    GPUs (AFS 4.4)."""

    name = "fewest-servers"
    Parameters = FewestServersParameters

    def __init__(self, parameters: FewestServersParameters) -> None:
        self.parameters = parameters

    place = staticmethod(place)
    standing = staticmethod(fewest_servers.Standing)


PLACEMENTS = (FewestServers, Buddy)
FEWEST_SERVERS = FewestServers(FewestServersParameters())
