"""Placement rules by name: each chooses a job's GPUs, given their number."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from ..arrays import Ints
from ..view import Gpus, ServerInView
from . import fewest_servers
from .buddy import Buddy
from .fewest_servers import Placements, place


class IncrementalPlacement(Protocol):
    """Placements between decisions. Jobs are numbers in the order of submission."""

    @property
    def gpus(self) -> Mapping[int, Gpus]:
        """GPUs of all jobs that have some."""
        ...

    def leave(self, job: int) -> Gpus:
        """Remove a finished job, and return the GPUs that it had."""
        ...

    def change(self, shares: Mapping[int, int], *, stay: Collection[int] = ()) -> Mapping[int, tuple[Gpus, Gpus]]:
        """Place jobs with changed shares (0: the job gets none).

        Return the GPUs before and after, of all jobs that now have others.

        `stay`: as for `place`.
        """
        ...


class Placement(Protocol):
    """A rule that chooses GPUs. Pure."""

    name: str

    @property
    def parameters(self) -> msgspec.Struct:
        """The parameters in use."""
        ...

    def place(
        self,
        servers: Sequence[ServerInView],
        present: Mapping[int, Gpus],
        shares: Ints | Mapping[int, int],
        first: Mapping[int, Gpus] | None = None,
        stay: Collection[int] = (),
    ) -> Placements:
        """Return a placement for every row with a share; arguments and errors as for `fewest_servers.place`."""
        ...

    def incremental(self, servers: Sequence[ServerInView]) -> IncrementalPlacement:
        """Return the state for consecutive decisions under this rule, with no job on these servers yet."""
        ...


class FewestServersParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Placement on the fewest servers takes no parameters."""


class FewestServers:
    """Each job on the fewest servers, and at most one job on a server that communicates with others; then as many jobs
    as possible keep GPUs (AFS 4.4)."""

    name = "fewest-servers"
    Parameters = FewestServersParameters

    def __init__(self, parameters: FewestServersParameters) -> None:
        self.parameters = parameters

    place = staticmethod(place)
    incremental = staticmethod(fewest_servers.IncrementalFewestServers)


PLACEMENTS = (FewestServers, Buddy)
FEWEST_SERVERS = FewestServers(FewestServersParameters())
