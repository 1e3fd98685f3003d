"""Jobs that cannot work on some servers are tried on others.

Theory of operation
-------------------
Five things keep a job from a server, or a GPU, while it may be good for others:

* It does not see the job's checkpoint: the first worker ends with a code of its own (`protocol.exits`). The first worker hands
  the state on, so it is enough that this one is elsewhere (`generations.choose_leader`).
* The script has failed there before its first step, and nowhere else yet (`ends`): is it the script or the server? The job is
  tried without that server, and fails for good if it fails there too.
* The job's workers there cannot reach its workers on other servers, and it needs more GPUs than there are on one side
  (`ends.stop_cut_off`). A job that can go on with fewer GPUs does so, and avoids nothing. One that cannot be moved stays.
* A worker there was refused by those that have the state, since its code is not theirs (`newcomers.other_code`). The job does
  without the server, also where it has fewer GPUs than its minimum then.
* The script has failed at its start on one GPU, while it works on others of the same server (`health`). That is no reason to
  take the GPU from other users, and none to fail the job: the job is tried without it.

`Job.avoid` leaves a server alone, for that job, for a while. GPUs there are exchanged for free ones elsewhere: in the first two
cases as long as nobody holds the job's state. Where the free ones are too few the job takes less, and where that is less than
its minimum it waits, and holds nothing. Placement itself knows nothing of this: it happens seldom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...scheduler.pipeline import Decision
from ...scheduler.placement.fewest_servers import Placements, layout_of
from ...scheduler.sets import some, union
from ...scheduler.view import Gpus
from ..jobs.generations import holders
from ..jobs.job import Avoidance, Job
from .snapshot import Snapshot


@dataclass(frozen=True)
class Elsewhere:
    """A decision with such exchanges made."""

    decision: Decision
    stuck: tuple[Job, ...] = ()  # that cannot begin with what they would get
    cramped: tuple[
        tuple[Job, int], ...
    ] = ()  # that can do with so many GPUs, and no more: the others are there for others


def elsewhere(seen: Snapshot, decision: Decision) -> Elsewhere:
    """Keep jobs off the servers that they avoid."""
    placed: Placements = dict(decision.placements)
    shares = decision.shares.copy()
    free = ((1 << seen.view.total_gpus) - 1) & ~union(placed.values())
    stuck, cramped = [], []
    for row, gpus in decision.placements.items():
        job = seen.jobs[row]
        if not job.all_avoided:
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
    """Free GPUs for those that a job gives: like the others of its own (`scheduler.kinds`), and as many on each server."""
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
    """Those of `gpus` that are on the servers of some of them."""
    return gpus & union(server for server in _servers(seen) if server & some_of_them)


def _servers(seen: Snapshot) -> Sequence[Gpus]:
    return layout_of(tuple([len(server.gpus) for server in seen.view.servers])).masks


def _dark(seen: Snapshot, job: Job) -> tuple[Gpus, Gpus]:
    """The GPUs where `job` cannot begin, as long as that matters, and those of them where no worker of it may start."""
    having = {entry.gpu for entry in holders(job)}
    lasting = (Avoidance.STAY, Avoidance.REFUSED)
    dark_servers = {
        server: job.avoided[server].extent
        for server in job.avoided_servers
        if not having or job.avoided[server].extent in lasting
    }
    dark_gpus = {
        gpu: avoided.extent for gpu, avoided in job.avoided_gpus.items() if avoided.until_s is not None and not having
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
    """Is there a server where a worker of `job` was refused, which others of it have the state?"""
    refused = any(job.avoided[server].extent is Avoidance.REFUSED for server in job.avoided_servers)
    return refused and bool(holders(job))
