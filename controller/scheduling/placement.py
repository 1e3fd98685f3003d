"""Which GPUs each job gets, given how many (AFS 4.4).

Aims, in this order: jobs keep the GPUs they have, and where one shrinks those on the fewest servers; a growing job stays on the
servers it is on; what is new goes to the fewest servers; at most one job of a server talks to other servers.

What a job needs beyond one server is cut into whole servers first. The pieces that are left, of all jobs, are then fitted
largest first, each into the tightest hole: shares that network packing allows (AFS App. E) are placed perfectly that way, other
shares well, not optimally (it is bin packing). Deterministic: ties go to the job submitted first and the server first by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ...protocol.model import GpuAddress, JobId, ServerId
from .view import ClusterView, JobInView


def place(view: ClusterView, shares: Mapping[JobId, int]) -> dict[JobId, tuple[GpuAddress, ...]]:
    """A placement for every job with a share. Raises ValueError if the shares do not fit into the cluster."""
    free = _FreeGpus(view)
    jobs = [job for job in view.jobs if shares.get(job.job, 0) > 0]
    placed: dict[JobId, list[GpuAddress]] = {}
    for job in jobs:
        placed[job.job] = _keep(job, shares[job.job], free)
        free.occupy(placed[job.job])

    def need(job: JobInView) -> int:
        return shares[job.job] - len(placed[job.job])

    needy = [job for job in jobs if need(job)]
    for job in needy:
        free.take_at_home(need(job), placed[job.job])
    for job in sorted(needy, key=lambda job: -need(job)):
        free.take_whole_servers(need(job), placed[job.job])
    # Of pieces of one size those of spread jobs first: they have to avoid each other, the rest fills what they leave.
    for job in sorted(filter(need, needy), key=lambda job: (-need(job), not placed[job.job])):
        free.take_piece(need(job), placed[job.job])
    return {job.job: tuple(placed[job.job]) for job in jobs}


def _keep(job: JobInView, share: int, free: _FreeGpus) -> list[GpuAddress]:
    """The GPUs that a job keeps: all that still exist, or where it shrinks those on the fewest servers."""
    usable = [gpu for gpu in job.placement if free.is_free(gpu)]
    if len(usable) <= share:
        return usable
    home = usable[0].server  # the first worker's: it has been there longest, and leads
    stays = _fewest(Counter(gpu.server for gpu in usable), share, home)
    first = {gpu: place for place, gpu in enumerate(usable)}
    ranked = sorted(
        (gpu for gpu in usable if gpu.server in stays), key=lambda gpu: (stays.index(gpu.server), first[gpu])
    )
    kept = set(ranked[:share])
    return [gpu for gpu in usable if gpu in kept]


def _fewest(gpus: Mapping[ServerId, int], share: int, home: ServerId) -> list[ServerId]:
    """As few servers as `share` GPUs can be kept on: `home` among them if that takes no more of them, then the largest."""
    ranked = sorted(gpus, key=lambda server: (-gpus[server], server != home, server))
    some = next(n for n in range(1, len(ranked) + 1) if sum(gpus[server] for server in ranked[:n]) >= share)
    with_home = [home, *(server for server in ranked if server != home)][:some]
    return with_home if sum(gpus[server] for server in with_home) >= share else ranked[:some]


class _FreeGpus:
    """The free GPUs of every server while jobs are being placed, and which servers a spread job uses already."""

    def __init__(self, view: ClusterView) -> None:
        self._free = {server.server: set(server.gpus) for server in view.servers}
        self._names = sorted(self._free)
        self._spread: set[ServerId] = set()  # servers with a job that talks to other servers

    def is_free(self, gpu: GpuAddress) -> bool:
        return gpu.index in self._free.get(gpu.server, ())

    def occupy(self, gpus: Iterable[GpuAddress]) -> None:
        """`gpus` are all that a job has so far."""
        servers = set()
        for gpu in gpus:
            self._free[gpu.server].discard(gpu.index)
            servers.add(gpu.server)
        if len(servers) > 1:
            self._spread |= servers

    def take_at_home(self, need: int, has: list[GpuAddress]) -> None:
        """Up to `need` GPUs for a job that has `has`, on the servers where it is already. Extends `has`, as do the others."""
        here = {gpu.server for gpu in has}
        for server in sorted(here, key=lambda name: (-len(self._free[name]), name)):
            need -= self._take(server, need, has)

    def take_whole_servers(self, need: int, has: list[GpuAddress]) -> int:
        """All that the emptiest servers have, as long as no single server can satisfy the need. Returns what is still needed."""
        while need > (most := max((len(free) for free in self._free.values()), default=0)):
            if not most:
                raise ValueError(f"{need} GPUs do not fit")
            largest = [name for name in self._names if len(self._free[name]) == most]
            need -= self._take(min(largest, key=lambda name: (name in self._spread, name)), need, has)
        return need

    def take_piece(self, need: int, has: list[GpuAddress]) -> None:
        """`need` GPUs of one server if possible: where no other spread job is if this job is one, then in the tightest hole."""
        need = self.take_whole_servers(need, has)
        spread = bool(has)  # its own servers are full by now
        fitting = [name for name in self._names if len(self._free[name]) >= need]
        best = min(fitting, key=lambda name: (spread and name in self._spread, len(self._free[name]), name))
        self._take(best, need, has)

    def _take(self, server: ServerId, need: int, has: list[GpuAddress]) -> int:
        """Up to `need` GPUs of `server`; how many."""
        taken = sorted(self._free[server])[:need]
        has += [GpuAddress(server=server, index=index) for index in taken]
        self.occupy(has)
        return len(taken)
