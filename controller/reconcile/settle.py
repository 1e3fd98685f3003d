"""From what is wanted to what runs: scheduling, orders, starts and stops (scheduling.md; worker-runtime 4).

`settle` is called once per loop turn, however many events came: one scheduling decision, then every job that something has
happened to is brought nearer to its target, then workers whose GPUs have become free are started.
"""

from __future__ import annotations

import math
from functools import partial

from ...protocol.messages import EventKind, Order, StartWorker, StopWorker
from ...protocol.model import Fault, GpuAddress, JobId, JobPhase, Member, Roster, ServerId, WorkerId, WorkerPhase
from ...protocol.texts import gpu_count
from ...protocol.times import LEAVING_PATIENCE_S, POLICY_RETRY_S, REST_S, STOP_GRACE_S
from ...scheduler.placement.fewest_servers import in_order
from ...scheduler.plan import standstill
from ...scheduler.sets import union
from ..cluster import Cluster
from ..intake.restored import furthest
from ..jobs.generations import (
    GiveOrder,
    StartAgain,
    broken_to_list,
    choose_leader,
    doomed,
    gpu_place,
    holders,
    next_step,
    unneeded,
)
from ..jobs.job import Job, Saving
from ..jobs.records import OrderRecord, WorkerRecord, WorkerState
from .deciding import PolicyFailed, decided
from .profiling import profile_jobs
from .saving import save_grace_s, see_to_saving, turn_of
from .snapshot import Snapshot, snapshot

KEPT_ORDERS = 64
KEPT_POLICY_FAILURES = 64


def settle(cluster: Cluster, now: float, at_once: bool = False) -> None:
    """Bring everything as near to what is wanted as can be done now. `at_once`: decide, however lately that was."""
    if cluster.awaited:
        return  # too little is known yet
    if cluster.plan_unfinished and not cluster.index.anyone_astray:
        cluster.schedule_due = True
    if cluster.schedule_due and (at_once or cluster.may_decide(now)):
        _schedule(cluster, now)
    _steer_dirty(cluster, now)
    if cluster.schedule_due and cluster.may_decide(now):  # a job has ended meanwhile, or has given GPUs back
        _schedule(cluster, now)
        _steer_dirty(cluster, now)
    _start_waiting(cluster, now)


def _steer_dirty(cluster: Cluster, now: float) -> None:
    for name in cluster.take_dirty():
        if (job := cluster.jobs.get(name)) is not None:
            _steer(cluster, now, job)


# ------------------------------------------------------------------------------------------------------------- scheduling


def _schedule(cluster: Cluster, now: float) -> None:
    cluster.schedule_due, cluster.decided_s = False, now
    seen = snapshot(cluster, now)
    if tangled := standstill(seen.held, seen.view.placements):
        _stay(cluster, now, seen, tangled)
        seen = snapshot(cluster, now)
    without: dict[JobId, None] = {}
    try:
        found = decided(cluster.decider.scheduler, seen, cluster.rng)
        while found.stuck:  # at most once for each job that waits for another server
            for job in found.stuck:
                without[job.id] = None
                _wait_elsewhere(cluster, now, job)
            seen = snapshot(cluster, now, without)
            found = decided(cluster.decider.scheduler, seen, cluster.rng)
    except PolicyFailed as failure:
        _keep_plan(cluster, now, seen, failure)
        return
    cluster.policy_trouble = ""
    cluster.review_s = found.decision.review_s if found.decision.review_s > now else math.inf
    for row, job in enumerate(seen.jobs):
        job.why_waiting = partial(found.why, row)
    cluster.plan_unfinished = found.unfinished
    for change in found.changes:
        job = seen.jobs[change.row]
        _retarget(cluster, now, job, in_order(change.gpus, seen.gpus, job.record.target))
    profile_jobs(cluster, now, seen, found.decision)


def _keep_plan(cluster: Cluster, now: float, seen: Snapshot, failure: PolicyFailed) -> None:
    """Jobs train on where they are; the policy is asked again when something happens, or after a while."""
    cluster.policy_trouble = f"{failure}; the last plan is kept"
    cluster.review_s = now + POLICY_RETRY_S
    cluster.plan_unfinished = False
    for job in seen.jobs:
        job.why_waiting = partial(_trouble, cluster.policy_trouble if not job.record.target else "")
    if failure.where not in cluster.policy_failures and len(cluster.policy_failures) < KEPT_POLICY_FAILURES:
        cluster.policy_failures.add(failure.where)
        cluster.tell(now, EventKind.POLICY_FAILED, None, cluster.policy_trouble)
        cluster.warn(cluster.policy_trouble)


def _trouble(text: str) -> str:
    return text


def _wait_elsewhere(cluster: Cluster, now: float, job: Job) -> None:
    """No server on which `job` may begin has a GPU for it: it holds none meanwhile."""
    if job.record.target:
        job.update(target=())
        job.profiling = None
        suspend(cluster, now, job)


def _stay(cluster: Cluster, now: float, seen: Snapshot, tangled: frozenset[int]) -> None:
    """Jobs that wait for each other's GPUs are to be where they are; who was to have one of those is not to have it."""
    theirs = {row: seen.running[row] for row in tangled}
    taken = union(theirs.values())
    for row, before in seen.view.placements.items():
        wanted = theirs.get(row, before & ~taken)
        if wanted != before:
            job = seen.jobs[row]
            _retarget(cluster, now, job, in_order(wanted, seen.gpus, job.record.target))


def _retarget(cluster: Cluster, now: float, job: Job, target: tuple[GpuAddress, ...]) -> None:
    job.update(target=target)
    job.profiling = None
    cluster.mark_dirty(job)
    if not target:
        how = "; its state is saved first" if holders(job) else " before it has begun"
        cluster.tell(now, EventKind.PREEMPTED, job.id, f"gives all its GPUs back{how}")
        suspend(cluster, now, job)


def suspend(cluster: Cluster, now: float, job: Job, saver: WorkerId | None = None) -> None:
    """Stop all workers of a job that has no GPU any more, and have one save its state; it waits for the scheduler.

    `saver`: who does; None: whoever leads those that have the state.
    """
    able = tuple(entry.worker for entry in holders(job))
    if saver is None:
        saver = choose_leader(job, able) if able else None
    job.saving = Saving(saver)
    for entry in job.record.workers:
        if not entry.stopping:
            stop_worker(cluster, now, job, entry.worker)
    job.saving.until_s = turn_of(job, saver, now)
    committed = job.committed_order
    leads = committed is not None and committed.roster.leader == saver
    job.update(orders=(), broken=(), cycle=job.record.generation + 1, last_leader=saver if leads else None)
    job.restart_at = None
    job.enter(JobPhase.PENDING, now)
    cluster.mark_dirty(job)


def stop_worker(cluster: Cluster, now: float, job: Job, worker: WorkerId) -> None:
    """Stop a worker's process; one that was never started is forgotten."""
    entry = job.worker(worker)
    if entry is None:
        return
    cluster.mark_dirty(job)
    if entry.state is WorkerState.ORDERED:
        job.drop_unstarted(worker)
        return
    still_saves = entry.stopping and job.newest is None  # the job may have been given GPUs again meanwhile
    save = not job.final and (still_saves or not job.record.target)
    grace_s = save_grace_s(job) if save else STOP_GRACE_S
    by_s = now + grace_s if entry.stop_by_s is None else min(entry.stop_by_s, now + grace_s)
    job.update_worker(worker, stopping=True, stop_by_s=by_s)
    stop = StopWorker(
        job=job.id,
        worker=worker,
        grace_s=grace_s,
        save=save,
        saver=job.saving.saver if save else None,
        stand_by=save,
        saved=job.saving.dismissed.get(worker) if save else None,
        uid=job.uid,
    )
    cluster.send(entry.gpu.server, stop)


# --------------------------------------------------------------------------------------------------------------- one job


def _steer(cluster: Cluster, now: float, job: Job) -> None:
    if job.final:
        return
    if job.record.overtaken:
        job.update(overtaken=False, target=())
        job.profiling = None
        cluster.schedule_due = True
        suspend(cluster, now, job, furthest(job))
    step = next_step(job, cluster.gpu_free)
    if isinstance(step, StartAgain):
        _start_again(cluster, now, job)
        step = next_step(job, cluster.gpu_free) if not job.final and job.newest is None else None
    if isinstance(step, GiveOrder):
        _order(cluster, now, job, step)
    if not job.final:
        _stop_unneeded(cluster, now, job)
        see_to_saving(cluster, now, job)


def _order(cluster: Cluster, now: float, job: Job, step: GiveOrder) -> None:
    """Give the next order: name the newcomers, choose the leader, write it down, tell everyone concerned."""
    generation = job.record.generation + 1
    if step.fresh_start:
        if job.record.committed >= job.record.cycle:
            count_restart(cluster, now, job, "no worker with its state is left")
            if job.final:
                return
        job.restart_at = None
    members = tuple(
        Member(
            worker=place.worker or _new_worker(job, place.gpu, generation),
            gpu=place.gpu,
            place=gpu_place(session.server if (session := cluster.sessions.get(place.gpu.server)) else None, place.gpu),
        )
        for place in step.places
    )
    leader = choose_leader(job, tuple(member.worker for member in members))
    order = OrderRecord(
        roster=Roster(generation=generation, members=members, leader=leader),
        kind=step.kind,
        broken=broken_to_list(job),
    )
    before = job.newest
    job.update(generation=generation, orders=_bounded(job, (*job.record.orders, order)), last_leader=None)
    if job.record.phase is JobPhase.PENDING:
        job.enter(JobPhase.STARTING, now)
    text = f"generation {generation}: {gpu_count(len(members))}, {', '.join(str(member.gpu) for member in members)}"
    if before is not None:
        text += f" (before: {gpu_count(len(before.roster.members))})"
    cluster.tell(now, EventKind.ORDERED, job.id, text)
    cluster.mark_dirty(job)
    job.told_s = now
    send_order(cluster, job)


def _bounded(job: Job, told: tuple[OrderRecord, ...]) -> tuple[OrderRecord, ...]:
    """The committed order and all later ones. If these are too many, without the first that cannot be committed any more."""
    kept = tuple(order for order in told if order.generation >= job.record.committed)
    if len(kept) <= KEPT_ORDERS:
        return kept
    later = [order for order in kept[:-1] if order.generation > job.record.committed]
    gone = next((order for order in later if doomed(job, order)), later[0])
    return tuple(order for order in kept if order is not gone)


def _new_worker(job: Job, gpu: GpuAddress, generation: int) -> WorkerId:
    worker = WorkerId(f"{job.id}.{job.record.worker_count}")
    entry = WorkerRecord(worker=worker, gpu=gpu, generation=generation)
    job.update(worker_count=job.record.worker_count + 1, workers=(*job.record.workers, entry))
    return worker


def leader_address(job: Job) -> str:
    """Where the newest order's followers find their leader; empty: not known yet."""
    status = job.statuses.get(job.newest.roster.leader) if job.newest is not None else None
    return status.address if status is not None else ""


def order_message(job: Job) -> Order | None:
    """The newest order, as it is sent."""
    newest = job.newest
    if newest is None:
        return None
    return Order(
        job=job.id, roster=newest.roster, leader_address=leader_address(job), broken=newest.broken, uid=job.uid
    )


def send_order(cluster: Cluster, job: Job) -> None:
    """Send the newest order to every agent that has a worker of the job, or is to have one."""
    message = order_message(job)
    if message is None:
        return
    job.sent_address = message.leader_address
    servers: dict[ServerId, None] = {entry.gpu.server: None for entry in job.record.workers}
    for server in servers:
        cluster.send(server, message)


def _stop_unneeded(cluster: Cluster, now: float, job: Job) -> None:
    found = unneeded(job)
    names = {entry.worker for entry in found}
    for worker in [worker for worker in job.leaving_since if worker not in names]:
        del job.leaving_since[worker]
    for entry in found:
        status = job.statuses.get(entry.worker)
        leaving = status is not None and status.phase in (WorkerPhase.TRAINING, WorkerPhase.LEFT, WorkerPhase.FINISHED)
        since = job.leaving_since.setdefault(entry.worker, now)
        if not leaving or now >= since + LEAVING_PATIENCE_S:
            job.leaving_since.pop(entry.worker, None)
            stop_worker(cluster, now, job, entry.worker)


# -------------------------------------------------------------------------------------------------------------- restarts


def _start_again(cluster: Cluster, now: float, job: Job) -> None:
    """No worker is left. Wait a while, then order new ones; or give up."""
    restart_at = job.restart_at
    if restart_at is None:
        count_restart(cluster, now, job, "no worker is left")
        if job.final:
            return
        restart_at = job.wait_for_restart(now)
        job.enter(JobPhase.STARTING, now)
        cluster.mark_dirty(job)
    if not job.record.target:
        suspend(cluster, now, job)
    elif now >= restart_at:
        job.restart_at = None
        job.update(orders=(), broken=())


def count_restart(cluster: Cluster, now: float, job: Job, why: str) -> None:
    """All workers of a job are gone. Only what may be the script's fault counts against it, as long as it gets no further:

    * two restarts in a row after errors of the script alone;
    * more than `max_restarts` in a row (10 by default) after its workers were killed by signals that nobody here has sent, or
      for their silence. A script that needs more memory than there is ends so; a few kills by an operator do not fail it.

    A lost server, or one that could not start its workers, is nobody's fault here, and both counts begin anew.
    """
    kept = job.record
    ended = [
        entry
        for entry in kept.past
        if entry.generation >= kept.cycle and entry.fault not in (None, Fault.NONE, Fault.STOPPED)
    ]
    faults = {entry.fault for entry in ended}
    further = job.best_applied > kept.best_at_restart
    vain = 1 if further else kept.restarts_in_vain + 1
    failures = ((0 if further else kept.failures_in_vain) + 1) if faults == {Fault.SCRIPT} else 0
    theirs = not faults or bool(faults & {Fault.SERVER, Fault.LOST})
    deaths = 0 if theirs else (0 if further else kept.deaths_in_vain) + 1
    job.update(
        restarts=kept.restarts + 1,
        restarts_in_vain=vain,
        failures_in_vain=failures,
        deaths_in_vain=deaths,
        best_at_restart=max(kept.best_at_restart, job.best_applied),
        cycle=kept.generation + 1,
    )
    job.newest_progress = None
    job.start_failures = 0
    last = ended[-1] if ended else None
    because = f"{last.worker}: {last.reason}" if last is not None else why
    if failures >= 2 and last is not None:
        end_job(cluster, now, job, JobPhase.FAILED, f"it fails again and again: {because}", last.exit_code)
    elif deaths > cluster.settings.max_restarts:
        text = f"given up: its workers were killed {deaths} times in a row and it got no further; last: {because}"
        end_job(cluster, now, job, JobPhase.FAILED, text, last.exit_code if last is not None else None)
    else:
        cluster.tell(now, EventKind.RESTARTED, job.id, f"starts again from its last checkpoint: {because}")


def end_job(cluster: Cluster, now: float, job: Job, phase: JobPhase, reason: str, exit_code: int | None = None) -> None:
    """A job is over. Its workers are stopped; those of a finished one have a moment to end by themselves."""
    job.enter(phase, now, reason, exit_code)
    texts = {JobPhase.FINISHED: "finished", JobPhase.FAILED: f"failed: {reason}", JobPhase.CANCELLED: "cancelled"}
    cluster.tell(now, EventKind(phase.value), job.id, texts[phase])
    if job.record.measured:
        cluster.record_throughput(now, job)
    cluster.schedule_due = True
    cluster.mark_dirty(job)
    for entry in job.record.workers:
        if entry.state is WorkerState.ORDERED:
            job.drop_unstarted(entry.worker)
        elif phase is not JobPhase.FINISHED:
            stop_worker(cluster, now, job, entry.worker)
    if phase is JobPhase.FINISHED and job.record.workers:
        job.stop_rest_at = now + REST_S


# ---------------------------------------------------------------------------------------------------------------- starts


def _start_waiting(cluster: Cluster, now: float) -> None:
    """Start the workers whose place is ordered and whose GPU no process holds any more."""
    for job in cluster.index.unstarted():
        for entry in job.record.workers:
            if entry.state is WorkerState.ORDERED and cluster.gpu_free(entry.gpu):
                job.told_s = now
                job.update_worker(entry.worker, state=WorkerState.STARTED)
                cluster.mark_dirty(job)
                send_start(cluster, job, entry)


def send_start(cluster: Cluster, job: Job, entry: WorkerRecord) -> None:
    message = StartWorker(
        job=job.id,
        worker=entry.worker,
        gpu=entry.gpu.index,
        spec=job.spec,
        generation=entry.generation,
        checkpoint_step=job.record.saved_step,
        uid=job.uid,
        session=cluster.sessions[entry.gpu.server].name,
    )
    cluster.send(entry.gpu.server, message)
