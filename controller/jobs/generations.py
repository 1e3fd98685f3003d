"""Choice of the next roster of a job: a pure function of the record and of the workers' reports.

Theory of operation
-------------------
The scheduler sets a *target*; `next_step` returns the next step towards it. The function is called after every change
and is level-triggered: it depends on the present state and not on the last event, so lost or repeated events cannot
mislead it.

* **Losses come first.** When a member of a generation is lost, all its members stand still. The next order names only
  the survivors. They need no worker that is still starting, so training continues at once. Growing back is a second
  order.
* **The state is never dropped.** If a roster would keep no worker with the state, the union of the old and the new
  roster precedes it.
* **No order waits for another job.** An order for a job with state never names a GPU on which a process still runs. The
  job first gives up GPUs, and grows when the new ones are free. Otherwise two jobs that exchange GPUs would deadlock.
* **Lent GPUs are left at once**, as far as the job can run on the rest: the workers elsewhere go on alone with the next
  step. Only then does the job move or grow. Otherwise the borrower of the GPU would wait until joining workers have
  started.
* **Joining workers are kept** when an order replaces another: a worker still starting on a wanted GPU takes that place.
* **The leader stays** while it can. Otherwise the new leader is the member with the state that is furthest ahead, of
  lowest rank. A leader without the state could not propose a commit to the members that train.
* **A gang** (a job that has not called `elastic.join()`) is ordered as a whole, and not changed once it has begun
  (`reconcile.gangs`).
* **Broken generations** are listed in every order while any worker might still be in one.

The leader of a superseded order may still commit it, if it proposed the commit before it received the next order.
`cannot_commit` returns whether that has become impossible. Only then are the joining workers of the order stopped
(CoDDL 4.3: a worker leaves only when all know).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec

from ...protocol.model import GpuAddress, GpuPlace, Processes, Server, ServerId, WorkerId, WorkerPhase
from .job import Job
from .records import OrderKind, OrderRecord, WorkerRecord, WorkerState

FIRST_STEPS = 2  # steps of a joining worker: it receives the state in the first, and computes a share of the second
STANDING_STILL = (WorkerPhase.READY, WorkerPhase.BROKEN)


@dataclass(frozen=True)
class RosterSlot:
    """One rank of the next roster: a GPU, and the worker there; None for a new worker."""

    gpu: GpuAddress
    worker: WorkerId | None
    gpus: tuple[int, ...] = ()  # as `WorkerRecord.gpus`


@dataclass(frozen=True)
class GiveOrder:
    """Order of this roster.

    `fresh_start`: no worker has the state, so training begins from a checkpoint or from the start.
    """

    slots: tuple[RosterSlot, ...]
    kind: OrderKind
    fresh_start: bool = False


@dataclass(frozen=True)
class StartAgain:
    """Restart from the last checkpoint, because no worker is left."""


Step = GiveOrder | StartAgain | None


def usable(job: Job, worker: WorkerId) -> bool:
    """Return whether `worker` may be in a roster."""
    entry = job.worker(worker)
    if entry is None or entry.stopping:
        return False
    status = job.statuses.get(worker)
    return status is None or not status.phase.over


def holds_state(job: Job, worker: WorkerId) -> bool:
    """Return whether `worker` has the job's state.

    Until the worker has reported to this controller, its record decides.
    """
    if not usable(job, worker):
        return False
    status = job.statuses.get(worker)
    if status is None:
        entry = job.worker(worker)
        return entry is not None and entry.trained
    return status.phase.may_have_state and status.applied is not None


def arrived(job: Job, worker: WorkerId) -> bool:
    """Return whether `worker` can follow an order at once, without starting up first."""
    status = job.statuses.get(worker)
    if status is None:
        return holds_state(job, worker)
    return usable(job, worker) and status.phase is not WorkerPhase.STARTING


def ending(job: Job) -> bool:
    """Return whether a worker has reached the end of the training loop. Then the job follows no more orders.

    A worker that ended after the loop counts as long as another worker with the state is on its way there. If that one
    needs the others for a last step, it reports a broken communicator and gets an order.
    """
    worker_sets = job.worker_sets
    if worker_sets.finished:
        return True
    if not any(entry.finished and entry.generation >= job.record.cycle for entry in job.record.past):
        return False
    return not worker_sets.broken and bool(worker_sets.holding)


def anyone_holds(job: Job) -> bool:
    """Return whether any worker has the state."""
    return bool(job.worker_sets.holding)


def holders(job: Job) -> tuple[WorkerRecord, ...]:
    """Return the workers with the state: members of the newest roster in the order of ranks, then others by age."""
    newest, holding = job.newest, job.worker_sets.holding
    if not holding:
        return ()
    ranks = {worker: rank for rank, worker in enumerate(newest.roster.workers)} if newest else {}
    found = [entry for entry in job.workers if entry.worker in holding]
    return tuple(sorted(found, key=lambda entry: ranks.get(entry.worker, len(ranks))))


def next_step(job: Job, free: Callable[[GpuAddress], bool], at_once: Collection[GpuAddress]) -> Step:
    """Return the step that brings an unfinished job nearer to its target; None if there is nothing to do now.

    `free(gpu)`: no process is on the GPU. `at_once`: GPUs that the job must leave as soon as possible.
    """
    if ending(job):
        return None
    newest = job.newest
    if not job.elastic and newest is not None:
        return _of_gang(job, newest)
    if newest is None:
        if any(entry.stopping and (entry.trained or entry.fault is None) for entry in job.workers):
            # These workers may be saving the state; a worker that hangs at its start, perhaps for ever, does not count.
            return None
        slots = _assign(job, job.record.target, None) if job.elastic else _gang_slots(job)
        if not _may_begin(job, slots):
            return None
        return GiveOrder(slots, OrderKind.TARGET, fresh_start=True) if slots else None
    if not anyone_holds(job):
        return _without_state(job, newest)
    if _lost_member(job, newest):
        return GiveOrder(_survivors(job, newest, holders(job)), OrderKind.RECOVERY)
    if newest.kind is OrderKind.RECOVERY and newest.generation > job.record.committed:
        return None
    stay = _stay(job, newest, holders(job), at_once) if at_once else ()
    if stay:
        same = _same(stay, newest) and not _stale_leader(job, newest)
        return None if same else GiveOrder(stay, OrderKind.TARGET)
    return _towards_target(job, newest, free)


def _of_gang(job: Job, newest: OrderRecord) -> Step:
    """Return the next step of a job that has not called `elastic.join()`.

    The job follows its target until its processes start, and is not changed afterwards.
    """
    if job.restart_counted:
        return StartAgain()
    if job.gang:
        return None
    slots = _gang_slots(job)
    same = tuple((slot.worker, slot.gpus) for slot in slots) == tuple(
        (member.worker, member.gpus) for member in newest.roster.members
    )
    return GiveOrder(slots, OrderKind.TARGET) if slots and not same and _may_begin(job, slots) else None


def _gang_slots(job: Job) -> tuple[RosterSlot, ...]:
    """Return one slot for each process of a gang; () while the gang lacks GPUs."""
    target, spec = job.record.target, job.spec
    least = min(spec.gpus.min, job.record.manual_share or spec.gpus.min)
    if len(target) < least:
        return ()
    waiting = {
        (entry.gpu, entry.gpus): entry.worker
        for entry in job.workers
        if entry.state is WorkerState.ORDERED and not entry.stopping
    }
    servers: dict[ServerId, list[int]] = {}
    for gpu in target:
        servers.setdefault(gpu.server, []).append(gpu.index)
    if spec.processes is Processes.PER_GPU:  # processes of one server have consecutive ranks
        grouped = [GpuAddress(server=server, index=index) for server, indices in servers.items() for index in indices]
        return tuple(RosterSlot(gpu, waiting.get((gpu, ()))) for gpu in grouped)
    if any(len(indices) != (spec.gpus_per_server or len(indices)) for indices in servers.values()):
        return ()
    found = [
        (GpuAddress(server=server, index=indices[0]), tuple(sorted(indices))) for server, indices in servers.items()
    ]
    return tuple(RosterSlot(gpu, waiting.get((gpu, gpus)), gpus) for gpu, gpus in found)


def complete(job: Job) -> bool:
    """Return whether all processes of a gang's newest order can be started, on exactly the GPUs of the target."""
    newest = job.newest
    if newest is None or not all(usable(job, worker) for worker in newest.roster.workers):
        return False
    return {gpu for member in newest.roster.members for gpu in member.all_gpus} == set(job.record.target)


def _without_state(job: Job, newest: OrderRecord) -> Step:
    """Return the next step if no worker has the state: none has trained yet, or all that had the state are lost."""
    worker_sets = job.worker_sets
    if not worker_sets.usable:
        return StartAgain()
    had_state = job.record.committed >= job.record.cycle
    if not had_state and worker_sets.whole(job.record.target) and not _lost_member(job, newest):
        return None  # all members are on their way
    if had_state and any(usable(job, worker) for worker in newest.roster.workers) and not _lost_member(job, newest):
        return None  # the first step of a generation is on its way
    slots = _assign(job, job.record.target, newest)
    if not _may_begin(job, slots):
        return None
    if not had_state and not _lost_member(job, newest) and _same(slots, newest):
        return None
    return GiveOrder(slots, OrderKind.TARGET, fresh_start=had_state) if slots else None


def _may_begin(job: Job, slots: tuple[RosterSlot, ...]) -> bool:
    """Return whether one of the slots is on a server where the job can begin, as far as is known."""
    return not slots or any(slot.gpu.server not in job.avoided.servers_now for slot in slots)


def _lost_member(job: Job, newest: OrderRecord) -> bool:
    """Return whether the newest roster has lost a member, or does not list a broken generation of its members."""
    if newest.generation in job.record.broken:
        return True
    if job.worker_sets.lost_member(job.record.target):
        return True
    return any(
        generation not in newest.broken for generation in job.record.broken if job.record.committed <= generation
    )


def _survivors(job: Job, newest: OrderRecord, with_state: tuple[WorkerRecord, ...]) -> tuple[RosterSlot, ...]:
    slots = [RosterSlot(m.gpu, m.worker) for m in newest.roster.members if arrived(job, m.worker)]
    if any(holds_state(job, slot.worker) for slot in slots if slot.worker is not None):
        return tuple(slots)
    taken = {slot.gpu for slot in slots}
    return (*(RosterSlot(entry.gpu, entry.worker) for entry in with_state if entry.gpu not in taken), *slots)


def _stay(
    job: Job, newest: OrderRecord, with_state: tuple[WorkerRecord, ...], at_once: Collection[GpuAddress]
) -> tuple[RosterSlot, ...]:
    """Return the slots of the workers that go on alone, because others are on GPUs that must be left at once.

    Return () if no worker is on such a GPU, or too few would be left.
    """
    if not any(entry.gpu in at_once for entry in with_state) or job.spec.gpus_per_server:
        return ()
    if newest.kind is OrderKind.UNION and not handed_on(job, newest):
        return ()  # the state is being transferred to joining workers
    named = job.committed_order or newest
    able = [entry for entry in with_state if entry.gpu not in at_once and entry.worker in named.roster.workers]
    wanted = [entry for entry in able if entry.gpu in job.record.target]
    least = min(job.spec.gpus.min, job.record.manual_share or job.spec.gpus.min)
    chosen = wanted if len(wanted) >= least else able
    return tuple(RosterSlot(entry.gpu, entry.worker) for entry in chosen) if len(chosen) >= least else ()


def _towards_target(job: Job, newest: OrderRecord, free: Callable[[GpuAddress], bool]) -> Step:
    stale_leader = _stale_leader(job, newest)
    if not stale_leader and not job.workers.ordered and job.worker_sets.whole(job.record.target):
        return None  # exactly the wanted workers are there
    wanted = _assign(job, job.record.target, newest)
    slots = tuple(slot for slot in wanted if _present(job, slot) or free(slot.gpu))
    if not slots or (_same(slots, newest) and not stale_leader):
        return None
    if any(slot.worker is not None and holds_state(job, slot.worker) for slot in slots):
        on_the_way = newest.kind is OrderKind.UNION and not handed_on(job, newest)
        if on_the_way and {slot.worker for slot in slots} <= set(newest.roster.workers):
            return None  # the state transfer of the union has begun and must reach all members first
        return GiveOrder(slots, OrderKind.TARGET)
    kept = tuple(RosterSlot(entry.gpu, entry.worker) for entry in holders(job))
    union = (*kept, *(slot for slot in slots if slot.gpu not in {holder.gpu for holder in kept}))
    return None if _same(union, newest) and not stale_leader else GiveOrder(union, OrderKind.UNION)


def _present(job: Job, slot: RosterSlot) -> bool:
    """Return whether the slot has a worker whose process runs or was requested.

    A worker that waits for its GPU does not count: that GPU's job may be waiting for a GPU of this job.
    """
    return slot.worker is not None and not _unstarted(job, slot.worker)


def _stale_leader(job: Job, newest: OrderRecord) -> bool:
    """Return whether the newest order names a leader that the present members do not know.

    That happens if the order was given before any worker had the state.
    """
    committed = job.order(job.record.committed)
    if newest.generation <= job.record.committed or committed is None:
        return False
    leader = newest.roster.leader
    return leader not in job.worker_sets.holding and leader not in committed.roster.workers


def took_part(job: Job, entry: WorkerRecord, applied: int | None = None) -> bool:
    """Return whether a worker has applied a step of which it computed a share.

    Before that, no other worker has compared the worker's results with its own. `applied`: the last step of a worker
    that has ended.
    """
    status = job.statuses.get(entry.worker)
    last = applied if applied is not None else status.applied if status is not None else None
    if not entry.trained or last is None or entry.began_at is None:
        return entry.trained  # recorded by an earlier version, or trained under an earlier controller
    return last >= entry.began_at + FIRST_STEPS


def handed_on(job: Job, union: OrderRecord) -> bool:
    """Return whether all members of a union have the state and the joining workers have taken part.

    Before that no member may leave: a joining worker that computes different results would go on alone.
    """
    return job.record.committed >= union.generation and all(
        holds_state(job, worker)
        and (entry := job.worker(worker)) is not None
        and took_part(job, entry)
        and ((status := job.statuses.get(worker)) is None or status.generation >= union.generation)
        for worker in union.roster.workers
    )


def _assign(job: Job, target: tuple[GpuAddress, ...], newest: OrderRecord | None) -> tuple[RosterSlot, ...]:
    """Return a slot for each GPU of `target`: first those of members that stay, in their old order."""
    members, able, wanted = newest.roster.members if newest else (), job.worker_sets.usable, set(target)
    stay = [RosterSlot(m.gpu, m.worker) for m in members if m.gpu in wanted and m.worker in able]
    taken = {slot.gpu for slot in stay}
    others = [RosterSlot(gpu, _spare(job, gpu)) for gpu in target if gpu not in taken]
    return (*stay, *others)


def _spare(job: Job, gpu: GpuAddress) -> WorkerId | None:
    """Return a worker of the job on `gpu` that a superseded order named, or would have sent away.

    The worker is a member of the last committed generation, even if that has lost all workers with the state, or it was
    never in a generation.
    """
    if not (here := job.workers.on_gpu(gpu)):
        return None
    committed = job.order(job.record.committed)
    known = committed.roster.workers if committed is not None else ()
    for entry in here:
        if usable(job, entry.worker) and (entry.worker in known or fresh(job, entry.worker)):
            return entry.worker
    return None


def fresh(job: Job, worker: WorkerId) -> bool:
    """Return whether `worker` has never been in a generation."""
    status = job.statuses.get(worker)
    if status is None:
        entry = job.worker(worker)
        return entry is not None and not entry.trained
    return status.phase in (WorkerPhase.STARTING, WorkerPhase.READY)


def _same(slots: tuple[RosterSlot, ...], order: OrderRecord) -> bool:
    return tuple(slot.worker for slot in slots) == order.roster.workers


def gpu_place(server: Server | None, gpu: GpuAddress) -> GpuPlace:
    """Return the place of `gpu` in its server, with the server's rack, as reported by the agent.

    The place is empty without a report. A member's place is part of the roster, so that all members plan the same
    transfers (Elan IV), whatever agents report later.
    """
    if server is None:
        return GpuPlace()
    place = next((each.place for each in server.gpus if each.index == gpu.index), GpuPlace())
    return msgspec.structs.replace(place, rack=server.rack) if server.rack else place


def furthest(job: Job) -> WorkerId | None:
    """Return the worker with the newest state of an overtaken job; None without any."""
    able = {
        status.worker: (status.applied, status.generation)
        for entry in job.workers
        if (status := job.statuses.get(entry.worker)) is not None
        and status.applied is not None
        and status.phase.may_have_state
    }
    return max(able, key=lambda worker: able[worker], default=None)


def choose_leader(job: Job, workers: tuple[WorkerId, ...]) -> WorkerId:
    """Return the leader for a roster of `workers`, which are in rank order and not empty."""
    with_state = [worker for worker in workers if holds_state(job, worker)]
    newest = job.newest
    able = with_state or _able_to_begin(job, workers)
    present = newest.roster.leader if newest is not None else None
    if present in able and present is not None and usable(job, present):
        return present
    if not with_state:
        return able[0]
    applied = {worker: _applied(job, worker) for worker in with_state}
    return max(with_state, key=lambda worker: applied[worker])  # max() takes the first of equals: the lowest rank


def _able_to_begin(job: Job, workers: tuple[WorkerId, ...]) -> list[WorkerId]:
    """Return the workers on servers where the job can begin, as far as is known; all workers if there are none."""
    entries = [entry for worker in workers if (entry := job.worker(worker)) is not None]
    return [entry.worker for entry in entries if entry.gpu.server not in job.avoided.servers_now] or list(workers)


def _applied(job: Job, worker: WorkerId) -> int:
    status = job.statuses.get(worker)
    return -2 if status is None or status.applied is None else status.applied


def cut_off(job: Job) -> tuple[WorkerId, ...]:
    """Return the members to give up, so that the others can follow the newest order after a network cut.

    The result is the members that the leader does not reach, though the controller reaches all. If these are more than
    half of the members, and no state is lost with the leader's side, the result is the leader's side instead.
    """
    newest = job.newest
    if newest is None or newest.generation <= job.record.committed:
        return ()
    leader = newest.roster.leader
    leads = job.statuses.get(leader)
    if leads is None or leads.order != newest.generation or not leads.unheard:
        return ()
    members = newest.roster.workers
    unheard = frozenset(leads.unheard)
    apart = tuple(
        worker
        for worker in members
        if worker in unheard
        and (status := job.statuses.get(worker)) is not None
        and status.order == newest.generation
        and leader in status.unheard
    )
    if 2 * len(apart) <= len(members) or leads.phase is WorkerPhase.TRAINING:
        return apart
    others = frozenset(apart)
    having = {entry.worker for entry in holders(job)}
    return tuple(worker for worker in members if worker not in others) if not having or having & others else apart


def unconnected(job: Job) -> tuple[WorkerId, ...]:
    """Return the members to give up, so that the others can follow the newest order, when members cannot connect.

    The reports do not show between which members data does not arrive. A fault within the leader's server is unlikely,
    so the result is the members on other servers, if there are any.
    """
    newest = job.newest
    if newest is None or newest.generation <= job.record.committed or len(newest.roster.members) < 2:
        return ()
    leads = job.statuses.get(newest.roster.leader)
    if leads is None or not leads.unconnected_s:
        return ()
    for worker in newest.roster.workers:
        status = job.statuses.get(worker)
        if status is None or status.order != newest.generation or status.phase not in STANDING_STILL:
            return ()
    here = next(member.gpu.server for member in newest.roster.members if member.worker == newest.roster.leader)
    elsewhere = tuple(member.worker for member in newest.roster.members if member.gpu.server != here)
    return elsewhere or tuple(worker for worker in newest.roster.workers if worker != newest.roster.leader)


def stalled_s(job: Job) -> float:
    """Return for how many seconds all members of the committed generation have waited for each other's data.

    The result is 0 if some member does not wait.
    """
    order = job.committed_order
    if order is None:
        return 0.0
    waits = []
    for worker in order.roster.workers:
        status = job.statuses.get(worker)
        current = status is not None and status.generation == order.generation and status.phase is WorkerPhase.TRAINING
        waits.append(status.waits_s if status is not None and current else 0.0)
    return min(waits)


def broken_to_list(job: Job) -> tuple[int, ...]:
    """Return the broken generations that any living worker could still be in."""
    stands = [
        status.generation
        for entry in job.workers
        if (status := job.statuses.get(entry.worker)) is not None and status.generation > 0
    ]
    oldest = min([job.record.committed, *stands])
    return tuple(generation for generation in job.record.broken if generation >= oldest)


def broken_by_loss(job: Job, worker: WorkerId) -> tuple[int, ...]:
    """Return the generations that the loss of `worker` breaks."""
    return tuple(
        order.generation
        for order in job.record.orders
        if order.generation >= job.record.committed and worker in order.roster.workers
    )


def broken_by_report(job: Job, worker: WorkerId, generation: int) -> tuple[int, ...]:
    """Return the generations that are broken, as `worker` reports a failed communicator in `generation`.

    Later rosters with that worker break too, since it cannot reach them by a step of `generation`, unless the order
    listed the broken generation beforehand.
    """
    found = [
        order.generation
        for order in job.record.orders
        if order.generation >= generation and worker in order.roster.workers and generation not in order.broken
    ]
    return tuple(sorted({generation, *found})) if found else ()


def cannot_commit(job: Job, order: OrderRecord) -> bool:
    """Return whether `order`, which is not the newest, can no longer be committed."""
    if order.generation <= job.record.committed:
        return order.generation < job.record.committed
    leader = order.roster.leader
    if job.worker(leader) is None or any(_unstarted(job, worker) for worker in order.roster.workers):
        return True
    status = job.statuses.get(leader)
    return status is not None and status.floor > order.generation and status.generation < order.generation


def _unstarted(job: Job, worker: WorkerId) -> bool:
    entry = job.worker(worker)
    return entry is not None and entry.state is WorkerState.ORDERED


def unneeded(job: Job) -> tuple[WorkerRecord, ...]:
    """Return the workers, not yet asked to stop, that no roster in use or possibly in use later names."""
    newest = job.newest
    if not job.worker_sets.any_outside:
        return ()
    live = [order for order in job.record.orders if order is newest or (job.elastic and not cannot_commit(job, order))]
    named = {worker for order in live for worker in order.roster.workers}
    found = []
    for entry in job.workers:
        if entry.stopping or entry.worker in named:
            continue
        if entry.gpu in job.record.target and entry.state is not WorkerState.ORDERED and fresh(job, entry.worker):
            continue  # the worker will be needed as soon as the survivors have gone on
        found.append(entry)
    return tuple(found)
