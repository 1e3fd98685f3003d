"""Jobs that begin from a checkpoint need one GPU, their first, on a server that sees it.

Theory of operation
-------------------
A job's first worker loads the checkpoint and hands the state on, so it is enough that one of its servers sees the directory.
One that does not ends its worker with a code of its own (`protocol.exits`); the controller then leaves the server alone, for
this job, for a while (`Job.lose_sight`). As long as there are such servers, and nobody holds the state: the leader is chosen
among the others (`generations.choose_leader`), and a job that was placed on such servers alone gets one free GPU elsewhere in
exchange. Where there is none it waits, and holds nothing. Placement itself knows nothing of this: it happens seldom.
"""

from __future__ import annotations

from dataclasses import replace

from .generations import holders
from .jobs import Job
from .outlook import Outlook
from .scheduling.pipeline import Decision
from .scheduling.placement import Placements
from .scheduling.sets import some, union


def in_sight(seen: Outlook, decision: Decision) -> tuple[Decision, tuple[Job, ...]]:
    """The decision with such exchanges made, and the jobs that cannot begin with what they would get."""
    placed: Placements = dict(decision.placements)
    free = ((1 << len(seen.gpus)) - 1) & ~union(placed.values())
    waiting = []
    for row, gpus in decision.placements.items():
        job = seen.jobs[row]
        dark = _dark(seen, job)
        if not dark or gpus & ~dark:
            continue
        better = some(1, free & ~dark & seen.view.placements.get(row, 0), free & ~dark)
        if not better:
            waiting.append(job)
            continue
        given = 1 << (gpus.bit_length() - 1)
        placed[row] = gpus & ~given | better
        free = free & ~better | given
    return (replace(decision, placements=placed) if placed != decision.placements else decision), tuple(waiting)


def _dark(seen: Outlook, job: Job) -> int:
    """The GPUs where the checkpoint of `job` is not seen, as long as that matters."""
    blind = job.blind_servers
    if not blind or holders(job):
        return 0
    return sum(1 << bit for bit, gpu in enumerate(seen.gpus) if gpu.server in blind)
