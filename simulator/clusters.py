"""The simulated servers, from a file."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ..protocol.errors import UserError
from ..protocol.model import ServerId
from ..scheduler.amounts import GIB, Amounts, Capacity
from ..scheduler.kinds import GpuSort
from ..scheduler.view import ServerInView

MOST_GPUS = 65_536
UNCOUNTED = 1 << 60  # more than any jobs request

Cluster = tuple[ServerInView, ...]
Count = Annotated[int, msgspec.Meta(ge=1, le=MOST_GPUS)]


class Servers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`count` servers of equal size; with a name where it is one. `gpu_type`, `gpu_memory_gib`: of each GPU. `cpus`,
    `memory_gib`: cores and memory of each server for its jobs; 0: not counted.
    """

    gpus: Count
    count: Count = 1
    name: str | None = None
    gpu_type: str = ""
    gpu_memory_gib: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0
    cpus: Annotated[float, msgspec.Meta(ge=0, le=1e5)] = 0.0
    memory_gib: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0

    @property
    def capacity(self) -> Capacity | None:
        """Cores and memory; None: neither is counted."""
        if not self.cpus and not self.memory_gib:
            return None
        return Capacity(Amounts(round(1000 * self.cpus) or UNCOUNTED, int(self.memory_gib * GIB) or UNCOUNTED))


class ClusterFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of servers."""

    servers: Annotated[list[Servers], msgspec.Meta(min_length=1)]


def build(document: ClusterFile, source: str) -> Cluster:
    """Return the servers that `document` describes, by name. Raises UserError, naming `source` and field."""
    gpus = sum(entry.count * entry.gpus for entry in document.servers)
    if gpus > MOST_GPUS:
        raise UserError(f"{source}: servers: {gpus} GPUs; at most {MOST_GPUS} can be simulated")
    total = sum(entry.count for entry in document.servers)
    found: dict[ServerId, ServerInView] = {}
    for entry in document.servers:
        for _ in range(entry.count):
            one = entry.name if entry.name is not None and entry.count == 1 else None
            name = ServerId(one or f"{entry.name or 'server'}-{len(found):0{len(str(total))}d}")
            if name in found:
                raise UserError(f"{source}: servers: two servers are named {name}")
            sort = GpuSort(entry.gpu_type, int(entry.gpu_memory_gib * GIB))
            sorts = (sort,) * entry.gpus if sort != GpuSort() else ()
            found[name] = ServerInView(name, tuple(range(entry.gpus)), sorts, capacity=entry.capacity)
    return tuple(found[name] for name in sorted(found))
