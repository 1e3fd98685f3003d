"""Which GPUs each job gets, given how many (AFS 4.4).

Aims, in this order: jobs keep the GPUs they have; a growing job stays on the servers it is on; what is new goes to the fewest
servers. Deterministic: ties go to the job submitted first and the server first by name.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...protocol.model import GpuAddress, JobId, ServerId
from .view import ClusterView, JobInView


def place(view: ClusterView, shares: Mapping[JobId, int]) -> dict[JobId, tuple[GpuAddress, ...]]:
    """A placement for every job with a share. The shares must fit into the cluster."""
    free = {server.server: set(server.gpus) for server in view.servers}
    jobs = [job for job in view.jobs if shares.get(job.job, 0) > 0]
    placed: dict[JobId, list[GpuAddress]] = {}
    for job in jobs:
        kept = _keep(job, shares[job.job], free)
        placed[job.job] = kept
        for gpu in kept:
            free[gpu.server].discard(gpu.index)
    # Large needs first: what is left over in one piece should go to those that need a piece.
    for job in sorted(jobs, key=lambda job: -(shares[job.job] - len(placed[job.job]))):
        need = shares[job.job] - len(placed[job.job])
        if need:
            placed[job.job] += _take(need, placed[job.job], free)
    return {job.job: tuple(placed[job.job]) for job in jobs}


def _keep(job: JobInView, share: int, free: Mapping[ServerId, set[int]]) -> list[GpuAddress]:
    """The GPUs that a job keeps: all that still exist, or where it shrinks those on the servers where it has most."""
    usable = [gpu for gpu in job.placement if gpu.index in free.get(gpu.server, ())]
    if len(usable) <= share:
        return usable
    count: dict[ServerId, int] = {}
    for gpu in usable:
        count[gpu.server] = count.get(gpu.server, 0) + 1
    first = {gpu: place for place, gpu in enumerate(usable)}
    home = usable[0].server  # the first worker's: it has been there longest
    ranked = sorted(usable, key=lambda gpu: (gpu.server != home, -count[gpu.server], gpu.server, first[gpu]))
    kept = set(ranked[:share])
    return [gpu for gpu in usable if gpu in kept]


def _take(need: int, has: list[GpuAddress], free: dict[ServerId, set[int]]) -> list[GpuAddress]:
    """`need` free GPUs: on servers where the job is already, then on the fewest others."""
    taken: list[GpuAddress] = []
    here = {gpu.server for gpu in has}

    def take_from(server: ServerId) -> None:
        for index in sorted(free[server])[: need - len(taken)]:
            free[server].discard(index)
            taken.append(GpuAddress(server=server, index=index))

    for server in sorted(here & free.keys(), key=lambda name: (-len(free[name]), name)):
        take_from(server)
    while len(taken) < need:
        left = need - len(taken)
        open_servers = [server for server in sorted(free) if free[server]]
        if not open_servers:
            raise ValueError(f"{need} GPUs do not fit")
        fitting = [server for server in open_servers if len(free[server]) >= left]
        if fitting:  # the tightest fit leaves the largest pieces to others
            take_from(min(fitting, key=lambda name: (len(free[name]), name)))
        else:
            take_from(max(open_servers, key=lambda name: len(free[name])))
    return taken
