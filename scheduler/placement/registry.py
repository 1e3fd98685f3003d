"""Placements by name: by which rule a job gets its GPUs, given how many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from ..view import Gpus, Ints, ServerInView
from .buddy import Buddy
from .fewest_servers import Placements, place


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
    ) -> Placements:
        """A placement for every row with a share; arguments and errors as for `fewest_servers.place`."""
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


PLACEMENTS = (FewestServers, Buddy)
FEWEST_SERVERS = FewestServers(FewestServersParameters())
