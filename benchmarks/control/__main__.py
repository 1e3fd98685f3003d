"""Load test of one controller. `make bench-control`

    python -m benchmarks.control [--quick] [--agents N] [--gpus N] [--live N] [--ended N] [--seconds N] [--label TEXT]
                                 [--fixed 1,64,1000] [--json FILE]

A real controller process with its store on disk runs on its own core; agents and clients are other processes, which use the real
protocol over real sockets. The store is that of a cluster that has run for months. Measured, in this order:

* time from the controller's start until all agents are registered, and until all workers train;
* the controller's share of the core without requests and new reports (agents' heartbeats alone), and while workers report;
* a kill of the controller: time until all agents are registered again, and the number of hellos; repeated at the end;
* latency of lists while a thousand jobs are submitted per second, mixed with `scale` and `cancel`;
* durable submissions per second at saturation: each client submits the next job when it has its answer;
* servers lost by that, and by a suspension of the controller for 12 s in the middle of it;
* cost of one heartbeat with few and with many jobs, without sockets.

Results go to out/bench-control.json under their label and into docs/reports/benchmarks.md (`--quick`: only to
out/bench-control-quick.json).
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.runtime import machine
from benchmarks.runtime.processes import Family, MeasurementFailed, free_port, until
from elasticd.ctl.client import Client
from elasticd.protocol.errors import ElasticError
from elasticd.protocol.messages import Ping, Pong

from . import keys, report
from .agents import STATUSES
from .store import fill

ROOT = Path(__file__).resolve().parents[2]
STOPPED_S = 12.0
AGENTS_PER_PROCESS = 500
SUBMITTERS = 32
TAKEN_IN_WITHIN_S = 180.0
CALM_WITHIN_S = 300.0
BUSY_S = 0.25  # of half a second
CALM_FOR_S = 6.0  # twice the heartbeat interval of a thousand agents, in which the last statuses arrive


class Bench:
    """One run: a controller, its agents and clients, in one directory."""

    def __init__(self, options: argparse.Namespace, family: Family, directory: Path) -> None:
        self.options = options
        self._family = family
        self._directory = directory
        cores = sorted(os.sched_getaffinity(0))
        self._core, self._others = cores[0], cores[1:] or cores
        os.sched_setaffinity(0, self._others)
        self._clients_at, self._agents_at = f"ipc://{directory}/clients", f"tcp://127.0.0.1:{free_port()}"
        self._keys = keys.make(directory, options.agents)
        self._config = directory / "controller.yaml"
        self._config.write_text(
            f"cluster: bench\nstate_directory: {directory / 'state'}\nlisten_clients: {self._clients_at}\n"
            f"listen_agents: {self._agents_at}\nkeys_directory: {directory / 'keys'}\n"
            f"log_file: {directory / 'controller.log'}\npolicy: {options.policy}\n"
            "limits: {connections: 100000, messages_per_s: 1000000, messages_at_once: 1000000}\n"
        )
        self._client = Client(self._clients_at)
        self._fleets: list[subprocess.Popen[bytes]] = []
        self._crowd: subprocess.Popen[bytes] | None = None
        self.controller: psutil.Process

    def prepare(self) -> None:
        (self._directory / "state").mkdir()
        for folder in ("controller", "protocol", "runtime", "scheduler"):  # as an installed controller has it
            compileall.compile_dir(ROOT / folder, quiet=1)
        options = self.options
        fill(self.store, options.agents, options.gpus, options.live, options.ended, time.time(), options.fixed)

    @property
    def store(self) -> Path:
        return self._directory / "state" / "cluster.db"

    def start_controller(self) -> float:
        """Start the controller. Returns the time of its start (monotonic, s)."""
        began = time.monotonic()
        log = self._directory / "controller.err"
        command = [sys.executable, "-m", "elasticd.controller", "--config", str(self._config)]
        process = self._family.start(command, log=log)
        self.controller = psutil.Process(process.pid)
        self.controller.cpu_affinity([self._core])
        return began

    def start_load(self) -> None:
        options = self.options
        for first in range(0, options.agents, AGENTS_PER_PROCESS):
            count = min(AGENTS_PER_PROCESS, options.agents - first)
            self._fleets.append(
                self._child("agents", self._agents_at, str(self._keys), *map(str, (first, count, options.gpus)))
            )
        self._crowd = self._child("clients", self._clients_at, str(SUBMITTERS))

    def _child(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"benchmarks.control.{name}", *arguments]
        log = self._directory / f"{name}.err"
        return self._family.start(command, log=log, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    # -- requests

    def alive(self) -> int:
        """Return the number of servers that the controller counts as alive; -1 if it does not answer."""
        try:
            answer = self._client.ask(Ping(), timeout_s=1.0)
        except ElasticError:
            return -1
        return answer.servers if isinstance(answer, Pong) else -1

    def until_taken_in(self, began: float) -> float:
        """Return the seconds from `began` until all servers are registered."""

        def there() -> float | None:
            return time.monotonic() - began if self.alive() >= self.options.agents else None

        return until("all agents are taken in", there, TAKEN_IN_WITHIN_S, 0.05)

    def until_calm(self, began: float) -> float:
        """Return the seconds from `began` until the cluster is quiet: no worker starts, trains for the first time, or ends, no
        agent sends a hello, and the controller's core is not busy."""
        said, since = (-1, -1), time.monotonic()
        deadline = time.monotonic() + CALM_WITHIN_S
        while time.monotonic() < deadline:
            sent, before = self.sent(), self._cpu_s()
            now = sent.get(STATUSES, 0), sent.get("AgentHello", 0)
            time.sleep(0.5)
            if now != said or self._cpu_s() - before > BUSY_S:
                said, since = now, time.monotonic()
            elif time.monotonic() - since > CALM_FOR_S:
                return since - began
        raise MeasurementFailed(f"workers are still being started after {CALM_WITHIN_S:.0f} s")

    def report_every(self, seconds: float) -> None:
        for fleet in self._fleets:
            _tell(fleet, f"report {seconds}")

    def sent(self) -> dict[str, int]:
        """Return the number of messages of each kind that the agents have sent."""
        counts: dict[str, int] = {}
        for fleet in self._fleets:
            _tell(fleet, "tell")
        for fleet in self._fleets:
            for what, count in _hear(fleet)["sent"].items():
                counts[what] = counts.get(what, 0) + count
        return counts

    def phase(self, what: str, seconds: float) -> dict[str, Any]:
        assert self._crowd is not None
        _tell(self._crowd, f"{what} {seconds}")
        return _hear(self._crowd)

    def begin_phase(self, what: str, seconds: float) -> None:
        assert self._crowd is not None
        _tell(self._crowd, f"{what} {seconds}")

    def end_phase(self) -> dict[str, Any]:
        assert self._crowd is not None
        return _hear(self._crowd)

    # -- the controller's process

    def core_share(self, seconds: float) -> float:
        """Return the controller's use of its core (percent)."""
        before = self._cpu_s()
        time.sleep(seconds)
        return 100.0 * (self._cpu_s() - before) / seconds

    def _cpu_s(self) -> float:
        times = self.controller.cpu_times()
        return times.user + times.system

    def rss_mb(self) -> float:
        return self.controller.memory_info().rss / 1e6

    def kill_controller(self) -> None:
        self.controller.kill()
        self.controller.wait()


def _tell(child: subprocess.Popen[bytes], line: str) -> None:
    assert child.stdin is not None
    child.stdin.write(line.encode() + b"\n")
    child.stdin.flush()


def _hear(child: subprocess.Popen[bytes]) -> Any:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise MeasurementFailed(f"{' '.join(map(str, child.args))} has ended")  # type: ignore[arg-type]
    return json.loads(line)


def measure(bench: Bench) -> dict[str, Any]:
    """Measure all figures of one run."""
    options = bench.options
    found: dict[str, Any] = {}
    bench.prepare()
    bench.start_load()
    began = bench.start_controller()
    found["first_start_s"] = bench.until_taken_in(began)
    _say(f"all agents taken in after {found['first_start_s']:.1f} s")
    found["calm_s"] = bench.until_calm(began)
    _say(f"all workers train after {found['calm_s']:.1f} s")
    found["idle_percent"] = bench.core_share(options.idle_seconds)
    _say(f"idle: {found['idle_percent']:.1f} % of the core")
    found["look"] = bench.phase("look", options.idle_seconds)
    found["recovery_s"], found["hellos"] = _recovery(bench)
    _say(f"recovered after {found['recovery_s']:.1f} s, with {found['hellos']} hellos")
    bench.report_every(options.report_s)
    time.sleep(2.0)
    found["reporting_percent"] = bench.core_share(options.idle_seconds)
    _say(f"with reports: {found['reporting_percent']:.1f} % of the core")
    found["demand"] = bench.phase("demand", options.seconds)
    found["rss_mb"] = bench.rss_mb()
    _say(f"demand: {report.rate(found['demand'])} submissions/s, {found['rss_mb']:.0f} MB")
    found["load"] = bench.phase("load", options.seconds)
    _say(f"load: {report.rate(found['load'])} submissions/s, {bench.rss_mb():.0f} MB")
    bench.begin_phase("load", options.seconds + STOPPED_S)
    time.sleep(options.seconds / 2)
    bench.controller.send_signal(signal.SIGSTOP)
    time.sleep(STOPPED_S)
    bench.controller.send_signal(signal.SIGCONT)
    found["stopped"] = bench.end_phase()
    found["alive_in_the_end"] = bench.alive()
    found["rss_after_load_mb"] = bench.rss_mb()
    _say(f"after a stop of {STOPPED_S:.0f} s: {found['alive_in_the_end']} servers, {found['rss_after_load_mb']:.0f} MB")
    found["recovery_after_load_s"], _ = _recovery(bench)
    _say(f"recovered after {found['recovery_after_load_s']:.1f} s, with all jobs that were submitted")
    bench.kill_controller()
    return found


def _recovery(bench: Bench) -> tuple[float, int]:
    """Kill and restart the controller. Returns the seconds until all agents are registered, and the number of hellos."""
    hellos = bench.sent().get("AgentHello", 0)
    bench.kill_controller()
    taken_s = bench.until_taken_in(bench.start_controller())
    time.sleep(3.0)
    return taken_s, bench.sent().get("AgentHello", 0) - hellos


def heartbeats(options: argparse.Namespace, directory: Path) -> Iterator[dict[str, float]]:
    """Yield the cost of one heartbeat, with a tenth of the jobs and with all."""
    for part in (0.1, 1.0):
        store = directory / f"heartbeats-{part}.db"
        fill(store, options.agents, options.gpus, int(options.live * part), int(options.ended * part), time.time())
        command = [sys.executable, "-m", "benchmarks.control.heartbeat"]
        command += [str(store), str(options.agents - 1), str(options.gpus)]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        yield {"part": part, **json.loads(done.stdout)}


@contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    """Yield a directory on the checkout's disk: /tmp may be in memory, where fsync is free."""
    (ROOT / "out").mkdir(exist_ok=True)
    if keep is not None:
        keep.mkdir(parents=True)
        yield keep
        return
    path = Path(tempfile.mkdtemp(prefix="bench-control-", dir=ROOT / "out"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    options = _options()
    name = "bench-control-quick.json" if options.quick else "bench-control.json"
    target = options.json or ROOT / "out" / name
    about = machine.describe()
    with _directory(options.keep) as directory:
        with Family() as family:
            found = measure(Bench(options, family, directory))
        found["heartbeats"] = list(heartbeats(options, directory))
    sizes = {key: getattr(options, key) for key in ("agents", "gpus", "live", "ended", "seconds", "report_s", "policy")}
    runs = report.add(target, options.label, {"machine": about, "sizes": sizes, **found})
    print(report.table(runs))
    if not options.quick:
        report.publish(ROOT / "docs" / "reports" / "benchmarks.md", runs)
    _say(f"written to {target}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.control", description="What one controller bears.")
    parser.add_argument("--quick", action="store_true", help="100 agents, 500 live and 5,000 ended jobs")
    parser.add_argument("--agents", type=int, help="default 1,000")
    parser.add_argument("--gpus", type=int, default=8, help="of each agent")
    parser.add_argument("--live", type=int, help="jobs that are not over; default 10,000")
    parser.add_argument("--ended", type=int, help="jobs that are; default 100,000")
    parser.add_argument("--fixed", default="", help="numbers of GPUs that the first live jobs have, such as 1,64,1000")
    parser.add_argument("--seconds", type=float, help="of submissions")
    parser.add_argument("--report-s", type=float, default=1.0, help="how often each worker tells its progress")
    parser.add_argument("--policy", default="max-min")
    parser.add_argument("--label", default="now", help="column of the table that this run fills")
    parser.add_argument("--json", type=Path, help="where results go")
    parser.add_argument("--keep", type=Path, help="a new directory for the store and logs, which stay")
    options = parser.parse_args()
    full, quick = (1000, 10_000, 100_000, 10.0), (100, 500, 5_000, 4.0)
    for key, value in zip(("agents", "live", "ended", "seconds"), quick if options.quick else full, strict=True):
        if getattr(options, key) is None:
            setattr(options, key, value)
    options.fixed = [int(size) for size in options.fixed.split(",") if size]
    options.idle_seconds = 3.0 if options.quick else 8.0
    return options


if __name__ == "__main__":
    sys.exit(main())
