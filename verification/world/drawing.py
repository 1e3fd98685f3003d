"""Drawing of a plan from a seed: the kinds of faults with their weights, the subjects of histories, and the jobs.

Drawing uses no random stream of the simulation itself, so that entries can be left out one by one while the rest stays the same.
"""

from __future__ import annotations

import enum
import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from elasticd.protocol.model import CheckpointSpec, Deadline, Determinism, GpuRange, JobSpec, Notify, Processes

from .people import USERS
from .plan import (
    LIMITS,
    POLICIES,
    STORM_S,
    TYPES,
    Ending,
    Fault,
    JobPlan,
    Kind,
    Moment,
    Plan,
    Script,
    Weather,
)

DRAWN_ENDINGS = tuple(Ending)[:8]  # of ordinary jobs
DRAWN_MOMENTS = tuple(Moment)[:12]  # of ordinary faults
IDLE = 0.4  # part of the time in which the GPUs of a job do nothing in a drawn history


@dataclass(frozen=True)
class Drawn:
    """Weight and duration of a kind of fault."""

    weight: float
    shortest_s: float = 0.0
    longest_s: float = 0.0


DRAWN: dict[Kind, Drawn] = {
    Kind.KILL_CONTROLLER: Drawn(3, 0.1, 20),
    Kind.CRASH_BEFORE_COMMIT: Drawn(1.5, 0.1, 5),
    Kind.CRASH_AFTER_COMMIT: Drawn(1.5, 0.1, 5),
    Kind.STOP_CONTROLLER: Drawn(2, 0.5, 25),
    Kind.JUMP_CLOCK: Drawn(1, 1, 7200),
    Kind.TEAR_COMMIT: Drawn(1),
    Kind.FILL_STORE: Drawn(0.7, 1, 30),
    Kind.LOCK_STORE: Drawn(0.7, 0.5, 15),
    Kind.LOSE_STORE: Drawn(0.15, 0.5, 5),
    Kind.RESTORE_STORE: Drawn(0.3, 0.5, 5),
    Kind.JUMP_SERVER_CLOCK: Drawn(0.5, 1, 7200),
    Kind.KILL_AGENT: Drawn(3, 0.1, 15),
    Kind.STOP_AGENT: Drawn(2, 1, 15),
    Kind.LOSE_SERVER: Drawn(2, 1, 60),
    Kind.FILL_SERVER: Drawn(1, 5, 60),
    Kind.BLACK_HOLE: Drawn(1, 5, 60),
    Kind.HIDE_STORAGE: Drawn(1, 5, 60),
    Kind.HANG_STORAGE: Drawn(1, 5, 60),
    Kind.SLOW_SERVER: Drawn(1, 10, 60),
    Kind.TWIN_AGENT: Drawn(2, 5, 60),
    Kind.KILL_WORKER: Drawn(5),
    Kind.KILL_LEAVER: Drawn(0.5),
    Kind.STOP_WORKER: Drawn(3, 0.5, 25),
    Kind.HANG_WORKER: Drawn(1),
    Kind.CUT_IN: Drawn(1, 0.5, 20),
    Kind.CUT_OUT: Drawn(1, 0.5, 20),
    Kind.CUT_BOTH: Drawn(2, 0.5, 20),
    Kind.CUT_PEERS: Drawn(2, 0.5, 40),
    Kind.CUT_DATA: Drawn(0.7, 0.5, 60),
    Kind.STRANGER: Drawn(1),
    Kind.SCALE: Drawn(4),
    Kind.CANCEL: Drawn(0.5),
    Kind.SET_POLICY: Drawn(0.7),
}


_CONTROLLER = (Kind.KILL_CONTROLLER, Kind.STOP_CONTROLLER, Kind.JUMP_CLOCK)
_STORE = (
    Kind.CRASH_BEFORE_COMMIT,
    Kind.CRASH_AFTER_COMMIT,
    Kind.TEAR_COMMIT,
    Kind.FILL_STORE,
    Kind.LOCK_STORE,
    Kind.LOSE_STORE,
    Kind.RESTORE_STORE,
)
_AGENTS = (Kind.KILL_AGENT, Kind.STOP_AGENT, Kind.TWIN_AGENT, Kind.STRANGER, Kind.JUMP_SERVER_CLOCK)
_SERVERS = (
    Kind.LOSE_SERVER,
    Kind.FILL_SERVER,
    Kind.BLACK_HOLE,
    Kind.HIDE_STORAGE,
    Kind.HANG_STORAGE,
    Kind.SLOW_SERVER,
)
_WORKERS = (Kind.KILL_WORKER, Kind.KILL_LEAVER, Kind.STOP_WORKER, Kind.HANG_WORKER)
_NETWORK = (Kind.CUT_IN, Kind.CUT_OUT, Kind.CUT_BOTH, Kind.CUT_PEERS, Kind.CUT_DATA)
_USERS = (Kind.SCALE, Kind.CANCEL, Kind.SET_POLICY)  # in every history
GROUPS = (_CONTROLLER, _STORE, _AGENTS, _SERVERS, _WORKERS, _NETWORK)

# Histories of resizes: workers die again and again during resizes requested by users; there are no other faults.
RESIZES = 0.25  # share of all histories
RESIZES_JOBS, RESIZES_STEP_S, RESIZES_STEPS = 2, 4.0, 300
SLOW_START = 6  # factor on a script's start
PREEMPTED_JOBS, PREEMPTED_S = 4, 300.0  # number of jobs, and duration of each on one GPU
RESIZES_DRAWN: dict[Kind, Drawn] = {
    Kind.SCALE: Drawn(4),
    Kind.KILL_WORKER: Drawn(2),
    Kind.KILL_LEAVER: Drawn(2),
    Kind.STOP_WORKER: Drawn(1, 0.2, 8),
    Kind.STOP_AGENT: Drawn(0.3, 1, 8),
    Kind.CUT_PEERS: Drawn(0.3, 0.5, 20),
}
RESIZES_FAULTS = 2  # times as many as in other histories

# Other histories with one subject: seeds with these remainders modulo 20 (even ones have TCP).
FOCUS_OF = 20
BAD_LINES = 0.15  # share of messages that are duplicated, and share that is late; more than in other weather


class Focus(enum.Enum):
    """The subject of a history: the situation that its faults target."""

    PREEMPTIONS = "users preempt jobs that take long to save, and savers are lost"
    LINES = "messages are doubled and late"
    RESIZES = "messages are doubled and late, links fail, while users resize two jobs"
    LONG = "storage, network and clocks are wrong for minutes"
    GANGS = "most jobs are commands that never call elastic.join()"
    DRAINS = "operators drain, cordon and remove servers, some of which are rebooted then, while users resize"
    GPUS = "GPUs and servers are in trouble, and operators overrule, while users resize"
    DEADLINES = "most jobs have deadlines, and servers and workers are lost"
    STOPS = "users pause, hold and resume jobs, while workers, agents and controllers are lost"
    NEWCOMERS = "newcomers differ, or end while they receive the state, while users resize and workers are lost"


FOCUS: dict[int, Focus] = {
    9: Focus.RESIZES,
    11: Focus.PREEMPTIONS,
    12: Focus.LONG,
    13: Focus.LINES,
    14: Focus.PREEMPTIONS,
    16: Focus.GANGS,
    17: Focus.GANGS,
    10: Focus.DRAINS,
    15: Focus.GPUS,
    18: Focus.GPUS,
}
WITH_DEADLINES = (
    24,
    2 * FOCUS_OF,
)  # (remainder, divisor) of the seeds: every other history with a plain remainder
WITH_LOANS, LOANS = (20, 23), 6  # seeds of histories with loans and priorities besides; number of loans
WITH_NEWCOMERS = (25, 2 * FOCUS_OF)  # (remainder, divisor) of the seeds
WITH_AMOUNTS = (28, 2 * FOCUS_OF)  # (remainder, divisor) of the seeds: jobs ask for cores, memory and notices
WITH_STOPS = (20, 2 * FOCUS_OF)  # (remainder, divisor) of the seeds
KEEP_DEADLINES = ("max-min", "optimus", "afs-l", "afs-p", "elastic", "elasticflow")
FOCUS_DRAWN: dict[Focus, dict[Kind, Drawn]] = {
    Focus.DEADLINES: {
        Kind.KILL_WORKER: Drawn(2),
        Kind.STOP_WORKER: Drawn(1, 0.5, 8),
        Kind.KILL_AGENT: Drawn(1, 0.1, 5),
        Kind.KILL_CONTROLLER: Drawn(1, 0.1, 5),
        Kind.CRASH_BEFORE_COMMIT: Drawn(0.5, 0.1, 5),
        Kind.CRASH_AFTER_COMMIT: Drawn(0.5, 0.1, 5),
        Kind.CUT_BOTH: Drawn(0.5, 0.5, 20),
        Kind.LOSE_SERVER: Drawn(2, 5, 120),
        Kind.CORDON: Drawn(1, 5, 100),
        Kind.SCALE: Drawn(1),
        Kind.CANCEL: Drawn(0.3),
    },
    Focus.NEWCOMERS: {
        Kind.KILL_WORKER: Drawn(3),
        Kind.KILL_AGENT: Drawn(1, 0.1, 5),
        Kind.KILL_CONTROLLER: Drawn(2, 0.1, 5),
        Kind.CRASH_BEFORE_COMMIT: Drawn(1, 0.1, 5),
        Kind.CRASH_AFTER_COMMIT: Drawn(1, 0.1, 5),
        Kind.LOSE_SERVER: Drawn(0.5, 5, 60),
        Kind.CORDON: Drawn(1, 5, 100),
        Kind.SCALE: Drawn(2),
        Kind.SET_POLICY: Drawn(0.5),
    },
    Focus.STOPS: {
        Kind.PAUSE: Drawn(6, 1, 120),
        Kind.HOLD: Drawn(2, 1, 120),
        Kind.CANCEL_SAVED: Drawn(1),
        Kind.REQUEUE: Drawn(2),
        Kind.GO_ON: Drawn(3),
        Kind.CHECKPOINT: Drawn(2),
        Kind.SCALE: Drawn(3),
        Kind.SET_POLICY: Drawn(0.5),
        Kind.KILL_SAVER: Drawn(1),
        Kind.KILL_WORKER: Drawn(2),
        Kind.STOP_WORKER: Drawn(0.5, 0.5, 8),
        Kind.KILL_AGENT: Drawn(1, 0.1, 5),
        Kind.KILL_CONTROLLER: Drawn(2, 0.1, 10),
        Kind.CRASH_BEFORE_COMMIT: Drawn(1, 0.1, 5),
        Kind.CRASH_AFTER_COMMIT: Drawn(1, 0.1, 5),
        Kind.TEAR_COMMIT: Drawn(0.5),
        Kind.CUT_BOTH: Drawn(1, 0.5, 20),
        Kind.LOSE_SERVER: Drawn(1, 5, 60),
    },
    Focus.PREEMPTIONS: {
        Kind.SCALE: Drawn(8),
        Kind.SET_POLICY: Drawn(2),
        Kind.KILL_SAVER: Drawn(3),
        Kind.KILL_WORKER: Drawn(2),
        Kind.STOP_WORKER: Drawn(0.5, 0.5, 8),
        Kind.KILL_AGENT: Drawn(1, 0.1, 5),
        Kind.KILL_CONTROLLER: Drawn(1, 0.1, 5),
        Kind.FILL_SERVER: Drawn(0.5, 5, 30),
        Kind.HIDE_STORAGE: Drawn(1, 5, 30),
        Kind.CUT_BOTH: Drawn(0.3, 0.5, 8),
        Kind.CUT_PEERS: Drawn(1, 10, 40),
        Kind.LOSE_SERVER: Drawn(1, 5, 30),
    },
    Focus.LINES: {
        Kind.SCALE: Drawn(4),
        Kind.CANCEL_IT: Drawn(1),
        Kind.SET_POLICY: Drawn(1),
        Kind.KILL_AGENT: Drawn(3, 0.1, 15),
        Kind.STOP_AGENT: Drawn(3, 1, 15),
        Kind.KILL_WORKER: Drawn(2),
        Kind.KILL_CONTROLLER: Drawn(2, 0.1, 10),
        Kind.CRASH_BEFORE_COMMIT: Drawn(1, 0.1, 5),
        Kind.CRASH_AFTER_COMMIT: Drawn(1, 0.1, 5),
        Kind.CUT_BOTH: Drawn(2, 0.5, 20),
    },
    Focus.RESIZES: {
        Kind.SCALE: Drawn(6),
        Kind.BREAK_LINK: Drawn(3),
        Kind.KILL_LEAVER: Drawn(1),
        Kind.KILL_WORKER: Drawn(1),
        Kind.STOP_WORKER: Drawn(1, 0.2, 4),
    },
    Focus.GPUS: {
        Kind.GPU_NOTED: Drawn(1, 5, 60),
        Kind.GPU_BARRED: Drawn(3, 5, 100),
        Kind.GPU_LEFT: Drawn(5, 10, 150),
        Kind.GPU_DEAD: Drawn(2, 10, 100),
        Kind.SERVER_BARRED: Drawn(1, 5, 60),
        Kind.LYING_TROUBLES: Drawn(0.5, 5, 60),
        Kind.CORDON: Drawn(3, 5, 100),
        Kind.SCALE: Drawn(3),
        Kind.CANCEL: Drawn(0.3),
        Kind.SET_POLICY: Drawn(0.7),
        Kind.KILL_CONTROLLER: Drawn(1, 0.1, 10),
        Kind.KILL_AGENT: Drawn(1, 0.1, 8),
        Kind.KILL_WORKER: Drawn(0.5),
        Kind.CUT_BOTH: Drawn(0.5, 0.5, 8),
        Kind.LOSE_SERVER: Drawn(0.3, 5, 30),
    },
    Focus.DRAINS: {
        Kind.DRAIN: Drawn(7, 30, 240),
        Kind.CORDON: Drawn(1, 5, 100),
        Kind.REMOVE: Drawn(2, 1, 20),
        Kind.SCALE: Drawn(1),
        Kind.CANCEL: Drawn(0.3),
        Kind.SET_POLICY: Drawn(0.3),
        Kind.GPU_LEFT: Drawn(0.5, 10, 100),
        Kind.KILL_CONTROLLER: Drawn(1.5, 0.1, 10),
        Kind.CRASH_BEFORE_COMMIT: Drawn(0.5, 0.1, 5),
        Kind.CRASH_AFTER_COMMIT: Drawn(0.5, 0.1, 5),
        Kind.KILL_AGENT: Drawn(1, 0.1, 8),
        Kind.KILL_WORKER: Drawn(1),
        Kind.LOSE_SERVER: Drawn(1.5, 5, 40),
        Kind.RESTORE_STORE: Drawn(0.2, 0.5, 5),
    },
    Focus.LONG: {
        Kind.SCALE: Drawn(3),
        Kind.CANCEL: Drawn(0.5),
        Kind.SET_POLICY: Drawn(1),
        Kind.HANG_STORAGE: Drawn(3, 20, 200),
        Kind.HIDE_STORAGE: Drawn(1, 20, 100),
        Kind.CUT_BOTH: Drawn(3, 5, 60),
        Kind.CUT_OUT: Drawn(1, 5, 60),
        Kind.CUT_PEERS: Drawn(1, 5, 60),
        Kind.CUT_DATA: Drawn(1, 60, 200),
        Kind.LOSE_SERVER: Drawn(1, 5, 100),
        Kind.KILL_WORKER: Drawn(2),
        Kind.REBOOT_CONTROLLER: Drawn(2, 0.5, 20),
        Kind.LOSE_STORE: Drawn(0.5, 0.5, 5),
        Kind.RESTORE_STORE: Drawn(1, 0.5, 5),
        Kind.FILL_STORE: Drawn(1.5, 1, 30),
        Kind.TEAR_COMMIT: Drawn(1),
    },
    Focus.GANGS: {
        Kind.SCALE: Drawn(4),
        Kind.CANCEL: Drawn(0.5),
        Kind.SET_POLICY: Drawn(2),
        Kind.KILL_WORKER: Drawn(2),
        Kind.STOP_WORKER: Drawn(1, 0.5, 8),
        Kind.KILL_AGENT: Drawn(2, 0.1, 15),
        Kind.STOP_AGENT: Drawn(1, 1, 15),
        Kind.KILL_CONTROLLER: Drawn(2, 0.1, 20),
        Kind.CRASH_BEFORE_COMMIT: Drawn(1, 0.1, 5),
        Kind.CRASH_AFTER_COMMIT: Drawn(1, 0.1, 5),
        Kind.STOP_CONTROLLER: Drawn(1, 0.5, 25),
        Kind.LOSE_SERVER: Drawn(1, 1, 60),
        Kind.FILL_SERVER: Drawn(0.5, 5, 60),
        Kind.CUT_BOTH: Drawn(3, 5, 60),
        Kind.CUT_OUT: Drawn(1, 0.5, 20),
        Kind.CUT_IN: Drawn(1, 0.5, 20),
        Kind.LOSE_STORE: Drawn(0.15, 0.5, 5),
        Kind.RESTORE_STORE: Drawn(0.3, 0.5, 5),
    },
}

# Histories of clusters with several types of GPUs: seeds with these remainders modulo 20.
MIXED = (6, 7)

WAIT = 0.4  # share of faults that wait for a moment
BURSTS, BURST_S, IN_BURSTS = 6, 5.0, 0.4  # number of bursts, their length, and the share of faults in them


@dataclass(frozen=True)
class Shape:
    """Size and variety of histories."""

    servers: int = 3
    gpus: int | None = None  # per server; None: drawn
    jobs: int = 5
    storm_s: float = STORM_S
    submit_s: float = 300.0  # within which jobs are submitted
    faults: int | None = None  # None: the weather's number
    policy: str = ""  # empty: drawn
    absurd: bool = True  # some jobs are valid but absurd
    mixed: bool = True  # some histories have servers of several types
    focus: bool = True  # some histories have one subject


def draw(seed: int, weather: Weather, shape: Shape) -> Plan:
    """Return the plan of `seed`.

    Each history draws its faults from a few groups of kinds only, since a fault of resizes shows sooner without other
    disturbances (swarm testing: Groce et al., ISSTA 2012). Some faults come in bursts, so that they coincide.
    """
    chance = random.Random(f"{seed}/plan")
    policy = shape.policy or chance.choice(POLICIES)
    gpus = shape.gpus or chance.choice((2, 3, 4))
    peer_loss = chance.choice(weather.peer_losses)
    groups = chance.sample(GROUPS, chance.randint(0, len(GROUPS)))
    kinds = tuple(kind for group in (*groups, _USERS) for kind in group if kind not in weather.without)
    bursts = tuple(chance.uniform(5, shape.storm_s) for _ in range(BURSTS))
    count = weather.faults if shape.faults is None else shape.faults
    focus = FOCUS.get(seed % FOCUS_OF) if count > 0 and shape.focus else None
    if count > 0 and shape.focus and seed % WITH_DEADLINES[1] == WITH_DEADLINES[0]:
        focus = Focus.DEADLINES
    if count > 0 and shape.focus and seed % WITH_NEWCOMERS[1] == WITH_NEWCOMERS[0]:
        focus = Focus.NEWCOMERS
    if count > 0 and shape.focus and seed % WITH_STOPS[1] == WITH_STOPS[0]:
        focus = Focus.STOPS
    resizes = count > 0 and chance.random() < RESIZES if focus is None else focus is Focus.RESIZES
    drawn = RESIZES_DRAWN if resizes else {kind: DRAWN[kind] for kind in kinds}
    moment_of = _MOMENT_OF[focus] if focus is not None else _resize_moment if resizes else _moment
    if focus is not None:
        drawn = FOCUS_DRAWN[focus]
    if focus is Focus.DRAINS and seed // FOCUS_OF % 2 == 0 and not shape.policy:
        policy = "max-min"  # under which free room is easy to determine
    if focus is Focus.DEADLINES and not shape.policy:
        policy = random.Random(f"{seed}/deadlines").choice(KEEP_DEADLINES)
    if focus in (Focus.LINES, Focus.RESIZES):
        weather = replace(weather, late=BAD_LINES, copies=BAD_LINES)
    faults: Iterable[Fault] = (
        _fault(random.Random(f"{seed}/fault/{i}"), drawn, moment_of, bursts, shape)
        for i in range(count * (1 if focus is None and not resizes else RESIZES_FAULTS))
    )
    jobs: Iterable[JobPlan] = (
        _job(random.Random(f"{seed}/job/{i}"), f"job{_letters(i)}", shape, shape.servers * gpus)
        for i in range(shape.jobs)
    )
    if resizes:
        jobs = map(_for_resizes, itertools.islice(jobs, RESIZES_JOBS))
    elif focus is Focus.PREEMPTIONS:
        chances = (random.Random(f"{seed}/preempted/{i}") for i in itertools.count())
        jobs = map(_for_preemptions, chances, itertools.islice(jobs, PREEMPTED_JOBS))
    elif focus is Focus.NEWCOMERS:
        jobs = (_with_newcomers(random.Random(f"{seed}/newcomers/{i}"), job) for i, job in enumerate(jobs))
    elif focus is Focus.LONG:
        jobs = map(_slow_to_start, jobs)
    elif focus is Focus.DEADLINES:
        jobs = (_with_deadline(random.Random(f"{seed}/deadline/{i}"), job) for i, job in enumerate(jobs))
    elif focus is Focus.GANGS:
        jobs = (_command(random.Random(f"{seed}/command/{i}"), job, gpus) for i, job in enumerate(jobs))
    jobs = list(jobs)
    if count > 0 and shape.focus and seed % WITH_LOANS[1] == WITH_LOANS[0]:
        lending = random.Random(f"{seed}/loans")
        faults = (*faults, *(_loan(lending, shape) for _ in range(LOANS)))
        jobs = [_with_priority(lending, job) for job in jobs]
    types: tuple[str, ...] = ()
    with_deadlines = focus is Focus.DEADLINES and seed // WITH_DEADLINES[1] % 2 == 1  # in half of these histories
    if shape.mixed and (seed % FOCUS_OF in MIXED or with_deadlines):
        types = _types(random.Random(f"{seed}/types"), shape.servers)
        jobs = [_typed(random.Random(f"{seed}/types/{i}"), job, types, gpus) for i, job in enumerate(jobs)]
    cores = 0
    if shape.focus and seed % WITH_AMOUNTS[1] == WITH_AMOUNTS[0]:
        cores = 2 * gpus
        jobs = [_with_amounts(random.Random(f"{seed}/amounts/{i}"), job, cores) for i, job in enumerate(jobs)]
    return Plan(
        idle=IDLE,
        types=types,
        cores=cores,
        seed=seed,
        weather=weather,
        servers=shape.servers,
        gpus=gpus,
        policy=policy,
        jobs=tuple(jobs),
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        storm_s=shape.storm_s,
        peer_loss=peer_loss,
        clocks_ahead_s=tuple(chance.choice((0.0, chance.uniform(-3600, 3600))) for _ in range(shape.servers)),
        users=USERS,
    )


def _letters(number: int) -> str:
    return (_letters(number // 26 - 1) if number >= 26 else "") + chr(97 + number % 26)


def _job(chance: random.Random, name: str, shape: Shape, cluster_gpus: int) -> JobPlan:
    low = chance.choice((1, 1, 2, 4))
    high = max(low, chance.choice((2, 4, 8)))
    virtual = 8
    step_s = chance.choice((1.0, 2.0, 4.0, 8.0))
    start_s, save_s = chance.uniform(1, 8), chance.uniform(0.1, 3.0)
    steps = int(chance.uniform(60, 300) / step_s)
    ending = chance.choices(DRAWN_ENDINGS, (12, 1, 0.5, 1, 0.5, 0.5, 0.7, 0))[0]
    ends_at, registers = chance.randrange(1, steps), chance.random() < 0.4
    every_s = chance.choice((10.0, 30.0, 120.0))
    evaluates = chance.random() < 0.3
    evaluate_every, evaluate_s = chance.randrange(10, 60), chance.choice((1.0, 8.0, 20.0))
    at = round(1 + chance.uniform(0, min(shape.submit_s, 0.9 * shape.storm_s)), 3)
    absurd, which = chance.random() < 0.3, chance.randrange(11)
    throughput: dict[int, float] = {}
    limits = LIMITS
    if absurd and shape.absurd:
        if which == 0:
            low, high, virtual = 4096, 4096, 4096
        elif which == 1:
            low = high = cluster_gpus + 1
            virtual = high
        elif which == 2:
            throughput = {1: 1e-300, 2: 1e15}
        elif which == 3:
            high, virtual = 4096, 4096
        elif which == 4:
            step_s = 0.0
        elif which == 5:  # duration in minutes
            step_s, steps, ending = 150.0, 4, Ending.TRAINS
            limits = {**LIMITS, "step_timeout_s": 600.0, "pause_timeout_s": 900.0}
        elif which == 6:  # these five are rejected
            throughput = {1: float("nan")}
        elif which == 7:
            throughput = {1: 0.0}
        elif which == 8:
            throughput = {1: float("inf")}
        elif which == 9:
            every_s = float("inf")
        else:
            low, high, virtual = 10**6, 10**6, 10**6
    after_s = chance.choice((0.2, 0.2, 0.2, 10.0))
    spec = JobSpec(
        name=name,
        command=("python", "train.py"),
        gpus=GpuRange(min=low, max=high),
        virtual_workers=virtual,
        workdir="/home/user",
        checkpoint=CheckpointSpec(every_s=every_s),
        throughput=throughput,
        max_steps=steps,
        **limits,
    )
    script = Script(
        steps=steps,
        step_s=step_s,
        start_s=start_s,
        save_s=save_s,
        evaluate_every=evaluate_every if evaluates else 0,
        evaluate_s=evaluate_s if evaluates else 0.0,
        ending=ending,
        ends_at=ends_at,
        registers=registers,
        after_s=after_s,
        odd_metrics=chance.random() < 0.2,
        sequential=steps % 3 == 0,  # not drawn, so that recorded histories stay the same
    )
    return JobPlan(at, spec, script)


def _types(chance: random.Random, servers: int) -> tuple[str, ...]:
    """GPU model of each server; each model occurs."""
    found = [*TYPES, *(chance.choice(list(TYPES)) for _ in range(servers - len(TYPES)))][:servers]
    chance.shuffle(found)
    return tuple(found)


def _typed(chance: random.Random, job: JobPlan, types: Sequence[str], gpus: int) -> JobPlan:
    """Return the job; it may ask for a type, for GPUs per server, or be able to use several types at once."""
    asked, least, most = job.spec.gpus, job.spec.gpus.min, job.spec.gpus.max
    enough = [name for name in TYPES if types.count(name) * gpus >= least]
    word, mixes, gang = chance.random() < 0.5, chance.random() < 0.4, chance.random() < 0.25
    traced = job.script.steps % 2 == 0  # not drawn, so that recorded histories stay the same
    mixed = Determinism.HETEROGENEOUS if traced else Determinism.NONE
    changes: dict[str, Any] = {"determinism": mixed if mixes else Determinism.ELASTIC}
    if word and enough:
        changes["gpu_types"] = (TYPES[chance.choice(enough)],)
    if gang and not least % 2 and not most % 2 and most <= 8:
        changes |= {"gpus_per_server": 2, "gpus": GpuRange(min=2, max=asked.max)}
    script = replace(job.script, agnostic=job.script.steps % 4 == 0)
    return replace(job, spec=msgspec.structs.replace(job.spec, **changes), script=script)


def _with_deadline(chance: random.Random, job: JobPlan) -> JobPlan:
    """Return the job, most often with a deadline. The duration of its steps is given, or measured."""
    has, soft, told = chance.random() < 0.8, chance.random() < 0.25, chance.random() < 0.6
    alone_s = job.script.steps * job.script.step_s
    in_s = chance.uniform(0.2, 3.0) * max(alone_s, 10.0)
    changes: dict[str, Any] = {"deadline": Deadline(in_s=in_s, soft=soft)} if has else {}
    if told and job.script.step_s > 0 and not job.spec.throughput:
        changes["throughput"] = {gpus: gpus / job.script.step_s for gpus in (1, 2, 4, 8)}
    return replace(job, spec=msgspec.structs.replace(job.spec, **changes))


def _loan(chance: random.Random, shape: Shape) -> Fault:
    """An operator lends some GPUs."""
    at, for_s = round(chance.uniform(5, shape.storm_s), 3), round(chance.uniform(20, 150), 1)
    return Fault(at, Kind.LEND, chance.randrange(1000), for_s)


def _with_amounts(chance: random.Random, job: JobPlan, cores: int) -> JobPlan:
    """Return the job, which most often asks for cores or memory; sometimes for more than a server's part for each GPU."""
    cpus, gib = chance.choice((0.0, 1.0, 2.0, 3.5, float(cores))), chance.choice((0, 0, 1, 3, cores // 2))
    asked = {"cpus": cpus, "memory_bytes": gib << 30, "notify": (Notify.START, Notify.END)}
    return replace(job, spec=msgspec.structs.replace(job.spec, **asked))


def _with_priority(chance: random.Random, job: JobPlan) -> JobPlan:
    return replace(job, spec=msgspec.structs.replace(job.spec, priority=chance.choice((-10, 0, 0, 10))))


def _with_newcomers(chance: random.Random, job: JobPlan) -> JobPlan:
    """Return a job that trains for a while, with newcomers that mostly differ from the others, or do not fit on all servers."""
    ending = chance.choice((Ending.UNLIKE, Ending.UNLIKE, Ending.MISFITS, Ending.MISFITS, Ending.TRAINS))
    low, step_s = chance.choice((1, 1, 1, 2)), chance.choice((1.0, 2.0, 4.0))
    steps = int(chance.uniform(150, 600) / step_s)
    script = replace(job.script, ending=ending, step_s=step_s, steps=steps)
    spec = msgspec.structs.replace(
        job.spec,
        gpus=GpuRange(min=low, max=8),
        virtual_workers=8,
        throughput={},
        checkpoint=CheckpointSpec(every_s=30.0),
        max_steps=steps,
        **LIMITS,
    )
    return JobPlan(1 + job.at / 4, spec, script)


def _for_resizes(job: JobPlan) -> JobPlan:
    """Return a job that trains for long, without odd parameters."""
    script = replace(job.script, ending=Ending.TRAINS, step_s=RESIZES_STEP_S, steps=RESIZES_STEPS)
    spec = msgspec.structs.replace(
        job.spec, gpus=GpuRange(min=1, max=8), virtual_workers=8, throughput={}, max_steps=RESIZES_STEPS, **LIMITS
    )
    return JobPlan(1 + job.at / 10, spec, script)


def _slow_to_start(job: JobPlan) -> JobPlan:
    """Return the job with a script that loads slowly, so that a restarted controller meets it while it loads."""
    return replace(job, script=replace(job.script, start_s=SLOW_START * job.script.start_s))


def _command(chance: random.Random, job: JobPlan, server_gpus: int) -> JobPlan:
    """Mostly a command that never calls `elastic.join()`; now and then one that does without `must_join`."""
    ending = chance.choices((Ending.EXITS_UNJOINED, Ending.FAILS_UNJOINED, Ending.TRAINS), (6, 1, 2))[0]
    restarts, most = chance.choice((0, 0, 1, 3, None)), chance.choice((1, 1, 2, 3, 5))
    least = most if restarts is not None or chance.random() < 0.5 else 1
    processes = Processes.PER_GPU if ending is Ending.TRAINS else chance.choice(tuple(Processes))
    spec = msgspec.structs.replace(
        job.spec,
        gpus=GpuRange(min=least, max=most),
        virtual_workers=8,
        throughput={},
        checkpoint=CheckpointSpec(every_s=30.0),
        restarts=restarts,
        must_join=False,
        processes=processes,
        **{name: value for name, value in LIMITS.items() if name != "must_join"},
    )
    begins_s = job.script.start_s if ending is Ending.TRAINS else chance.choice((1.0, 20.0, 90.0))
    return JobPlan(job.at, spec, replace(job.script, ending=ending, start_s=begins_s))


def _for_preemptions(chance: random.Random, job: JobPlan) -> JobPlan:
    """Return a job that trains for long, and saves seldom and slowly; its epochs are short."""
    step_s, evaluates = chance.choice((1.0, 2.0, 8.0)), chance.random() < 0.6
    ending = chance.choices((Ending.TRAINS, Ending.IGNORES_SIGNAL), (3, 1))[0]
    steps, low = int(PREEMPTED_S / step_s), chance.choice((1, 1, 2, 3))
    script = replace(
        job.script,
        ending=ending,
        step_s=step_s,
        steps=steps,
        save_s=chance.choice((0.5, 4.0, 12.0)),
        evaluate_every=chance.randrange(2, 9) if evaluates else 0,
        evaluate_s=chance.choice((0.2, 2.0)) if evaluates else 0.0,
    )
    spec = msgspec.structs.replace(
        job.spec,
        gpus=GpuRange(min=low, max=8),
        virtual_workers=8,
        throughput={},
        checkpoint=CheckpointSpec(every_s=60.0),
        max_steps=steps,
        **LIMITS,
    )
    return JobPlan(1 + job.at / 10, spec, script)


def _moment(chance: random.Random, kind: Kind) -> Moment:
    return chance.choice(DRAWN_MOMENTS) if chance.random() < WAIT else Moment.AT_ONCE


def _resize_moment(chance: random.Random, kind: Kind) -> Moment:
    if kind is Kind.SCALE:
        return chance.choice((Moment.AT_ONCE, Moment.AT_ONCE, Moment.ORDER, Moment.SWITCH, Moment.JOIN))
    moments: list[Moment] = [*[Moment.DECISION] * 4, *DRAWN_MOMENTS]
    return chance.choice(moments)


def _preemption_moment(chance: random.Random, kind: Kind) -> Moment:
    if kind in (Kind.SCALE, Kind.SET_POLICY, Kind.PAUSE, Kind.HOLD):
        return chance.choice((Moment.AT_ONCE, Moment.AT_ONCE, Moment.STOP, Moment.SAVE, Moment.ORDER))
    return chance.choice((Moment.AT_ONCE, Moment.STOP, Moment.STOP, Moment.SAVE, Moment.ORDER, Moment.REQUEST))


def _line_moment(chance: random.Random, kind: Kind) -> Moment:
    if kind is Kind.CANCEL_IT:
        return Moment.START
    if kind in _USERS:
        return chance.choice((Moment.AT_ONCE, Moment.START, Moment.START, Moment.ORDER, Moment.STOP))
    return _moment(chance, kind)


def _long_moment(chance: random.Random, kind: Kind) -> Moment:
    moment = _moment(chance, kind)
    return moment if kind not in _STORE else chance.choice((moment, Moment.REQUEST, Moment.HELLO))


_MOMENT_OF: dict[Focus, Callable[[random.Random, Kind], Moment]] = {
    Focus.PREEMPTIONS: _preemption_moment,
    Focus.LINES: _line_moment,
    Focus.RESIZES: _resize_moment,
    Focus.LONG: _long_moment,
    Focus.GANGS: _moment,
    Focus.GPUS: _moment,
    Focus.DEADLINES: _moment,
    Focus.DRAINS: _moment,
    Focus.NEWCOMERS: _resize_moment,
    Focus.STOPS: _preemption_moment,
}


def _fault(
    chance: random.Random,
    drawn: Mapping[Kind, Drawn],
    moment_of: Callable[[random.Random, Kind], Moment],
    bursts: Sequence[float],
    shape: Shape,
) -> Fault:
    (kind,) = chance.choices(list(drawn), [one.weight for one in drawn.values()])
    alone, burst = chance.uniform(5, shape.storm_s), chance.choice(bursts) + chance.uniform(0, BURST_S)
    at = round(burst if chance.random() < IN_BURSTS else alone, 3)
    moment = moment_of(chance, kind)
    lasts = round(chance.uniform(drawn[kind].shortest_s, drawn[kind].longest_s), 1)
    return Fault(at, kind, chance.randrange(1000), lasts, moment)
