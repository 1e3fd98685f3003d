"""The commands of scenarios and lives (`scenarios`, `anywhere`), one per line.

`cluster`, `submit`, `scale JOB N|auto`, `cancel JOB`, `lend GPUS 10s`, `policy NAME`, `run 10s`, `clear`, `quiet` (until all
jobs have ended as they should), `jump clock SECONDS`, and the faults of `FAULTS` with target and duration (with `all` after a
server: it is cut off from the other servers, too). JOB is a job's name; its leader is `JOB.leader`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from elasticd.protocol.messages import Cancel, Scale, SetPolicy
from elasticd.protocol.model import (
    After,
    ArrayElement,
    CheckpointSpec,
    Determinism,
    GpuRange,
    JobId,
    JobSpec,
    Notify,
    Processes,
)

from .faults import strike
from .plan import CONNECT_S, LIMITS, TYPES, WEATHERS, Ending, Fault, JobPlan, Kind, Plan, Script
from .worker import Worker
from .world import World

FAULTS: dict[str, Kind] = {
    "kill controller": Kind.KILL_CONTROLLER,
    "stop controller": Kind.STOP_CONTROLLER,
    "succeed controller": Kind.ZOMBIE,
    "crash controller-before-commit": Kind.CRASH_BEFORE_COMMIT,
    "crash controller-after-commit": Kind.CRASH_AFTER_COMMIT,
    "tear commit": Kind.TEAR_COMMIT,
    "fill store": Kind.FILL_STORE,
    "lock store": Kind.LOCK_STORE,
    "lose store": Kind.LOSE_STORE,
    "restore store": Kind.RESTORE_STORE,
    "kill agent": Kind.KILL_AGENT,
    "stop agent": Kind.STOP_AGENT,
    "switch-off server": Kind.LOSE_SERVER,
    "fill server": Kind.FILL_SERVER,
    "black-hole server": Kind.BLACK_HOLE,
    "hide-storage server": Kind.HIDE_STORAGE,
    "hang-storage server": Kind.HANG_STORAGE,
    "slow server": Kind.SLOW_SERVER,
    "twin server": Kind.TWIN_AGENT,
    "cut-in server": Kind.CUT_IN,
    "cut-out server": Kind.CUT_OUT,
    "cut-off server": Kind.CUT_BOTH,
    "cut-peers server": Kind.CUT_PEERS,
    "cut-data server": Kind.CUT_DATA,
    "bar-gpu server": Kind.GPU_BARRED,
    "leave-gpu server": Kind.GPU_LEFT,
    "break-gpu server": Kind.GPU_DEAD,
    "bar server": Kind.SERVER_BARRED,
    "cordon-gpu server": Kind.CORDON,
    "drain server": Kind.DRAIN,
    "remove server": Kind.REMOVE,
    "kill worker": Kind.KILL_WORKER,
    "kill job-of-worker": Kind.KILL_JOB,
    "stop worker": Kind.STOP_WORKER,
    "hang worker": Kind.HANG_WORKER,
    "take-over server": Kind.FORGE,
}


class ScenarioError(Exception):
    """Raised for a line that is no command, or that names a missing job, server or worker."""


@dataclass
class Stage:
    """A scenario in progress."""

    make: Callable[[Plan], World] = lambda plan: World(plan, tell=True)
    world: World = field(init=False)
    told: int = 0  # lines of the story that are already in the file
    requests: int = 0

    def __post_init__(self) -> None:
        self.world = self.make(Plan(seed=0))

    def lines(self) -> list[str]:
        """Events since the last block, with times in tenths of a second."""
        fresh = self.world.story.lines[self.told :]
        self.told = len(self.world.story.lines)
        return [f"{float(line[:9]):7.1f} {line[10:]}" for line in fresh]


Options = dict[str, str]


def command(stage: Stage, line: str) -> None:
    """Run one line. Raises ScenarioError if it is not a command, Violation if an invariant is broken."""
    words = [word for word in line.split() if "=" not in word]
    options = dict(word.split("=", 1) for word in line.split() if "=" in word)
    known = COMMANDS.get(words[0])
    if known is not None:
        known(stage, words[1:], options)
        return
    kind = FAULTS.get(" ".join(words[:2]))
    if kind is not None:
        _fault(stage, kind, words[2:])
    elif words[0] == "jump" and len(words) == 3:
        seconds = _seconds(words[2])
        _strike(stage, Fault(0.0, Kind.JUMP_CLOCK, int(seconds > 0), abs(seconds)))
    else:
        raise ScenarioError(f"not a command: {line!r}")


def _cluster(stage: Stage, words: Sequence[str], options: Options) -> None:
    plan = Plan(
        seed=int(options.get("seed", "0")),
        weather=WEATHERS[options.get("weather", "calm")],
        servers=int(options.get("servers", "2")),
        gpus=int(options.get("gpus", "2")),
        policy=options.get("policy", "max-min"),
        types=tuple(_NAMES[word] for word in options["types"].split(",")) if "types" in options else (),
        cores=int(options.get("cores", "0")),
        connect_s=_seconds(options["connect"]) if "connect" in options else CONNECT_S,
    )
    stage.world, stage.told = stage.make(plan), 0
    stage.world.run(1.0)


def _submit(stage: Stage, words: Sequence[str], options: Options) -> None:
    low, _, high = options.get("gpus", "1:4").partition(":")
    steps = int(options.get("steps", "100"))
    ending, _, ends_at = options.get("ending", "trains").partition("@")
    changes: dict[str, Any] = dict(LIMITS)
    if not _ENDINGS[ending].joins and "start-timeout" not in options:
        changes["must_join"] = False
    if "restarts" in options:
        changes["restarts"] = int(options["restarts"])
    if "processes" in options:
        changes["processes"] = Processes(options["processes"])
    for word in ("start-timeout", "load-timeout", "step-timeout"):
        if word in options:
            changes[f"{word.replace('-', '_')}_s"] = _seconds(options[word])
    spec = JobSpec(
        name=words[0],
        command=("python", "train.py"),
        gpus=GpuRange(min=int(low), max=int(high or low)),
        virtual_workers=int(options.get("virtual-workers", "8")),
        workdir="/home/user",
        checkpoint=CheckpointSpec(every_s=_seconds(options.get("every", "30s"))),
        max_steps=steps,
        throughput={1: float(options["throughput"])} if "throughput" in options else {},
        gpu_types=tuple(options["type"].split(",")) if "type" in options else (),
        notify=tuple(map(Notify, options["notify"].split(","))) if "notify" in options else (),
        cpus=float(options.get("cpus", "0")),
        memory_bytes=int(options.get("memory-gib", "0")) << 30,
        gpus_per_server=int(options["per-server"]) if "per-server" in options else None,
        determinism=Determinism(options.get("determinism", "elastic")),
        after=tuple(_after(text) for text in options["waits-for"].split(",")) if "waits-for" in options else (),
        array=_element(options["array"]) if "array" in options else None,
        time_limit_s=_seconds(options["time"]) if "time" in options else None,
        warn_s=_seconds(options["warn"]) if "warn" in options else None,
        **changes,
    )
    script = Script(
        steps=steps,
        step_s=_seconds(options.get("step", "0.4s")),
        start_s=_seconds(options.get("start", "2s")),
        save_s=_seconds(options.get("save", "0.5s")),
        evaluate_every=int(options.get("evaluate-every", "0")),
        evaluate_s=_seconds(options.get("evaluate", "0s")),
        ending=_ENDINGS[ending],
        ends_at=int(ends_at or 0),
        after_s=_seconds(options.get("after", "0.2s")),
        odd_metrics=options.get("metrics") == "odd",
    )
    plan = JobPlan(stage.world.elapsed_s, spec, script)
    stage.world.add_job(plan)
    stage.world.users.submit(plan)


def _after(text: str) -> After:
    """Return the dependency that "prep" or "prep:any" describes."""
    name, _, how = text.partition(":")
    return After(job=JobId(name), any=how == "any")


def _element(text: str) -> ArrayElement:
    """Return the place in an array that "sweep%2" describes: two jobs of the array may have GPUs at a time."""
    name, _, most = text.partition("%")
    return ArrayElement(array=name, name=name, index=0, text=text, size=100, most=int(most))


_NAMES = {word: name for name, word in TYPES.items()}
_ENDINGS = {
    "trains": Ending.TRAINS,
    "raises": Ending.RAISES,
    "exits": Ending.EXITS,
    "unlike": Ending.UNLIKE,
    "misfits": Ending.MISFITS,
    "exits-on-signal": Ending.EXITS_ON_SIGNAL,
    "never-joins": Ending.NEVER_JOINS,
    "exits-unjoined": Ending.EXITS_UNJOINED,
    "fails-unjoined": Ending.FAILS_UNJOINED,
    "out-of-memory": Ending.OUT_OF_MEMORY,
}


def _job(stage: Stage, name: str) -> JobId:
    for job in stage.world.oracle.submitted().values():
        if name in (job, job.rpartition("-")[0]):
            return job
    raise ScenarioError(f"no job {name!r} has been submitted")


def _scale(stage: Stage, words: Sequence[str], options: Options) -> None:
    share = None if words[1] == "auto" else int(words[1])
    stage.requests += 1
    stage.world.users.ask(f"scale-{stage.requests}", Scale(job=_job(stage, words[0]), share=share))


def _cancel(stage: Stage, words: Sequence[str], options: Options) -> None:
    stage.requests += 1
    job = _job(stage, words[0])
    stage.world.oracle.asked_to_cancel(job)
    stage.world.users.ask(f"cancel-{stage.requests}", Cancel(job=job))


def _policy(stage: Stage, words: Sequence[str], options: Options) -> None:
    stage.requests += 1
    stage.world.users.ask(f"policy-{stage.requests}", SetPolicy(document={"policy": words[0]}, source="a user"))


def _lend(stage: Stage, words: Sequence[str], options: Options) -> None:
    stage.requests += 1
    stage.world.users.lend(stage.requests, int(words[0]) - 1, _seconds(words[1]))


def _run(stage: Stage, words: Sequence[str], options: Options) -> None:
    stage.world.run(_seconds(words[0]))


def _clear(stage: Stage, words: Sequence[str], options: Options) -> None:
    stage.world.clear()


def _quiet(stage: Stage, words: Sequence[str], options: Options) -> None:
    stage.world.run_until_quiet()
    stage.world.oracle.at_end()
    stage.world.story.say("all has ended as it should")


COMMANDS: dict[str, Callable[[Stage, Sequence[str], Options], None]] = {
    "cluster": _cluster,
    "submit": _submit,
    "scale": _scale,
    "cancel": _cancel,
    "lend": _lend,
    "policy": _policy,
    "run": _run,
    "clear": _clear,
    "quiet": _quiet,
}


def _fault(stage: Stage, kind: Kind, words: Sequence[str]) -> None:
    world = stage.world
    names = [word for word in words if not word[0].isdigit()]
    for_s = next((_seconds(word) for word in words if word[0].isdigit()), 0.0)
    who = 0
    if names:
        if "worker" in kind.value:
            who = world.workers().index(_worker(stage, names[0]))
        else:
            who = [agent.name for agent in world.agents].index(names[0])
    if kind in (Kind.CORDON, Kind.DRAIN, Kind.REMOVE):  # a request has a unique id
        stage.requests += 1
    if "all" in names[1:]:
        who = next(number for number in range(who, 1000, len(world.agents)) if number % 2)
    _strike(stage, Fault(0.0, kind, who, for_s))


def _worker(stage: Stage, name: str) -> Worker:
    job = name.removesuffix(".leader")
    for worker in stage.world.workers():
        if worker.name == name or (name.endswith(".leader") and worker.job == _job(stage, job) and worker.leads):
            return worker
    raise ScenarioError(f"no worker {name!r} runs")


def _strike(stage: Stage, fault: Fault) -> None:
    stage.world.next_black_hole_at = 0.0  # a scenario may have any number of black holes
    strike(stage.world, stage.requests, replace(fault, at=stage.world.elapsed_s))


def _seconds(text: str) -> float:
    return float(text.removesuffix("s"))
