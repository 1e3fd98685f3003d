"""Which roster a job needs next (worker-runtime 4): a pure function of what is recorded and what the workers report.

Theory of operation
-------------------
The scheduler gives a *target*; `next_step` says what to do now to come nearer to it. Called after every change, it is
level-triggered: it looks at what is, not at what has just happened, so a lost or doubled event cannot mislead it.

* **Losses come first.** When a member of a generation is gone, everyone in that generation stands still. The next order names
  the survivors alone: they need nobody who is still starting, so training goes on at once. Growing back is a second order.
* **The state is never dropped.** A roster that would keep no worker with the state is preceded by the union of old and new.
* **No order waits for another job.** A job with state is never given an order that names a GPU on which a process still runs: it
  first gives up what it is to give up, and grows when the GPU is free. Else two jobs that exchange GPUs would wait for ever.
* **What is lent is left at once**, as far as the job can do with the rest: those who stay go on alone with the next step, and the
  job moves, or grows elsewhere, only then. Else whoever waits for the GPU would wait until newcomers have started.
* **Newcomers are kept** when an order overtakes another: a worker that is still starting on a wanted GPU takes that place.
* **The leader stays** while it can. Else it is a member with the state that is furthest ahead, of lowest rank: a leader without
  the state could not propose a commit to those who train.
* **A gang** (a job that has not called `elastic.join()`) is ordered whole, and left alone once it has begun (`reconcile.gangs`).
* **Broken generations** are listed in every order, for as long as any worker might still stand in one.

A superseded order may still be committed by its leader if that had proposed it before it heard of the next; `doomed` tells
when that has become impossible, and only then are newcomers of it stopped (CoDDL 4.3: nobody leaves before everybody knows).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec

from ...protocol.model import GpuAddress, GpuPlace, Processes, Server, ServerId, WorkerId, WorkerPhase
from .job import Job
from .records import OrderKind, OrderRecord, WorkerRecord, WorkerState

FIRST_STEPS = 2  # of a newcomer: it receives the state in one, and computes a share of the next
STANDING_STILL = (WorkerPhase.READY, WorkerPhase.BROKEN)


@dataclass(frozen=True)
class Place:
    """A place in the next roster: a GPU, and who works there; None: a new worker."""

    gpu: GpuAddress
    worker: WorkerId | None
    gpus: tuple[int, ...] = ()  # as in `WorkerRecord`


@dataclass(frozen=True)
class GiveOrder:
    """Order this roster. `fresh_start`: from a checkpoint or from nothing; nobody has the state."""

    places: tuple[Place, ...]
    kind: OrderKind
    fresh_start: bool = False


@dataclass(frozen=True)
class StartAgain:
    """No worker is left: begin again from the last checkpoint."""


Step = GiveOrder | StartAgain | None


def usable(job: Job, worker: WorkerId) -> bool:
    """May `worker` be in a roster?"""
    entry = job.worker(worker)
    if entry is None or entry.stopping:
        return False
    status = job.statuses.get(worker)
    return status is None or not status.phase.over


def holds_state(job: Job, worker: WorkerId) -> bool:
    """Has `worker` the state of the job? Until it has reported to this controller, its record answers."""
    if not usable(job, worker):
        return False
    status = job.statuses.get(worker)
    if status is None:
        entry = job.worker(worker)
        return entry is not None and entry.trained
    return status.phase.may_have_state and status.applied is not None


def arrived(job: Job, worker: WorkerId) -> bool:
    """Can `worker` follow an order at once, without starting up first?"""
    status = job.statuses.get(worker)
    if status is None:
        return holds_state(job, worker)
    return usable(job, worker) and status.phase is not WorkerPhase.STARTING


def ending(job: Job) -> bool:
    """Has a worker reached the end of the training loop? Then no order is followed any more.

    One that has ended by then counts as long as another one with the state is on its way there. Should that be in need of its
    fellows for a last step, it says that its communicator is broken, and gets an order.
    """
    standing = job.standing
    if standing.finished:
        return True
    if not any(entry.finished and entry.generation >= job.record.cycle for entry in job.record.past):
        return False
    return not standing.broken and bool(standing.holding)


def anyone_holds(job: Job) -> bool:
    """Has any worker the state?"""
    return bool(job.standing.holding)


def holders(job: Job) -> tuple[WorkerRecord, ...]:
    """The workers with the state, in the rank order of the newest roster that names them, then by age."""
    newest, holding = job.newest, job.standing.holding
    if not holding:
        return ()
    ranks = {worker: rank for rank, worker in enumerate(newest.roster.workers)} if newest else {}
    found = [entry for entry in job.workers if entry.worker in holding]
    return tuple(sorted(found, key=lambda entry: ranks.get(entry.worker, len(ranks))))


def next_step(job: Job, free: Callable[[GpuAddress], bool], at_once: Collection[GpuAddress]) -> Step:
    """What brings `job`, which is not over, nearer to its target; None: nothing now. Of a GPU, `free`: no process is there;
    `at_once`: those that are to be left as soon as can be."""
    if ending(job):
        return None
    newest = job.newest
    if not job.elastic and newest is not None:
        return _of_gang(job, newest)
    if newest is None:
        if any(entry.stopping and (entry.trained or entry.fault is None) for entry in job.workers):
            return None  # they may be saving the state; not those that hang at their start, perhaps for ever
        places = _assign(job, job.record.target, None) if job.elastic else _gang_places(job)
        if not _may_begin(job, places):
            return None
        return GiveOrder(places, OrderKind.TARGET, fresh_start=True) if places else None
    if not anyone_holds(job):
        return _without_state(job, newest)
    if _wounded(job, newest):
        return GiveOrder(_survivors(job, newest, holders(job)), OrderKind.RECOVERY)
    if newest.kind is OrderKind.RECOVERY and newest.generation > job.record.committed:
        return None
    stay = _stay(job, newest, holders(job), at_once) if at_once else ()
    if stay:
        same = _same(stay, newest) and not _misled(job, newest)
        return None if same else GiveOrder(stay, OrderKind.TARGET)
    return _towards_target(job, newest, free)


def _of_gang(job: Job, newest: OrderRecord) -> Step:
    """A job that has not called `elastic.join()` is left alone from its start on; until then it follows its target."""
    if job.restart_counted:
        return StartAgain()
    if job.gang:
        return None
    places = _gang_places(job)
    same = tuple((place.worker, place.gpus) for place in places) == tuple(
        (member.worker, member.gpus) for member in newest.roster.members
    )
    return GiveOrder(places, OrderKind.TARGET) if places and not same and _may_begin(job, places) else None


def _gang_places(job: Job) -> tuple[Place, ...]:
    """One place for each process of a gang; none while it has not all GPUs that it needs."""
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
    if spec.processes is Processes.PER_GPU:  # those of one server have ranks that follow each other
        grouped = [GpuAddress(server=server, index=index) for server, indices in servers.items() for index in indices]
        return tuple(Place(gpu, waiting.get((gpu, ()))) for gpu in grouped)
    if any(len(indices) != (spec.gpus_per_server or len(indices)) for indices in servers.values()):
        return ()
    found = [
        (GpuAddress(server=server, index=indices[0]), tuple(sorted(indices))) for server, indices in servers.items()
    ]
    return tuple(Place(gpu, waiting.get((gpu, gpus)), gpus) for gpu, gpus in found)


def complete(job: Job) -> bool:
    """Are all processes of the newest order of a gang there to be started, and on the GPUs that it is to have?"""
    newest = job.newest
    if newest is None or not all(usable(job, worker) for worker in newest.roster.workers):
        return False
    return {gpu for member in newest.roster.members for gpu in member.all_gpus} == set(job.record.target)


def _without_state(job: Job, newest: OrderRecord) -> Step:
    """Nobody has trained yet, or all that had are gone."""
    standing = job.standing
    if not standing.usable:
        return StartAgain()
    had_state = job.record.committed >= job.record.cycle
    if not had_state and standing.whole(job.record.target) and not _wounded(job, newest):
        return None  # all that are named are on their way
    if had_state and any(usable(job, worker) for worker in newest.roster.workers) and not _wounded(job, newest):
        return None  # the first step of a generation is on its way
    places = _assign(job, job.record.target, newest)
    if not _may_begin(job, places):
        return None
    if not had_state and not _wounded(job, newest) and _same(places, newest):
        return None
    return GiveOrder(places, OrderKind.TARGET, fresh_start=had_state) if places else None


def _may_begin(job: Job, places: tuple[Place, ...]) -> bool:
    """Is one of them on a server where the job can begin, as far as is known?"""
    return not places or any(place.gpu.server not in job.avoided_servers for place in places)


def _wounded(job: Job, newest: OrderRecord) -> bool:
    """Has the newest roster lost somebody, or does it not tell its members of a broken generation they may be in?"""
    if newest.generation in job.record.broken:
        return True
    if job.standing.lost_member(job.record.target):
        return True
    return any(
        generation not in newest.broken for generation in job.record.broken if job.record.committed <= generation
    )


def _survivors(job: Job, newest: OrderRecord, with_state: tuple[WorkerRecord, ...]) -> tuple[Place, ...]:
    places = [Place(m.gpu, m.worker) for m in newest.roster.members if arrived(job, m.worker)]
    if any(holds_state(job, place.worker) for place in places if place.worker is not None):
        return tuple(places)
    taken = {place.gpu for place in places}
    return (*(Place(entry.gpu, entry.worker) for entry in with_state if entry.gpu not in taken), *places)


def _stay(
    job: Job, newest: OrderRecord, with_state: tuple[WorkerRecord, ...], at_once: Collection[GpuAddress]
) -> tuple[Place, ...]:
    """Who goes on alone, since others are on GPUs that are to be left at once; none: nobody is, or too few would be left."""
    if not any(entry.gpu in at_once for entry in with_state) or job.spec.gpus_per_server:
        return ()
    if newest.kind is OrderKind.UNION and not handed_on(job, newest):
        return ()  # the state is being handed on to newcomers
    named = job.committed_order or newest
    able = [entry for entry in with_state if entry.gpu not in at_once and entry.worker in named.roster.workers]
    wanted = [entry for entry in able if entry.gpu in job.record.target]
    least = min(job.spec.gpus.min, job.record.manual_share or job.spec.gpus.min)
    chosen = wanted if len(wanted) >= least else able
    return tuple(Place(entry.gpu, entry.worker) for entry in chosen) if len(chosen) >= least else ()


def _towards_target(job: Job, newest: OrderRecord, free: Callable[[GpuAddress], bool]) -> Step:
    misled = _misled(job, newest)
    if not misled and not job.workers.ordered and job.standing.whole(job.record.target):
        return None  # all who are wanted are there, and nobody else is
    wanted = _assign(job, job.record.target, newest)
    places = tuple(place for place in wanted if _present(job, place) or free(place.gpu))
    if not places or (_same(places, newest) and not misled):
        return None
    if any(place.worker is not None and holds_state(job, place.worker) for place in places):
        on_the_way = newest.kind is OrderKind.UNION and not handed_on(job, newest)
        if on_the_way and {place.worker for place in places} <= set(newest.roster.workers):
            return None  # the union has begun to hand the state on: let it reach all first
        return GiveOrder(places, OrderKind.TARGET)
    kept = tuple(Place(entry.gpu, entry.worker) for entry in holders(job))
    union = (*kept, *(place for place in places if place.gpu not in {holder.gpu for holder in kept}))
    return None if _same(union, newest) and not misled else GiveOrder(union, OrderKind.UNION)


def _present(job: Job, place: Place) -> bool:
    """Is somebody there, or told to start? Who waits for his GPU may wait for one who waits for this job's."""
    return place.worker is not None and not _unstarted(job, place.worker)


def _misled(job: Job, newest: OrderRecord) -> bool:
    """Was the newest order given before anybody had the state, and names a leader that those who train now do not know?"""
    committed = job.order(job.record.committed)
    if newest.generation <= job.record.committed or committed is None:
        return False
    leader = newest.roster.leader
    return leader not in job.standing.holding and leader not in committed.roster.workers


def took_part(job: Job, entry: WorkerRecord, applied: int | None = None) -> bool:
    """Has a worker applied a step that it had a share of? Before that nobody has compared what it computes with what others do.

    `applied`: the last step, of a worker that has ended.
    """
    status = job.statuses.get(entry.worker)
    last = applied if applied is not None else status.applied if status is not None else None
    if not entry.trained or last is None or entry.began_at is None:
        return entry.trained  # it was recorded by an earlier version, or has trained under an earlier controller
    return last >= entry.began_at + FIRST_STEPS


def handed_on(job: Job, union: OrderRecord) -> bool:
    """Have all members of a union the state, and have the newcomers taken part? Before that nobody may leave: a newcomer that
    does not compute what the others do would go on alone."""
    return job.record.committed >= union.generation and all(
        holds_state(job, worker)
        and (entry := job.worker(worker)) is not None
        and took_part(job, entry)
        and ((status := job.statuses.get(worker)) is None or status.generation >= union.generation)
        for worker in union.roster.workers
    )


def _assign(job: Job, target: tuple[GpuAddress, ...], newest: OrderRecord | None) -> tuple[Place, ...]:
    """Who works on each GPU of `target`: members that stay in their old order, then the others."""
    members, able, wanted = newest.roster.members if newest else (), job.standing.usable, set(target)
    stay = [Place(m.gpu, m.worker) for m in members if m.gpu in wanted and m.worker in able]
    taken = {place.gpu for place in stay}
    others = [Place(gpu, _spare(job, gpu)) for gpu in target if gpu not in taken]
    return (*stay, *others)


def _spare(job: Job, gpu: GpuAddress) -> WorkerId | None:
    """A worker of the job on `gpu` that an overtaken order named, or was to send away: of the last generation that came about,
    though it may have lost all who had the state, or of none yet."""
    if not (here := job.workers.on_gpu(gpu)):
        return None
    committed = job.order(job.record.committed)
    known = committed.roster.workers if committed is not None else ()
    for entry in here:
        if usable(job, entry.worker) and (entry.worker in known or fresh(job, entry.worker)):
            return entry.worker
    return None


def fresh(job: Job, worker: WorkerId) -> bool:
    """Has `worker` never been in a generation?"""
    status = job.statuses.get(worker)
    if status is None:
        entry = job.worker(worker)
        return entry is not None and not entry.trained
    return status.phase in (WorkerPhase.STARTING, WorkerPhase.READY)


def _same(places: tuple[Place, ...], order: OrderRecord) -> bool:
    return tuple(place.worker for place in places) == order.roster.workers


def gpu_place(server: Server | None, gpu: GpuAddress) -> GpuPlace:
    """Where `gpu` sits in its server, and the rack of that, as the server's agent has told; nowhere if it has not.

    A member's place stands in the roster, so that all members plan the same transfers (Elan IV), whatever agents tell later.
    """
    if server is None:
        return GpuPlace()
    place = next((each.place for each in server.gpus if each.index == gpu.index), GpuPlace())
    return msgspec.structs.replace(place, rack=server.rack) if server.rack else place


def choose_leader(job: Job, workers: tuple[WorkerId, ...]) -> WorkerId:
    """Who leads a roster of `workers` (in rank order, not empty)."""
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
    """Those on servers where the job can begin, as far as is known; all if there is none."""
    entries = [entry for worker in workers if (entry := job.worker(worker)) is not None]
    return [entry.worker for entry in entries if entry.gpu.server not in job.avoided_servers] or list(workers)


def _applied(job: Job, worker: WorkerId) -> int:
    status = job.statuses.get(worker)
    return -2 if status is None or status.applied is None else status.applied


def cut_off(job: Job) -> tuple[WorkerId, ...]:
    """The members without whom the newest order could be followed: they and the others hear nothing of each other, though this
    controller hears of all. Those whom the leader does not hear; or, if these are more than half and lose nothing without the
    others, the others."""
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
    """The members without whom the newest order could be followed: all stand still and hear each other, and cannot connect.

    Nobody can tell between whom data does not get through: hardly within the leader's server.
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
    """For so long all members of the generation in use have waited for each other, none of them computes any more, and nothing
    arrives; 0: that is not so."""
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
    """The broken generations that any worker that lives could still be in."""
    stands = [
        status.generation
        for entry in job.workers
        if (status := job.statuses.get(entry.worker)) is not None and status.generation > 0
    ]
    oldest = min([job.record.committed, *stands])
    return tuple(generation for generation in job.record.broken if generation >= oldest)


def broken_by_loss(job: Job, worker: WorkerId) -> tuple[int, ...]:
    """The generations that the loss of `worker` breaks."""
    return tuple(
        order.generation
        for order in job.record.orders
        if order.generation >= job.record.committed and worker in order.roster.workers
    )


def broken_by_report(job: Job, worker: WorkerId, generation: int) -> tuple[int, ...]:
    """The generations that are broken because `worker` says that its communicator in `generation` failed.

    In a later roster too, it will not arrive by a step of `generation` any more; unless the order said so beforehand.
    """
    found = [
        order.generation
        for order in job.record.orders
        if order.generation >= generation and worker in order.roster.workers and generation not in order.broken
    ]
    return tuple(sorted({generation, *found})) if found else ()


def doomed(job: Job, order: OrderRecord) -> bool:
    """Can `order`, which is not the newest, no longer be committed?"""
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
    """Workers, not told to stop yet, that no roster which is or may come into use names."""
    newest = job.newest
    if not job.standing.any_outside:
        return ()
    live = [order for order in job.record.orders if order is newest or (job.elastic and not doomed(job, order))]
    named = {worker for order in live for worker in order.roster.workers}
    found = []
    for entry in job.workers:
        if entry.stopping or entry.worker in named:
            continue
        if entry.gpu in job.record.target and entry.state is not WorkerState.ORDERED and fresh(job, entry.worker):
            continue  # it will be wanted as soon as the survivors have gone on
        found.append(entry)
    return tuple(found)
