"""What is recorded of slow GPUs: which ones a job has left, for how long, and what is found afterwards (`slow_gpus`).

Theory of operation
-------------------
*Left.* The record of the GPU is written in the commit of the target that leaves it, so a new controller neither puts the
job back nor blames another GPU. The job does not use the GPU before FIRST_SLOW_BACK_OFF_S, which doubles with each GPU
that the job has left lately. (A script may be slow on its leader, which moves with every replacement.)

*Measured.* The next rate of steps that is measured without the GPU is compared with the rate before. If it is lower, the
job uses a GPU again that it has done without, and does not do without it before the same time.

*Back.* After that time the GPU is as good as any: a job that has done without it grows, and its leader tests again. The
time ends early if the agent had noted a cause (heat, power) that is gone, or when an operator trusts the GPU.

*Whose fault?* A script may be slow on some rank, so one job's finding takes the GPU from no other job. Findings are kept
for each server. If jobs of several owners have found the same GPU slow, the operator is told.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgspec import structs

from ...protocol.limits import STRAGGLER_FALSE_ALARMS
from ...protocol.messages import EventKind
from ...protocol.model import GpuAddress, ServerId, Steady, Straggler, WorkerPhase, WorkerStatus
from ...protocol.texts import span
from ...protocol.times import FIRST_SLOW_BACK_OFF_S, LONGEST_SLOW_BACK_OFF_S, SLOW_FINDING_KEPT_S
from ..cluster import Cluster
from ..jobs.job import Job
from ..jobs.records import SlowGpu, SlowGpuState
from ..records import SlowFinding
from .slow_gpus import costly

KEPT_SLOW_GPUS = 32  # of a job, the newest
KEPT_FINDINGS = 128  # of a server, the newest
OWNERS_THAT_AGREE = 2  # users with such findings on one GPU before the operator is told


def evidence(gpu: GpuAddress, found: Straggler, since: str = "") -> str:
    """Return in words how slow a worker on `gpu` is, how sure that is, and what it costs as far as that is proved."""
    text = (
        f"{found.worker} on {gpu} takes {found.slowdown:.1f} times as long as the others for a virtual worker{since} "
        f"({found.samples} samples; false alarms: at most one in {1.0 / STRAGGLER_FALSE_ALARMS:,.0f}), and hosts {found.hosts}"
    )
    if found.kept < 1.0:
        text += f"; steps are {found.kept:.2f} times as fast as with a sound GPU"
    return text + (f", and would be {found.without:.2f} times as fast without it" if found.without > 1.0 else "")


# ------------------------------------------------------------------------------------------------------------ a GPU is left


def note_left(cluster: Cluster, now: float, job: Job, target: Collection[GpuAddress]) -> str:
    """Record that `job` leaves the GPU of its slowest worker, if `target` does; return the reason, "" if it does not."""
    found, before = costly(job), job.record.target
    if found is None or not target or found[0] in target or found[0] not in before:
        return ""
    gpu, proof = found
    lately = [one for one in job.record.slow if now < one.left_s + LONGEST_SLOW_BACK_OFF_S]
    back_off_s = min(LONGEST_SLOW_BACK_OFF_S, FIRST_SLOW_BACK_OFF_S * 2.0 ** len(lately))
    new = sorted(str(other) for other in target if other not in before)
    order = job.committed_order
    assert order is not None
    entry = SlowGpu(
        gpu=gpu,
        evidence=proof,
        left_s=now,
        until_s=now + back_off_s,
        share=len(order.roster.members),
        step_s=_step_s(job.statuses[order.roster.leader], order.generation),
        generation=order.generation,
        replaced=bool(new),
    )
    others = [one for one in job.record.slow if one.gpu != gpu]
    job.update(slow=(*others, entry)[-KEPT_SLOW_GPUS:])
    how = f"its worker moves to {', '.join(new)}" if new else "the job goes on without it"
    cluster.history.add(
        now, EventKind.SLOW, job.id, f"leaves {gpu} for {span(back_off_s)}: {evidence(gpu, proof)}; {how}"
    )
    _blame(cluster, now, job, entry)
    return f"{gpu} is slow: {how}"


def _step_s(status: WorkerStatus, generation: int) -> float:
    """Return the median time of a generation's steps; 0: it is not known."""
    steady: Steady = status.steady
    return steady.step_s if steady.generation == generation else 0.0


def _blame(cluster: Cluster, now: float, job: Job, entry: SlowGpu) -> None:
    """Add the job's finding to those of the GPU's server. Tell the operator if jobs of several owners come to agree."""
    server, index = entry.gpu.server, entry.gpu.index
    known = [one for one in cluster.servers.slow.get(server, ()) if now < one.found_s + SLOW_FINDING_KEPT_S]
    before = {one.owner for one in known if one.gpu == index}
    finding = SlowFinding(
        gpu=index,
        job=job.id,
        owner=job.submission.owner,
        slowdown=entry.evidence.slowdown,
        samples=entry.evidence.samples,
        found_s=now,
        cause=_noted(cluster, entry.gpu),
    )
    others = [one for one in known if (one.gpu, one.job) != (index, job.id)]
    cluster.servers.record_slow(server, tuple([*others, finding][-KEPT_FINDINGS:]))
    owners = before | {finding.owner}
    if len(owners) >= OWNERS_THAT_AGREE > len(before):
        text = f"{entry.gpu} computes slowly in jobs of {len(owners)} users: " + "; ".join(told(cluster, server, index))
        cluster.history.add(now, EventKind.SLOW, None, text[:1000])


def _noted(cluster: Cluster, gpu: GpuAddress) -> str:
    """Return what the agent notes about a GPU that takes new work all the same, such as heat; "" if there is nothing."""
    session = cluster.servers.sessions.get(gpu.server)
    noted = session.troubles if session is not None else ()
    return "; ".join(one.text for one in noted if one.gpu == gpu.index and not one.severity.blocks_new_work)


def told(cluster: Cluster, server: ServerId, gpu: int) -> Iterator[str]:
    """Yield a phrase for each job that has found a GPU slow."""
    for one in cluster.servers.slow.get(server, ()):
        if one.gpu == gpu:
            because = f", {one.cause}" if one.cause else ""
            yield f"{one.job} ({one.slowdown:.1f} times as long as other GPUs, {one.samples} samples{because})"


# -------------------------------------------------------------------------------------------------- measured without the GPU


def judge_left(cluster: Cluster, now: float, job: Job, status: WorkerStatus, steps: int) -> None:
    """Compare the rate of steps without the GPU that the job has left last, once that is measured over `steps` steps.

    A job that has become slower uses the GPU again.
    """
    entry = job.record.slow[-1] if job.record.slow else None
    order, steady = job.committed_order, status.steady
    if entry is None or entry.state is not SlowGpuState.LEFT or entry.step_after_s or not entry.step_s:
        return
    if order is None or status.phase is not WorkerPhase.TRAINING or steady.generation != order.generation:
        return
    members = order.roster.members
    as_left = len(members) == entry.share - (not entry.replaced) and all(one.gpu != entry.gpu for one in members)
    if not as_left or order.generation <= entry.generation or steady.steps < steps:
        return
    entry = structs.replace(entry, step_after_s=steady.step_s)
    times = f"steps take {steady.step_s * 1e3:.0f} ms, {entry.step_s * 1e3:.0f} ms before"
    if not entry.replaced and steady.step_s > entry.step_s:
        until_s = now + entry.until_s - entry.left_s
        entry = structs.replace(entry, state=SlowGpuState.KEPT, until_s=until_s)
        text = f"is slower without {entry.gpu} ({times}), and uses it again"
        cluster.history.add(now, EventKind.SLOW, job.id, text)
    job.update(slow=(*job.record.slow[:-1], entry))


def pass_time(cluster: Cluster, now: float, job: Job) -> None:
    """Let a job use the GPUs again that it has left for long enough."""
    over = [one.gpu for one in job.record.slow if one.state is not SlowGpuState.TRIED and now >= one.until_s]
    if over:
        _try_again(cluster, now, job, over, "its time is over")


def lift(cluster: Cluster, now: float, server: ServerId, gpus: Collection[int], why: str) -> None:
    """Let all jobs use these GPUs of `server` again, and forget what they have found."""
    found = cluster.servers.slow.get(server, ())
    ended = [one for one in found if one.gpu in gpus]
    for finding in ended:
        job = cluster.jobs.get(finding.job)
        gpu = GpuAddress(server=server, index=finding.gpu)
        if job is not None and not job.final:
            over = [one.gpu for one in job.record.slow if one.state is not SlowGpuState.TRIED and one.gpu == gpu]
            _try_again(cluster, now, job, over, why)
    if ended:
        cluster.servers.record_slow(server, tuple(one for one in found if one not in ended))


def lift_causes(cluster: Cluster, now: float, server: ServerId) -> None:
    """Lift findings on GPUs for which the agent had noted a cause, such as heat, and notes none now."""
    caused = {one.gpu for one in cluster.servers.slow.get(server, ()) if one.cause}
    gone = {gpu for gpu in caused if not _noted(cluster, GpuAddress(server=server, index=gpu))}
    if gone:
        lift(cluster, now, server, gone, "what its agent had noted is over")


def _try_again(cluster: Cluster, now: float, job: Job, gpus: Collection[GpuAddress], why: str) -> None:
    entries = [structs.replace(one, state=SlowGpuState.TRIED) if one.gpu in gpus else one for one in job.record.slow]
    left = [one.gpu for one in job.record.slow if one.gpu in gpus and one.state is SlowGpuState.LEFT]
    job.update(slow=tuple(entries))
    for gpu in left:
        cluster.history.add(now, EventKind.SLOW, job.id, f"may use {gpu} again: {why}")


def sentences(now: float, job: Job) -> Iterator[str]:
    """Yield a sentence for each GPU that the job does not use, or does not do without, and until when."""
    for one in job.record.slow:
        rest = f"for {span(max(0.0, one.until_s - now))} more"
        took = f"; steps took {one.step_s * 1e3:.0f} ms, and take {one.step_after_s * 1e3:.0f} ms"
        measured = took if one.step_after_s else ""
        if one.state is SlowGpuState.LEFT:
            yield f"does not use {one.gpu} {rest}: {evidence(one.gpu, one.evidence)}{measured}"
        elif one.state is SlowGpuState.KEPT:
            yield f"does not do without {one.gpu} {rest}, though it is slow{measured}"
