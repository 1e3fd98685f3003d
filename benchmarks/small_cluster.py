"""A controller and agents with CPU slots, for benchmarks that observe a cluster for some minutes."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from benchmarks.runtime.processes import Family, MeasurementFailed, until
from elasticd.ctl.client import Client
from elasticd.protocol.errors import ElasticError
from elasticd.protocol.messages import EventKind, Events, GetEvents, GetJob, JobFound, JobView, Ping, Pong

SERVERS = ("s1", "s2")
TRAIN = Path(__file__).with_name("serving") / "train.py"
WITHIN_S = 300.0


class SmallCluster:
    """The daemons, with a client. Their logs are in `directory`."""

    def __init__(
        self, family: Family, directory: Path, slots: int, policy: str, servers: tuple[str, ...] = SERVERS
    ) -> None:
        """slots: of each server. policy: a name, or a file."""
        self._family = family
        self.directory = directory
        self._servers = servers
        self.gpus = slots * len(servers)
        clients, agents = f"ipc://{directory}/clients", f"ipc://{directory}/agents"
        self._write("controller", cluster="bench", state_directory=str(directory / "controller"),
                    listen_clients=clients, listen_agents=agents, policy=policy)  # fmt: skip
        self._start("controller", "elasticd.controller")
        for name in servers:
            self._write(name, server=name, controller=agents, cpu_slots=slots, allow_root_jobs=True,
                        state_directory=str(directory / name), socket_directory=str(directory / f"{name}.run"),
                        checkpoint_directory=str(directory / "checkpoints"))  # fmt: skip
            self._start(name, "elasticd.agent")
        self.client = Client(clients)
        until("all servers are there", self._all_there, WITHIN_S)

    def _write(self, name: str, /, **options: object) -> None:
        (self.directory / f"{name}.yaml").write_text(yaml.safe_dump(options))

    def _start(self, name: str, module: str) -> None:
        command = [sys.executable, "-m", module, "--config", str(self.directory / f"{name}.yaml")]
        self._family.start(command, log=self.directory / f"{name}.log")

    def _all_there(self) -> bool | None:
        try:
            answer = self.client.ask(Ping())
        except ElasticError:
            return None
        return True if isinstance(answer, Pong) and answer.servers == len(self._servers) else None

    def view(self, job: str) -> JobView:
        answer = self.client.ask(GetJob(job=job))
        if not isinstance(answer, JobFound):
            raise MeasurementFailed(f"{job} is not found: {answer}")
        return answer.job

    def times_of(self, job: str, kind: EventKind) -> list[float]:
        """Return when events of this kind have happened to the job (Unix time, s)."""
        answer = self.client.ask(GetEvents(job=job, limit=10_000))
        assert isinstance(answer, Events)
        return [event.time_s for event in answer.events if event.kind is kind]

    def show_logs(self) -> None:
        """Print the ends of the daemons' logs to stderr."""
        for log in sorted(self.directory.glob("*.log")):
            print(f"--- {log.name}", *log.read_text(errors="replace").splitlines()[-15:], sep="\n", file=sys.stderr)
