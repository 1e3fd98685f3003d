"""Failover time: from the leader's death until a standby leads, and the effect on training. `make bench-failover`

    python -m benchmarks.failover [--kills N] [--lease N] [--members N] [--json FILE]

Three controller processes on a real etcd, an agent with two CPU slots, and a job that trains continually and records the time of
each step. After an undisturbed period of about the same length, the leader is killed (SIGKILL) N times, each time when all three
controllers are up again. Measured:

* from the kill to another controller's first answer to a request that is repeated continually;
* from the kill until that controller has its agents back;
* the longest time between two steps of the job, in the undisturbed period and in that of the kills.

Results go to out/bench-failover.json and into docs/reports/benchmarks.md (`--quick`: three kills, and no page is written).
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from benchmarks.pages import fill
from benchmarks.runtime import machine
from benchmarks.runtime.processes import Family, MeasurementFailed, free_port, until
from elasticd.ctl.client import Client
from elasticd.protocol.errors import ElasticError
from elasticd.protocol.messages import Controllers, GetControllers, Ping, Pong, Submit, Submitted
from elasticd.protocol.model import GpuRange, JobSpec
from elasticd.protocol.times import TAKEOVER_LEASES

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("train.py")
NAMES = ("c1", "c2", "c3")
PACE_S = 0.05
WITHIN_S = 300.0
CALM_S = 5.0  # between a return and the next kill
ASKED_FOR_S = 0.25  # time limit of one attempt, which is then repeated
BEGIN = "<!-- bench-failover: written by `make bench-failover`, from here -->"
END = "<!-- bench-failover: to here -->"


class Bench:
    """The cluster of one run."""

    def __init__(self, family: Family, directory: Path, lease_s: int, members: int) -> None:
        self._family, self._directory = family, directory
        self.endpoints = self._start_etcd(members)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in NAMES:
            self._write(name, cluster="bench", name=name, state_directory=str(directory / name),
                        keys_directory=str(directory / "keys"),
                        listen_clients=self._clients(name), listen_agents=self._agents(name),
                        store="etcd", etcd={"endpoints": self.endpoints, "insecure": True}, leader_lease_s=lease_s)  # fmt: skip
        self._write("agent", server="s1", controller=[self._agents(name) for name in NAMES], cpu_slots=2,
                    state_directory=str(directory / "agent"), socket_directory=str(directory / "run"),
                    allow_root_jobs=True)  # fmt: skip
        for name in NAMES:
            self.start(name)
        self._start("agent", "elasticd.agent")
        self.client = Client(",".join(self._clients(name) for name in NAMES))
        self.steps = directory / "steps"
        until("the agent is there", self.agent_is_there, WITHIN_S)
        until("all controllers are there", self.all_present, WITHIN_S)

    def _clients(self, name: str) -> str:
        return f"ipc://{self._directory}/{name}.clients"

    def _agents(self, name: str) -> str:
        return f"ipc://{self._directory}/{name}.agents"

    def _write(self, name: str, /, **options: object) -> None:
        (self._directory / f"{name}.yaml").write_text(yaml.safe_dump(options))

    def _start(self, name: str, module: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", module, "--config", str(self._directory / f"{name}.yaml")]
        return self._family.start(command, log=self._directory / f"{name}.log")

    def start(self, name: str) -> None:
        """Start a controller."""
        self.processes[name] = self._start(name, "elasticd.controller")

    def _start_etcd(self, members: int) -> list[str]:
        ports = [(free_port(), free_port()) for _ in range(members)]
        peers = ",".join(f"m{number}=http://127.0.0.1:{peer}" for number, (_, peer) in enumerate(ports))
        for number, (clients, peer) in enumerate(ports):
            at, to = f"http://127.0.0.1:{clients}", f"http://127.0.0.1:{peer}"
            command = ["etcd", "--name", f"m{number}", "--data-dir", str(self._directory / f"m{number}"),
                       "--listen-client-urls", at, "--advertise-client-urls", at, "--listen-peer-urls", to,
                       "--initial-advertise-peer-urls", to, "--initial-cluster", peers]  # fmt: skip
            self._family.start(command, log=self._directory / f"m{number}.log")
        return [f"127.0.0.1:{clients}" for clients, _ in ports]

    def train(self, steps: int) -> None:
        """Submit the job, and wait until it trains."""
        spec = JobSpec(name="steps", command=(sys.executable, str(SCRIPT), str(self.steps), str(steps), str(PACE_S)),
                       gpus=GpuRange(min=2, max=2), virtual_workers=2, workdir=str(self._directory))  # fmt: skip
        answer = self.client.ask(Submit(spec=spec))
        if not isinstance(answer, Submitted):
            raise MeasurementFailed(f"the job is not taken: {answer}")
        until("the job trains", lambda: (self.steps.exists() and len(self.noted()) > 20) or None, WITHIN_S)

    def noted(self) -> list[float]:
        """Return when each step was done (Unix time, s)."""
        return [float(line) for line in self.steps.read_text().splitlines()[:-1]]

    def agent_is_there(self) -> bool | None:
        answer = self._attempt(self.client)
        return True if answer is not None and answer.servers == 1 else None

    def present(self) -> Controllers | None:
        try:
            answer = self.client.ask(GetControllers(), timeout_s=2.0)
        except ElasticError:
            return None
        return answer if isinstance(answer, Controllers) else None

    def all_present(self) -> Controllers | None:
        """Return the controllers if all three are present and one leads; None otherwise."""
        found = self.present()
        whole = found is not None and len(found.controllers) == len(NAMES)
        return found if whole and found is not None and any(one.leads for one in found.controllers) else None

    @staticmethod
    def _attempt(client: Client) -> Pong | None:
        try:
            answer = client.ask(Ping(), timeout_s=ASKED_FOR_S)
        except ElasticError:
            return None
        return answer if isinstance(answer, Pong) else None

    def kill_leader(self) -> tuple[float, float]:
        """Kill the leader. Returns the time until another one answers, and until that one has the agent (s)."""
        found = until("all controllers are there", self.all_present, WITHIN_S)
        leader = next(one.name for one in found.controllers if one.leads)
        others = Client(",".join(self._clients(name) for name in NAMES if name != leader))
        try:
            killed_s = time.monotonic()
            self.processes[leader].kill()
            until("another one answers", lambda: self._attempt(others), WITHIN_S, interval_s=0.01)
            answered_s = time.monotonic() - killed_s
            until("it has the agent", self.agent_is_there, WITHIN_S, interval_s=0.01)
            agents_s = time.monotonic() - killed_s
        finally:
            others.close()
        self.processes[leader].wait()
        self.start(leader)
        return answered_s, agents_s


def longest_gap_s(noted: Sequence[float], since_s: float, until_s: float) -> float:
    """Return the longest time between two steps in this period (s)."""
    within = [time_s for time_s in noted if since_s <= time_s <= until_s]
    return max((after - before for before, after in pairwise(within)), default=float("nan"))


def measure(directory: Path, kills: int, lease_s: int, members: int) -> dict[str, Any]:
    with Family() as family:
        bench = Bench(family, directory, lease_s, members)
        try:
            bench.train(steps=1_000_000)
            took: list[tuple[float, float]] = []
            calm = (time.time(), time.time() + kills * (CALM_S + 2.0 * lease_s))
            time.sleep(calm[1] - calm[0])
            began_s = time.time()
            for number in range(kills):
                took.append(bench.kill_leader())
                answered_s, agents_s = took[-1]
                print(
                    f"kill {number + 1}: answered after {answered_s:.2f} s, has its agent after {agents_s:.2f} s",
                    flush=True,
                )
                until("all controllers are there", bench.all_present, WITHIN_S)
                time.sleep(CALM_S)
            noted, ended_s = bench.noted(), time.time()
        except MeasurementFailed:
            for log in sorted(directory.glob("*.log")):
                print(f"--- {log.name}", *log.read_text(errors="replace").splitlines()[-15:], sep="\n", file=sys.stderr)
            raise
        finally:
            bench.client.close()
    return {
        "machine": machine.describe(),
        "lease_s": lease_s,
        "members": members,
        "answered_s": [answered for answered, _ in took],
        "agents_s": [agents for _, agents in took],
        "calm_s": calm[1] - calm[0],
        "kills_s": ended_s - began_s,
        "steps": len(noted),
        "longest_gap_calm_s": longest_gap_s(noted, *calm),
        "longest_gap_kills_s": longest_gap_s(noted, began_s, ended_s),
    }


def table(run: dict[str, Any]) -> str:
    goal_s = TAKEOVER_LEASES * run["lease_s"]
    rows = ["| | p50 | worst | goal |", "| --- | --- | --- | --- |"]
    for what, key, goal in (
        ("from the leader's SIGKILL to the first answer of another controller", "answered_s", f"<= {goal_s} s"),
        ("until that one has its agents back", "agents_s", ""),
    ):
        rows.append(f"| {what} | {statistics.median(run[key]):.2f} s | {max(run[key]):.2f} s | {goal} |")
    calm, kills = run["longest_gap_calm_s"], run["longest_gap_kills_s"]
    rows.append(f"| longest time between two steps of a job, undisturbed ({run['calm_s']:.0f} s) | | {calm:.3f} s | |")
    rows.append(
        f"| the same, while leaders are killed ({run['kills_s']:.0f} s) | | {kills:.3f} s | noise of the former |"
    )
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--lease", type=int, default=5, help="of a controller (s)")
    parser.add_argument("--members", type=int, default=3, help="of etcd")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    subprocess.run([ROOT / "scripts/need-etcd"], check=True)
    directory = Path(tempfile.mkdtemp(prefix="failover-"))
    try:
        run = measure(directory, 3 if options.quick else options.kills, options.lease, options.members)
    except MeasurementFailed as error:
        print(f"bench-failover: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    path = options.json or ROOT / ("out/bench-failover-quick.json" if options.quick else "out/bench-failover.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(run, indent=1))
    print(table(run))
    if not options.quick:
        where = run["machine"]
        text = (
            f"{len(run['answered_s'])} kills, leases of {run['lease_s']} s, {run['members']} members of etcd on this machine; "
            f"{where['date']}, {where['processor']}, load {where['load']}."
        )
        fill(ROOT / "docs/reports/benchmarks.md", BEGIN, END, [text, table(run)])
    return 0 if max(run["answered_s"]) <= TAKEOVER_LEASES * options.lease else 1


if __name__ == "__main__":
    sys.exit(main())
