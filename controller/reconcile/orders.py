"""Orders: the next roster of a job is recorded, and sent to the agents of the job's workers."""

from __future__ import annotations

from ...protocol.messages import EventKind, Order
from ...protocol.model import GpuAddress, JobPhase, Member, Roster, ServerId, WorkerId
from ...protocol.texts import gpu_count
from .. import accounting
from ..cluster import Cluster
from ..jobs.generations import GiveOrder, broken_to_list, cannot_commit, choose_leader, gpu_place
from ..jobs.job import Job
from ..jobs.records import OrderRecord, WorkerRecord
from .processes import meeting_port
from .restarts import count_restart

KEPT_ORDERS = 64


def give_order(cluster: Cluster, now: float, job: Job, step: GiveOrder) -> None:
    """Give the job its next order: name the joining workers, choose the leader, record the order and send it to the agents.

    If no worker has the job's state any more, a restart is counted first, which may fail the job.
    """
    generation = job.record.generation + 1
    if step.fresh_start:
        accounting.restarted(cluster.jobs.usage, now, job)  # books the steps that a preempted job could not save
        if job.record.committed >= job.record.cycle:
            count_restart(cluster, now, job, "no worker with its state is left")
            if job.final:
                return
        job.end_wait_for_restart()
    members = tuple(
        Member(
            worker=slot.worker or _new_worker(job, slot.gpu, generation, slot.gpus),
            gpu=slot.gpu,
            gpus=slot.gpus,
            pace=job.record.paces.get(cluster.servers.gpu_name(slot.gpu), 1.0),
            place=gpu_place(
                session.server if (session := cluster.servers.sessions.get(slot.gpu.server)) else None, slot.gpu
            ),
        )
        for slot in step.slots
    )
    leader = choose_leader(job, tuple(member.worker for member in members))
    order = OrderRecord(
        roster=Roster(generation=generation, members=members, leader=leader),
        kind=step.kind,
        broken=broken_to_list(job),
        port=0 if job.elastic else meeting_port(cluster, members[0].gpu),
    )
    before = job.newest
    job.update(generation=generation, orders=_bounded(job, (*job.record.orders, order)), last_leader=None)
    _note_type(cluster, job, members)
    if job.record.phase is JobPhase.PENDING:
        job.enter(JobPhase.STARTING, now)
    gpus = [str(gpu) for member in members for gpu in member.all_gpus]
    text = f"generation {generation}: {gpu_count(len(gpus))}, {', '.join(gpus)}"
    if before is not None:
        text += f" (before: {gpu_count(len(before.roster.members))})"
    cluster.history.add(now, EventKind.ORDERED, job.id, text)
    cluster.jobs.mark_dirty(job)
    job.orders_sent(now)
    send_order(cluster, job)


def _note_type(cluster: Cluster, job: Job, members: tuple[Member, ...]) -> None:
    """Record the GPU model on which a job starts; once the job has made progress, it keeps to that model (`scheduler.kinds`)."""
    if job.record.gpu_name and (job.record.progressed or job.record.committed >= job.record.cycle):
        return
    name = cluster.servers.gpu_name(members[0].gpu)
    if name and name != job.record.gpu_name:
        job.update(gpu_name=name)


def _bounded(job: Job, orders: tuple[OrderRecord, ...]) -> tuple[OrderRecord, ...]:
    """Return the committed order and all later ones.

    If there are more than KEPT_ORDERS, the first later order that cannot be committed any more is dropped.
    """
    kept = tuple(order for order in orders if order.generation >= job.record.committed)
    if len(kept) <= KEPT_ORDERS:
        return kept
    later = [order for order in kept[:-1] if order.generation > job.record.committed]
    gone = next((order for order in later if cannot_commit(job, order)), later[0])
    return tuple(order for order in kept if order is not gone)


def _new_worker(job: Job, gpu: GpuAddress, generation: int, gpus: tuple[int, ...]) -> WorkerId:
    worker = WorkerId(f"{job.id}.{job.record.worker_count}")
    entry = WorkerRecord(worker=worker, gpu=gpu, generation=generation, gpus=gpus, attempt=job.record.restarts + 1)
    job.put_worker(entry)
    job.update(worker_count=job.record.worker_count + 1)
    return worker


def leader_address(job: Job) -> str:
    """Return the address at which the other workers of the newest order reach its leader; "" if it is not known yet."""
    status = job.statuses.get(job.newest.roster.leader) if job.newest is not None else None
    return status.address if status is not None else ""


def order_message(job: Job) -> Order | None:
    """Return the message of the job's newest order; None if there is no order."""
    newest = job.newest
    if newest is None:
        return None
    return Order(
        job=job.id,
        roster=newest.roster,
        leader_address=leader_address(job),
        broken=newest.broken,
        uid=job.uid,
        batch_factor=job.record.batch_factor,
    )


def send_order(cluster: Cluster, job: Job) -> None:
    """Send the newest order to the agents of all servers with workers of the job, those not started yet included."""
    message = order_message(job)
    if message is None:
        return
    job.address_sent(message.leader_address)
    servers: dict[ServerId, None] = {entry.gpu.server: None for entry in job.workers}
    for server in servers:
        cluster.servers.send(server, message)
