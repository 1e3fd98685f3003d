"""Benchmark of the runtime on GPUs, with one worker and, where there are several GPUs, with all of them. `make bench-gpu`

    python -m benchmarks.gpu [--device cuda|cpu] [--workers N] [--shared] [--quick]
                             [--only rules|bits|kills|races|cluster|steps|exchange|resizing|losses] [--json FILE]

Parts that need a second GPU are skipped where there is none. With `--shared` the workers share the first one, and only the
parts that do not measure times are run: rules, bits, kills, races. `--device cpu` runs the same on CPUs, as a test of the
benchmark, and reports what that does not show. Results are printed and go to out/bench-gpu.json and, as a page, to
out/bench-gpu.md. Without a GPU the exit code is 2.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from elasticd.ctl.client import Client
from elasticd.protocol.messages import Submit, Submitted
from elasticd.protocol.model import CheckpointSpec, GpuRange, JobSpec
from elasticd.protocol.variables import NCCL_ENVIRONMENT, REPEATABLE

from . import gpu_checks, gpu_cluster, gpu_kills, gpu_page, gpu_races
from .gpu_job import VIRTUAL_WORKERS
from .runtime import machine
from .runtime.jobs import Load, OurJob, kill
from .runtime.loops import ratio
from .runtime.measurement import Goal, Measurement, number
from .runtime.pauses import Pause, one_change
from .runtime.processes import ROOT, Family, MeasurementFailed, end_tree, free_port, module, until
from .runtime.report import table
from .runtime.station import Station

RULES = "rules"  # of CUDA and NCCL, checked one by one: `gpu_checks`
WITHOUT_TIMES = (RULES, "bits", "kills", "races")  # possible for workers that share a GPU
NO_GPU = "no GPU was found: this measures the runtime on GPUs (--device cpu tries the same on processors)"
MODES = {"none": Goal(0.997, at_least=True), "elastic": Goal(0.97, at_least=True)}
RANKS_WITHIN_S = 1800.0
RECOVERED_WITHIN_S = 60.0


@dataclass(frozen=True)
class Setting:
    """Device, number of workers and extent of a run."""

    device: str
    workers: int
    quick: bool
    shared: bool = False  # all workers share one GPU

    def pick(self, full: Any, quick: Any) -> Any:
        return quick if self.quick else full


# ------------------------------------------------------------------------------------------------------------- processes


class Ranks:
    """Processes that run one role of `gpu_ranks` together; a context manager."""

    def __init__(self, family: Family, setting: Setting, role: str, size: int, **settings: Any) -> None:
        self._family = family
        self._setting = setting
        self._role = role
        self._size = size
        self._settings = settings
        self._temporary = tempfile.TemporaryDirectory(prefix="bench-gpu-")
        self.directory = Path(self._temporary.name)
        self.station = Station()
        self._port = free_port()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Ranks:
        self.station.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                end_tree(process.pid)
        self.station.__exit__(None, None, None)
        self._temporary.cleanup()

    def start(
        self,
        rank: int,
        jobs: dict[str, tuple[int, str]],
        protect: bool,
        beside: Mapping[str, str] | None = None,
        **variables: str,
    ) -> None:
        """Start one process. jobs: virtual workers and determinism of the jobs it joins. protect: only this runtime runs in it,
        with an agent's environment; otherwise the compared libraries have their defaults. beside: further variables."""
        places = {
            name: {
                **self.station.variables(name, rank, count, determinism, str(self.directory / name)),
                "ELASTICD_GPU_KIND": self._setting.device,
                **variables,
            }
            for name, (count, determinism) in jobs.items()
        }
        environment = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._port),
            **gpu_checks.visible(self._setting.device, rank, self._setting.workers, self._setting.shared),
            **REPEATABLE,
            **(NCCL_ENVIRONMENT if protect else {}),
            **(beside or {}),
        }
        settings = {**self._settings, "device": self._setting.device, "variables": places}
        command = [sys.executable, "-m", "benchmarks.gpu_ranks", self._role, str(rank), str(self._size)]
        command += [str(self._result(rank)), json.dumps(settings)]
        self._processes[rank] = self._family.start(command, environment, self.directory / "log")

    def results(self) -> dict[int, Any]:
        """Return the result of each process; those that have left their job have none. Raises MeasurementFailed."""
        codes = {rank: process.wait(RANKS_WITHIN_S) for rank, process in self._processes.items()}
        if any(codes.values()):
            log = (self.directory / "log").read_text(errors="replace")
            raise MeasurementFailed(f"{self._role} failed with {codes}:\n{log[-4000:]}")
        return {rank: json.loads(self._result(rank).read_text()) for rank in codes if self._result(rank).exists()}

    def _result(self, rank: int) -> Path:
        return self.directory / f"result-{rank}"


def together(family: Family, setting: Setting, role: str, size: int, jobs: dict[str, str], **settings: Any) -> Any:
    """Run a role in `size` ranks that all join `jobs` (name: determinism), one virtual worker each. Returns rank 0's result."""
    with Ranks(family, setting, role, size, **settings) as ranks:
        for name in jobs:
            ranks.station.order(name, 1, range(size), leader=0)
        for rank in range(size):
            ranks.start(rank, {name: (size, determinism) for name, determinism in jobs.items()}, protect=False)
        return ranks.results()[0]


# ---------------------------------------------------------------------------------------------------------- measurements


def steps(family: Family, setting: Setting) -> list[Measurement]:
    """Measure throughput without changes, against stock DistributedDataParallel."""
    found = []
    for model in setting.pick(("convolutions-0.1M", "transformer-10M", "transformer-100M"), ("stack-0.1M",)):
        for size in sorted({1, setting.workers}):
            times = together(
                family,
                setting,
                "compare",
                size,
                {mode: mode for mode in MODES},
                model=model,
                warm_up=setting.pick(20, 3),
                blocks=setting.pick(21, 3),
                steps=setting.pick(20, 5),
            )
            step_ms = median(times["wall"]["ddp"]) * 1e3
            found += [
                Measurement(
                    "steps",
                    f"{model}, W = {size}, `determinism: {mode}`",
                    f"stock DDP: {number(step_ms)} ms a step",
                    ratio(times["wall"], "ddp", mode),
                    "of its throughput",
                    len(times["wall"]["ddp"]),
                    goal,
                    times,
                ).show()
                for mode, goal in MODES.items()
            ]
    return found


def exchange(family: Family, setting: Setting) -> list[Measurement]:
    """Measure the canonical reduction against the library's all-reduce, and the bandwidth of state transfers."""
    if setting.workers < 2:
        return []
    elements, repetitions = setting.pick((25_000_000, 21), (1_000_000, 3))
    jobs = {"bench": "elastic"}
    said = together(family, setting, "exchange", setting.workers, jobs, elements=elements, repetitions=repetitions)
    times = said["times_s"]
    plain_s, moved_s = median(times["all-reduce"]), median(times["transfer"])
    pairs = zip(times["canonical"], times["all-reduce"], strict=True)
    what = f"{elements / 1e6:.0f} M parameters"
    return [
        Measurement(
            "exchange",
            f"canonical reduction of {what}, W = {setting.workers}",
            f"all-reduce: {number(plain_s * 1e3)} ms",
            median(ours / theirs for ours, theirs in pairs),
            "of its time",
            repetitions,
            Goal(1.3),
            times,
        ).show(),
        Measurement(
            "exchange",
            f"state of {what} to a joiner, new memory for it included",
            f"{number(moved_s * 1e3)} ms",
            said["bytes"] / moved_s / 1e9,
            "GB/s",
            repetitions,
            None,
            times,
        ).show(),
    ]


class GpuJob(OurJob):
    """A cluster of one server with all GPUs of this machine (or CPU slots in their place)."""

    def __init__(self, family: Family, directory: Path, load: Load, setting: Setting) -> None:
        super().__init__(family, directory, load)
        self._setting = setting

    def start(self, workers: int) -> None:
        cluster = self.directory / "cluster"
        self._elasticctl = [str(Path(sys.executable).with_name("elasticctl")), "--dir", str(cluster)]
        slots = [] if self._setting.device == "cuda" else ["--gpus", str(self._setting.workers)]
        self._run("up", "--servers", "1", *slots)
        self._client = Client(json.loads((cluster / "cluster.json").read_text())["controller"])
        spec = JobSpec(
            name="bench",
            command=tuple(module("train_elastic", self.load.model, str(self.directory / "record"), "0")),
            gpus=GpuRange(min=1, max=self._setting.workers),
            virtual_workers=self._setting.workers,
            workdir=str(ROOT),
            checkpoint=CheckpointSpec(every_s=1e6),
            user="bench",
        )
        answer = self._client.ask(Submit(spec=spec))
        assert isinstance(answer, Submitted)
        self._job = answer.job
        self.resize(workers)


def _with_job(family: Family, setting: Setting, measure: Callable[[GpuJob], list[Measurement]]) -> list[Measurement]:
    if setting.workers < 2:
        return []
    found = []
    for model in setting.pick(("stack-0.1M", "stack-10M", "stack-100M"), ("stack-0.1M",)):
        with tempfile.TemporaryDirectory(prefix="bench-gpu-") as directory:
            job = GpuJob(family, Path(directory), Load(model), setting)
            try:
                found += measure(job)
            finally:
                job.close()
    return found


def resizing(family: Family, setting: Setting) -> list[Measurement]:
    """Measure the longest interval between applied steps, less the median step, from 1 worker to all and back."""

    def measure(job: GpuJob) -> list[Measurement]:
        job.start(1)
        found = []
        ways = ((1, setting.workers), (setting.workers, 1))
        pauses: dict[tuple[int, int], list[Pause]] = {way: [] for way in ways}
        for _ in range(setting.pick(10, 2)):
            for way in ways:
                pauses[way].append(one_change(job, setting.pick(50, 10), 0.5, *way))
        for (before, after), seen in pauses.items():
            step_ms = median(pause.step_s for pause in seen) * 1e3
            found.append(
                Measurement(
                    "resizing",
                    f"{job.load.model}, {before} -> {after}: longest pause",
                    f"median {number(median(pause.pause_s for pause in seen) * 1e3)} ms, step {number(step_ms)} ms",
                    max(pause.pause_s for pause in seen) * 1e3,
                    "ms",
                    len(seen),
                    Goal(step_ms + 30.0),
                    {"pauses_s": [pause.pause_s for pause in seen]},
                ).show()
            )
        return found

    return _with_job(family, setting, measure)


def losses(family: Family, setting: Setting) -> list[Measurement]:
    """Measure the time from SIGKILL of a worker to the next step applied without it."""

    def measure(job: GpuJob) -> list[Measurement]:
        job.start(setting.workers)
        took_ms = []
        old: frozenset[int] = frozenset()
        for turn in range(setting.pick(15, 2)):
            old = job.until_steady(setting.workers, 10, not_these=old)
            took_ms.append(_lose(job, turn % setting.workers) * 1e3)
        goals = (("median", median(took_ms), 100.0), ("worst", max(took_ms), 1000.0))
        return [
            Measurement(
                "losses",
                f"{job.load.model}, W = {setting.workers}: {word}",
                "SIGKILL to the next applied step",
                value,
                "ms",
                len(took_ms),
                Goal(goal),
                {"took_ms": took_ms},
            ).show()
            for word, value, goal in goals
        ]

    return _with_job(family, setting, measure)


def _lose(job: GpuJob, rank: int) -> float:
    """Kill a rank. Returns the seconds to the first step in which it certainly had no part.

    The number of workers does not show that: a worker forked as its replacement can be there before the next step.
    """
    known = frozenset(line.pid for line in job.lines())
    pid = next(line.pid for line in reversed(job.lines()) if line.rank == rank)
    killed_s = kill(pid)

    def probe() -> float | None:
        lines = job.lines()
        last = next(line for line in reversed(lines) if line.pid == pid)
        after = (line for line in lines if line.at_s > killed_s and line.pid != pid)
        without = (x for x in after if x.world != last.world or x.pid not in known or x.step > last.step + 1)
        return next((line.at_s - killed_s for line in without), None)

    return until("training goes on without a worker", probe, RECOVERED_WITHIN_S)


def bits(family: Family, setting: Setting) -> list[Measurement]:
    """Count histories of one job, with few, many and changing workers, that end with other bits than the first."""
    small = setting.quick or setting.shared  # workers that share a GPU take turns on it, a few milliseconds each
    model, count = ("stack-0.1M", 60) if small else ("transformer-10M", 200)
    alone = [[0]]
    histories: list[list[list[int]]] = [alone, alone]
    if setting.workers > 1:
        everybody = list(range(setting.workers))
        histories += [[everybody], [[0], everybody, [setting.workers - 1]]]
    digests = [_history(family, setting, model, count, history) for history in histories]
    return [
        Measurement(
            "bits",
            f"{model}, {count} steps, N = {VIRTUAL_WORKERS}: histories that end with other bits",
            f"rosters {histories}; the first one again",
            float(sum(digest != digests[0] for digest in digests)),
            "",
            len(digests),
            Goal(0.0),
            {"digests": digests},
        ).show()
    ]


def _history(
    family: Family,
    setting: Setting,
    model: str,
    count: int,
    rosters: Sequence[Sequence[int]],
    beside: Mapping[str, str] | None = None,
) -> str:
    """Return the final digest of a job that trains with each of `rosters` in turn. beside: further variables of the ranks."""
    with Ranks(family, setting, "train", setting.workers, model=model) as ranks:
        for number_of in sorted({member for roster in rosters for member in roster}):
            jobs = {"bits": (VIRTUAL_WORKERS, "elastic")}
            ranks.start(number_of, jobs, protect=True, beside=beside, ELASTICD_MAX_STEPS=str(count))
        leader = rosters[0][0]
        for generation, roster in enumerate(rosters, 1):
            leader = leader if leader in roster else roster[0]
            ranks.station.order("bits", generation, roster, leader)
            if generation < len(rosters):
                ranks.station.until_committed("bits", generation)
        ended = ranks.results()
        found = {ended[rank] for rank in ended}
        if len(found) != 1:
            raise MeasurementFailed(f"the workers of one job ended with {len(found)} different models")
        return str(found.pop())


def kills(family: Family, setting: Setting) -> list[Measurement]:
    """Kill a peer inside an all-to-all, and inside a state transfer; the others must continue."""
    if setting.workers < 2:
        return []
    return gpu_kills.measure(family, setting.device, setting.workers, setting.shared, setting.quick)


def races(family: Family, setting: Setting) -> list[Measurement]:
    """Run histories under torch's stream sanitizer, with random sleeps in the streams."""

    def play(rosters: Sequence[Sequence[int]], variables: Mapping[str, str]) -> str:
        return _history(family, setting, "stack-0.1M", 40, rosters, variables)

    return gpu_races.measure(play, setting.device, setting.workers, setting.quick)


def cluster(family: Family, setting: Setting) -> list[Measurement]:
    """Compare the bits of a job on this machine's agents, under all kinds of events, with those of the job alone."""
    model = setting.pick("transformer-10M", "stack-0.1M")
    found = gpu_cluster.story(family, model, setting.workers, on_slots=setting.device == "cpu")
    return [
        Measurement(
            "cluster",
            f"{model}, N = {VIRTUAL_WORKERS}: workers that end with other bits than one alone",
            f"{', '.join(found.acts)}; alone {number(found.alone_s)} s, in the cluster {number(found.took_s)} s",
            float(sum(digest != found.alone for digest in found.digests)),
            "",
            len(found.digests),
            Goal(0.0),
            {"digests": found.digests, "alone": found.alone, "acts": found.acts},
        ).show()
    ]


GROUPS: dict[str, Callable[[Family, Setting], list[Measurement]]] = {
    "bits": bits,
    "kills": kills,
    "races": races,
    "cluster": cluster,
    "steps": steps,
    "exchange": exchange,
    "resizing": resizing,
    "losses": losses,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="What the runtime costs on GPUs.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--workers", type=int, help="how many (default: as many as there are GPUs; 2 on processors)")
    parser.add_argument("--shared", action="store_true", help="the workers (default: 3) share the first GPU; no times")
    parser.add_argument("--quick", action="store_true", help="few repetitions, to see that it works")
    parser.add_argument("--only", choices=[RULES, *GROUPS], action="append", help="measure this (several times: these)")
    parser.add_argument("--json", type=Path, default=ROOT / "out" / "bench-gpu.json", help="where results go")
    options = parser.parse_args()
    if options.shared and (timed := [name for name in options.only or () if name not in WITHOUT_TIMES]):
        parser.error(f"workers that share a GPU show no times: not --only {timed[0]} with --shared")
    there = torch.cuda.device_count() if options.device == "cuda" else 2
    if not there:
        for name in gpu_checks.CHECKS:
            gpu_checks.not_measured(name, "no GPU").show()
        print(NO_GPU, file=sys.stderr)
        return 2
    workers = options.workers or (3 if options.shared else there)
    names = options.only or (WITHOUT_TIMES if options.shared else [RULES, *GROUPS])
    if not options.shared and options.device == "cuda" and workers > there:
        print(f"{workers} workers need {workers} GPUs, and there are {there}", file=sys.stderr)
        return 2
    setting = Setting(options.device, workers, options.quick, options.shared)
    about = {**machine.describe(), "device": _device(setting), "workers": str(workers)}
    rules = _rules(setting, there) if RULES in names else []
    rows, failed = _measure(setting, [name for name in names if name != RULES])
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(
        json.dumps({"machine": about, "rows": [row.document() for row in rows], "rules": rules}, indent=1)
    )
    page = options.json.with_suffix(".md")
    page.write_text(gpu_page.page(about, rules, rows, _not_run(setting, names, rows, rules)))
    if rows:
        print(table(rows))
    print(f"{', '.join(about.values())}; written to {options.json}, and as a page to {page}")
    return int(failed or any(rule["ok"] is False for rule in rules))


def _rules(setting: Setting, there: int) -> list[dict[str, Any]]:
    with Family() as family:
        return [found.document() for found in gpu_checks.look(family, setting.device, there, setting.shared)]


def _measure(setting: Setting, names: Sequence[str]) -> tuple[list[Measurement], bool]:
    rows: list[Measurement] = []
    failed = False
    with Family() as family:
        for name in names:
            try:
                rows += GROUPS[name](family, setting)
            except MeasurementFailed as error:
                print(f"{name}: {error}", file=sys.stderr)
                failed = True
    return rows, failed


def _device(setting: Setting) -> str:
    if setting.device == "cpu":
        return f"no GPU, {os.cpu_count()} cores"
    names = sorted({torch.cuda.get_device_name(index) for index in range(1 if setting.shared else setting.workers)})
    return f"{' and '.join(names)}, CUDA {torch.version.cuda}"


def _not_run(
    setting: Setting, names: Sequence[str], rows: Sequence[Measurement], rules: Sequence[dict[str, Any]]
) -> list[str]:
    """Return what the page lacks, with reasons."""
    found = [f"rule: {rule['name']}: {rule['text']}" for rule in rules if rule["ok"] is None]
    measured = {row.group for row in rows}
    for name in (RULES, *GROUPS):
        if name not in names:
            found.append(f"{name}: not asked for")
        elif name != RULES and name not in measured:
            found.append(f"{name}: {'it failed' if setting.workers > 1 else 'it needs two workers or more'}")
    if setting.device == "cpu":
        found.append(
            "no GPU: neither NCCL nor streams nor torch's sanitizer of them; the rows are of Gloo on processors"
        )
    elif setting.shared:
        found.append("the workers share a GPU: no NVLink, no memory of peers, no times")
    if setting.quick:
        found.append("--quick: a few repetitions of each, where 100 kills and 200 histories are meant")
    return found


if __name__ == "__main__":
    sys.exit(main())
