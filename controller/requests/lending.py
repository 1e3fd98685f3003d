"""Loans of GPUs to users outside the cluster for some time, such as a service for inference (EasyScale 5.3).

A loan is a drain of single GPUs that ends by itself. Jobs leave the GPUs as in a drain: a job that can run on fewer
GPUs shrinks, which takes a step; others move; and jobs for which no GPU is left save their state and wait. When the
loan ends, they grow again.

Free GPUs are lent first, then those of elastic jobs, on as few servers as possible. Gangs keep theirs. GPUs that
deadlines of jobs need are not lent, unless the request forces it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ...protocol.errors import RequestRefused, UserError
from ...protocol.messages import EventKind, GpusLent, LendGpus, LoanEnded
from ...protocol.model import CordonKind, GpuAddress
from ...protocol.texts import gpu_count, span
from ..cluster import Cluster
from ..events import ClientRequest
from ..loans import RESERVATION, lent
from ..reconcile.deadline_admission import broken_without
from ..reconcile.tainted import give_back, refresh_taints
from ..records import Cordon
from ..taints import NOTHING_OVERRULED
from .authority import by
from .servers import MOST_REASON

LONGEST_S = 31 * 86_400.0
NAMED = 5  # most jobs named in a refusal


def lend(cluster: Cluster, now: float, asked: ClientRequest, request: LendGpus) -> GpusLent | None:
    """Choose GPUs for a loan, and have jobs leave them.

    Return None if the controller has just started and waits for its servers. Raises UserError, RequestRefused.
    """
    if request.gpus < 1:
        raise UserError(f"{request.gpus} GPUs cannot be lent: at least 1")
    if not 1 <= request.for_s <= LONGEST_S:
        raise UserError(f"GPUs cannot be lent for {request.for_s:g} s: 1 s to {LONGEST_S / 86_400:.0f} days")
    if len(request.reason) > MOST_REASON or not request.reason.isprintable():
        raise UserError(f"a reason is one line of at most {MOST_REASON} characters")
    if cluster.servers.awaited:
        return None
    gpus = _chosen(cluster, request.gpus)
    if not request.force and (broken := broken_without(cluster, now, gpus, now + request.for_s)):
        more = f" and {len(broken) - NAMED} more" if len(broken) > NAMED else ""
        names = ", ".join(broken[:NAMED]) + more
        raise RequestRefused(
            f"without {gpu_count(request.gpus)} the deadlines of {names} would be missed: --force lends all the same"
        )
    loan, until_s = f"loan-{cluster.history.next_number}", now + request.for_s
    because = f": {request.reason}" if request.reason else ""
    take(cluster, now, gpus, loan, f"lent ({loan}){because}"[:MOST_REASON], str(asked.who), until_s)
    where = ", ".join(map(str, gpus))
    text = f"{gpu_count(len(gpus))} lent for {span(request.for_s)} as {loan}{by(asked.who)}: {where}{because}"
    cluster.history.add(now, EventKind.LENT, None, text[:1000])
    cluster.clients.audit(now, asked, "lend GPUs", loan, text[:1000])
    return GpusLent(loan=loan, gpus=gpus, until_s=until_s, time_s=now)


def take(
    cluster: Cluster, now: float, gpus: Sequence[GpuAddress], loan: str, reason: str, by_whom: str, until_s: float
) -> tuple[GpuAddress, ...]:
    """Have jobs leave these GPUs until `until_s` (Unix time); return the GPUs in the order of servers."""
    for server in dict.fromkeys(gpu.server for gpu in gpus):
        before = cluster.servers.overruled.get(server, NOTHING_OVERRULED)
        here = [gpu.index for gpu in gpus if gpu.server == server]
        cordons = [
            Cordon(
                gpu=index,
                reason=reason,
                by=by_whom,
                since_s=now,
                kind=CordonKind.DRAIN_BY_PREEMPTING,
                loan=loan,
                until_s=until_s,
            )
            for index in here
        ]
        cluster.servers.record_overruled(server, replace(before, cordons=(*before.cordons, *cordons)))
        refresh_taints(cluster, now, server, reported=True)
    return tuple(sorted(gpus, key=lambda gpu: (gpu.server, gpu.index)))


def end_loan(cluster: Cluster, now: float, asked: ClientRequest, loan: str) -> LoanEnded:
    """End a loan and use its GPUs again. Raises UserError, RequestRefused."""
    if any(loan == RESERVATION + one.name for one in cluster.planning.decider.scheduler.stages.reservations):
        raise RequestRefused(
            f"{loan} is a reservation of the policy file: take it out there (`elasticctl policy set FILE`)"
        )
    gpus = _ended(cluster, now, loan) if loan else ()
    if not gpus:
        raise UserError(f"there is no loan {loan[:80]!r}: `elasticctl servers` shows which there are")
    text = f"{loan} is over{by(asked.who)}: {gpu_count(len(gpus))} used again"
    cluster.history.add(now, EventKind.LOAN_ENDED, None, text)
    cluster.clients.audit(now, asked, "end loan", loan, text)
    return LoanEnded(loan=loan, gpus=gpus)


def end_loans(cluster: Cluster, now: float) -> None:
    """End the loans that are due."""
    over = {cordon.loan for _, cordon in lent(cluster) if cordon.until_s is not None and cordon.until_s <= now}
    for loan in sorted(over):
        gpus = _ended(cluster, now, loan)
        cluster.history.add(
            now, EventKind.LOAN_ENDED, None, f"{loan} is over, as agreed: {gpu_count(len(gpus))} used again"
        )


def loans_end(cluster: Cluster) -> Iterator[float]:
    """Return the ends of all loans (Unix times)."""
    return (cordon.until_s for _, cordon in lent(cluster) if cordon.until_s is not None)


def _ended(cluster: Cluster, now: float, loan: str) -> tuple[GpuAddress, ...]:
    gpus = tuple(
        GpuAddress(server=server, index=cordon.gpu)
        for server, cordon in lent(cluster)
        if cordon.loan == loan and cordon.gpu is not None
    )
    give_back(cluster, now, loan, gpus)
    return gpus


def _chosen(cluster: Cluster, count: int) -> tuple[GpuAddress, ...]:
    """Return `count` GPUs that can be lent. Raises RequestRefused if there are too few."""
    able = able_to_lend(cluster)
    if len(able) < count:
        gangs = {gpu for job in cluster.jobs.index.live.values() if job.gang for gpu in job.own_gpus}
        total = sum(len(session.server.gpus) for session in cluster.servers.sessions.values() if session.alive)
        away = sum(
            cluster.servers.sessions[server].alive for server, _ in lent(cluster) if server in cluster.servers.sessions
        )
        kept = (
            [f"{len(gangs)} {'belong' if len(gangs) > 1 else 'belongs'} to jobs that cannot be resized"]
            if gangs
            else []
        )
        kept += [f"{away} {'are' if away > 1 else 'is'} lent or reserved"] if away else []
        numbers = "; ".join([f"{len(able)} of {total} can be had", *kept])
        raise RequestRefused(f"{gpu_count(count)} cannot be lent: {numbers}")
    return tuple(sorted(able[:count], key=lambda gpu: (gpu.server, gpu.index)))


def able_to_lend(cluster: Cluster) -> list[GpuAddress]:
    """Return the GPUs that can be lent, in the order of lending: idle ones first, on as few servers as possible."""
    gangs = {gpu for job in cluster.jobs.index.live.values() if job.gang for gpu in job.own_gpus}
    taken = {gpu for job in cluster.jobs.index.live.values() for gpu in (*job.own_gpus, *job.running_gpus)}
    there = [
        GpuAddress(server=name, index=gpu.index)
        for name, session in sorted(cluster.servers.sessions.items())
        if session.alive and not session.unknown
        for gpu in session.server.gpus
    ]
    able = [gpu for gpu in there if cluster.servers.usable(gpu) and gpu not in gangs]
    free = {
        server: sum(gpu.server == server and gpu not in taken for gpu in able)
        for server in {gpu.server for gpu in able}
    }
    able.sort(key=lambda gpu: (gpu in taken, -free[gpu.server], gpu.server, gpu.index))
    return able
