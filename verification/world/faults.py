"""The effect of each kind of fault."""

from __future__ import annotations

from dataclasses import replace

from elasticd.protocol.model import JobId, Severity
from elasticd.protocol.model import Trouble as Hardship

from . import strangers
from .agent import Agent
from .cluster import Cluster
from .disk import Trouble
from .known import LASTS_S
from .plan import SLOWER, Fault, Kind
from .worker import Worker

BETWEEN_BLACK_HOLES_S = 60.0  # within which a job that has failed on a black hole starts elsewhere
DIES_AFTER_S = 0.3  # from a GPU's failure to the death of its worker
REBOOT_JUMP_S = 1800.0  # how far a controller's clock jumps ahead at a reboot
LEASE_S = 10.0  # of a server; longer absences of its agent lose its workers


def strike(world: Cluster, number: int, fault: Fault, job: JobId | None = None) -> None:
    """Apply a fault now. `number`: its index in the plan. `job`: the job of the awaited moment, if any."""
    kind, for_s = fault.kind, fault.for_s
    agent = world.agents[fault.who % len(world.agents)]
    workers = [worker for worker in world.workers() if worker.job == job] or world.workers()
    if kind is Kind.KILL_SAVER:
        workers = [worker for worker in workers if world.oracle.is_to_save(worker.job, worker.name)]
    if kind is Kind.KILL_LEAVER:
        workers = [worker for worker in workers if world.oracle.is_to_leave(worker.job, worker.name)] or workers
    worker = workers[fault.who % len(workers)] if workers else None
    if world.story.on:
        hit = worker.name if worker is not None and "worker" in kind.value else agent.name
        world.story.say(f"* {kind.value} [{hit}]" + (f" for {for_s:.1f} s" if for_s else ""))
    if kind in _CONTROLLER:
        _strike_controller(world, fault)
    elif kind in _WORKER:
        if worker is not None:
            _strike_worker(world, worker, fault)
    elif kind is Kind.KILL_JOB:
        for other in world.workers() if worker is not None else ():
            if worker is not None and other.job == worker.job:
                _strike_worker(world, other, replace(fault, kind=Kind.KILL_WORKER))
    elif kind is Kind.FORGE:
        world.take_over(agent, for_s)
    elif kind is Kind.STRANGER:
        if worker is not None:
            strangers.speak(world, worker, fault.who)
    elif kind is Kind.SCALE:
        world.users.scale(number, fault.who)
    elif kind is Kind.CANCEL or kind is Kind.CANCEL_IT:
        world.users.cancel(number, fault.who, job if kind is Kind.CANCEL_IT else None)
    elif kind is Kind.CANCEL_SAVED:
        world.users.cancel(number, fault.who, save=True)
    elif kind is Kind.GO_ON:
        world.users.resubmit(number, fault.who)
    elif kind in (Kind.REQUEUE, Kind.CHECKPOINT):
        world.users.requeue(number, fault.who, checkpoint=kind is Kind.CHECKPOINT)
    elif kind in (Kind.PAUSE, Kind.HOLD):
        world.users.pause(number, fault.who, for_s, hold=kind is Kind.HOLD)
    elif kind is Kind.SET_POLICY:
        world.users.set_policy(number, fault.who)
    elif kind is Kind.DRAIN:
        world.users.drain(number, agent.gpu(fault.who // 8 % len(agent.server.gpus)), fault.who, for_s)
    elif kind is Kind.LEND:
        world.users.lend(number, fault.who, for_s)
    elif kind is Kind.REMOVE:
        world.users.remove(number, agent, for_s)
    elif kind is Kind.CORDON:
        world.users.cordon(number, agent.gpu(fault.who // 8 % len(agent.server.gpus)), fault.who, for_s)
    elif kind in _TROUBLES:
        _trouble(world, agent, number, fault)
    else:
        _strike_server(world, agent, fault)


_TROUBLES: dict[Kind, Severity] = {
    Kind.GPU_NOTED: Severity.NOTE,
    Kind.GPU_BARRED: Severity.NO_NEW_WORK,
    Kind.GPU_LEFT: Severity.MOVE_AWAY,
    Kind.GPU_DEAD: Severity.STOP,
    Kind.SERVER_BARRED: Severity.NO_NEW_WORK,
    Kind.LYING_TROUBLES: Severity.STOP,
}


def _trouble(world: Cluster, agent: Agent, number: int, fault: Fault) -> None:
    """Let the agent report a hardware trouble. Only a dead GPU may cost steps."""
    gpu: int | None = fault.who // 8 % len(agent.server.gpus)
    if fault.kind is Kind.SERVER_BARRED:
        gpu = None
    elif fault.kind is Kind.LYING_TROUBLES:
        gpu = 1000 + fault.who
    trouble = Hardship(
        code=f"trouble-{number}",
        severity=_TROUBLES[fault.kind],
        text=fault.kind.value,
        gpu=gpu,
        since_s=world.timeline.now,
    )
    agent.begin_trouble(trouble)
    world.after(fault.for_s, agent.end_trouble, trouble)
    if fault.kind is Kind.GPU_DEAD:
        for worker in [worker for worker in agent.workers.values() if worker.gpu.index == gpu]:
            world.oracle.disturbed(worker.job, fault.for_s)
            world.oracle.hit(worker.name, fault.for_s)
            worker.later(DIES_AFTER_S, worker.exits, 1, "exit code 1: RuntimeError: CUDA error")


_WORKER = (
    Kind.KILL_WORKER,
    Kind.KILL_LEAVER,
    Kind.KILL_SAVER,
    Kind.BREAK_LINK,
    Kind.BREAK_BUILD,
    Kind.STOP_WORKER,
    Kind.HANG_WORKER,
)
_CONTROLLER = (
    Kind.KILL_CONTROLLER,
    Kind.REBOOT_CONTROLLER,
    Kind.CRASH_BEFORE_COMMIT,
    Kind.CRASH_AFTER_COMMIT,
    Kind.STOP_CONTROLLER,
    Kind.ZOMBIE,
    Kind.JUMP_CLOCK,
    Kind.TEAR_COMMIT,
    Kind.FILL_STORE,
    Kind.LOCK_STORE,
    Kind.LOSE_STORE,
    Kind.RESTORE_STORE,
)


def _strike_controller(world: Cluster, fault: Fault) -> None:
    controller, disk, for_s = world.controller, world.disk, fault.for_s
    world.oracle.controller_hit(for_s)
    match fault.kind:
        case Kind.KILL_CONTROLLER:
            controller.die()
            world.after(for_s, controller.boot)
        case Kind.REBOOT_CONTROLLER:
            controller.die()
            controller.clock_ahead_s += REBOOT_JUMP_S
            world.books.unsure(REBOOT_JUMP_S)
            world.after(for_s, controller.boot)
        case Kind.CRASH_BEFORE_COMMIT | Kind.CRASH_AFTER_COMMIT:
            disk.crash_next = fault.kind is Kind.CRASH_AFTER_COMMIT
        case Kind.STOP_CONTROLLER:
            controller.stop()
            world.after(for_s, controller.go_on, controller.life)
        case Kind.ZOMBIE:
            if controller.alive and not controller.trouble:
                world.depose(for_s)
        case Kind.TEAR_COMMIT:
            disk.tear_next = fault.who % 2 == 0
        case Kind.JUMP_CLOCK:
            controller.clock_ahead_s += for_s if fault.who % 2 else -for_s
            if not controller.alive:
                world.books.unsure()
            controller.rearm()
        case Kind.FILL_STORE | Kind.LOCK_STORE:
            disk.trouble = Trouble.FULL if fault.kind is Kind.FILL_STORE else Trouble.LOCKED
            world.after(for_s, world.mend_store)
        case _:
            controller.die()
            if fault.kind is Kind.LOSE_STORE:
                disk.lose()
            else:
                disk.restore()
            world.oracle.store_changed(disk.contents())
            world.cordons.store_changed()
            world.books.store_changed(disk.contents())
            world.after(for_s, controller.boot)
            world.operator_is_called()


def _strike_worker(world: Cluster, worker: Worker, fault: Fault) -> None:
    world.oracle.disturbed(worker.job, LASTS_S if fault.kind is Kind.HANG_WORKER else fault.for_s)
    world.oracle.hit(worker.name, float("inf") if fault.kind is Kind.HANG_WORKER else fault.for_s)
    match fault.kind:
        case Kind.KILL_WORKER | Kind.KILL_LEAVER | Kind.KILL_SAVER:
            worker.killed("killed by SIGKILL")
        case Kind.BREAK_LINK:
            worker.break_link()
        case Kind.BREAK_BUILD:
            world.plane.broken_builds[worker.job] = fault.who
        case Kind.STOP_WORKER:
            worker.stop()
            world.after(fault.for_s, worker.go_on, worker.life)
        case _:
            worker.hang()


def _strike_server(world: Cluster, agent: Agent, fault: Fault) -> None:
    for_s = fault.for_s
    world.oracle.hit(agent.name, for_s)
    if fault.kind is not Kind.KILL_AGENT or for_s > LEASE_S / 2:
        agent.trouble(for_s)
        world.after(for_s, agent.trouble, LASTS_S if fault.kind is Kind.SLOW_SERVER else 0.0)
    match fault.kind:
        case Kind.KILL_AGENT:
            agent.die()
            world.after(for_s, agent.boot)
        case Kind.STOP_AGENT:
            agent.stop()
            world.after(for_s, agent.go_on, agent.life)
        case Kind.LOSE_SERVER:
            agent.power_off()
            world.after(for_s, agent.power_on)
        case Kind.FILL_SERVER:
            agent.disk_full = True
            world.after(for_s, agent.empty_disk)
        case Kind.BLACK_HOLE:
            # two at once could fail a job, which is allowed two servers
            if world.timeline.now >= world.next_black_hole_at:
                world.next_black_hole_at = world.timeline.now + for_s + BETWEEN_BLACK_HOLES_S
                agent.black_hole = True
                world.after(for_s, agent.close_black_hole)
        case Kind.HIDE_STORAGE:
            agent.storage_hidden = True
            world.after(for_s, agent.show_storage)
        case Kind.HANG_STORAGE:
            agent.storage_hangs = True
            world.after(for_s, agent.free_storage)
        case Kind.SLOW_SERVER:
            agent.slow_down(SLOWER)
            world.after(for_s, agent.slow_down, 1.0)
        case Kind.TWIN_AGENT:
            world.start_twin(agent, for_s)
        case Kind.JUMP_SERVER_CLOCK:
            agent.clock_of_new_s += for_s if fault.who % 2 else -for_s
        case Kind.CUT_DATA:
            world.plane.apart.add(agent.host)
            world.after(for_s, world.plane.apart.discard, agent.host)
        case _:
            _cut(world, agent, fault)


def _cut(world: Cluster, agent: Agent, fault: Fault) -> None:
    others = ["controller"] if fault.kind is not Kind.CUT_PEERS else []
    if fault.who % 2 or fault.kind is Kind.CUT_PEERS:
        others += [other.host for other in world.agents if other is not agent]
    for other in others:
        if fault.kind is not Kind.CUT_OUT:
            world.network.cut(other, agent.host)
            world.after(fault.for_s, world.network.heal, other, agent.host)
        if fault.kind is not Kind.CUT_IN:
            world.network.cut(agent.host, other)
            world.after(fault.for_s, world.network.heal, agent.host, other)
