"""Servers and GPUs that a job avoids: a job that cannot work on some servers is tried on others.

Theory of operation
-------------------
A job avoids a server or GPU, which may be good for other jobs, for one of five reasons:

* The server does not see the job's checkpoint: the first worker ends with a special exit code (`protocol.exits`). The
  first worker sends the state to the others, so only this worker has to be on another server
  (`generations.choose_leader`).
* The script has failed there before its first step, and on no other server yet (`inbound.worker_ends`). To find out
  whether the script or the server is to blame, the job is tried without that server. If the job fails on other servers
  too, it fails for good.
* The job's workers there cannot reach its workers on other servers, and the job needs more GPUs than there are on one
  side (`worker_ends.stop_cut_off`). A job that can go on with fewer GPUs does so, and avoids nothing. A job that cannot
  be moved stays.
* The workers with the state have refused a worker there, since its code differs from theirs
  (`joining_workers.other_code`). The job does without the server, even if it then has fewer GPUs than its minimum.
* The script has failed at its start on one GPU, while it works on others of the same server (`health`). This is no
  reason to take the GPU from other users or to fail the job: the job is tried without the GPU.

`Job.avoid` makes the job avoid a server for a while. GPUs there are exchanged for free ones on other servers; in the
first two cases only while no worker has the job's state. If there are too few free GPUs, the job gets fewer; below its
minimum it waits without GPUs. Placement does not consider avoided servers, as they are rare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...scheduler.pipeline import Decision
from ...scheduler.placement.fewest_servers import Placements, layout_of
from ...scheduler.sets import some, union
from ...scheduler.view import Gpus
from ..jobs.avoided import Avoidance
from ..jobs.generations import holders
from ..jobs.job import Job
from ..state.planning import Snapshot


@dataclass(frozen=True)
class Elsewhere:
    """Decision in which the GPUs that jobs avoid are exchanged for others."""

    decision: Decision
    stuck: tuple[Job, ...] = ()  # jobs that cannot start with the GPUs they would get
    cramped: tuple[tuple[Job, int], ...] = ()  # jobs, and the most GPUs that each can use; other jobs may have the rest


def elsewhere(seen: Snapshot, decision: Decision) -> Elsewhere:
    """Return the decision with jobs kept off the servers and GPUs that they avoid."""
    placed: Placements = dict(decision.placements)
    shares = decision.shares.copy()
    free = ((1 << seen.view.total_gpus) - 1) & ~union(placed.values())
    stuck, cramped = [], []
    for row, gpus in decision.placements.items():
        job = seen.jobs[row]
        if not job.avoided.all:
            continue
        dark, wholly = _dark(seen, job)
        give = gpus & wholly or (0 if gpus & ~dark else 1 << (gpus.bit_length() - 1))
        if not give:
            continue
        if seen.view.per_server(row):
            give = seats(seen, gpus, give)
        better = instead(seen, row, gpus, give, free & ~dark)
        new = gpus & ~give | better
        if _is_refused(job):
            placed[row], shares[row] = new, new.bit_count()
            free = free & ~better | give
            if new.bit_count() < gpus.bit_count():
                cramped.append((job, new.bit_count()))
            continue
        if not new & ~dark or new.bit_count() < min(job.spec.gpus.min, gpus.bit_count()):
            if not holders(job):
                stuck.append(job)
            continue
        placed[row], shares[row] = new, new.bit_count()
        free = free & ~better | give
    if placed == decision.placements:
        return Elsewhere(decision, tuple(stuck), tuple(cramped))
    placed = {row: gpus for row, gpus in placed.items() if gpus}
    return Elsewhere(replace(decision, placements=placed, shares=shares), tuple(stuck), tuple(cramped))


def instead(seen: Snapshot, row: int, gpus: Gpus, give: Gpus, free: Gpus) -> Gpus:
    """Return free GPUs in exchange for `give`, of a kind that suits the job's other GPUs (`scheduler.kinds`).

    A job with a fixed number of GPUs per server gets that number on each new server.
    """
    able = free & seen.view.usable(row, gpus)
    each = seen.view.per_server(row)
    if not each:
        return some(give.bit_count(), able & seen.view.placements.get(row, 0), able)
    kept, has = gpus & ~give, seen.view.placements.get(row, 0)
    found = [
        some(each, able & server & has, able & server)
        for server in _servers(seen)
        if not kept & server and (able & server).bit_count() >= each
    ]
    return union(found[: give.bit_count() // each])


def seats(seen: Snapshot, gpus: Gpus, some_of_them: Gpus) -> Gpus:
    """Return those of `gpus` that are on the servers of `some_of_them`."""
    return gpus & union(server for server in _servers(seen) if server & some_of_them)


def _servers(seen: Snapshot) -> Sequence[Gpus]:
    return layout_of(tuple([len(server.gpus) for server in seen.view.servers])).masks


def _dark(seen: Snapshot, job: Job) -> tuple[Gpus, Gpus]:
    """Return the GPUs on which the job's first worker cannot start, and those on which none of its workers may.

    Once workers have the state, only the avoidances count that apply to all workers.
    """
    having = {entry.gpu for entry in holders(job)}
    lasting = (Avoidance.STAY, Avoidance.REFUSED)
    dark_servers = {
        server: job.avoided.servers[server].extent
        for server in job.avoided.servers_now
        if not having or job.avoided.servers[server].extent in lasting
    }
    dark_gpus = {
        gpu: avoided.extent for gpu, avoided in job.avoided.gpus.items() if avoided.until_s is not None and not having
    }
    dark, wholly = 0, 0
    for bit, gpu in enumerate(seen.gpus) if dark_servers or dark_gpus else ():
        extent = dark_servers.get(gpu.server) or dark_gpus.get(gpu)
        if extent is None or (extent is Avoidance.REFUSED and gpu in having):
            continue
        dark |= 1 << bit
        wholly |= 0 if extent is Avoidance.BEGIN else 1 << bit
    return dark, wholly


def _is_refused(job: Job) -> bool:
    """Return whether a worker of `job` was refused on some server, while other workers of the job have the state."""
    refused = any(job.avoided.servers[server].extent is Avoidance.REFUSED for server in job.avoided.servers_now)
    return refused and bool(holders(job))
