"""Cluster on hosts for a test of one story, with helpers that wait for a condition."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from elasticd.protocol.messages import EventKind, Events, GetEvents

from ..hosts.lab import Lab
from ..hosts.links import Links
from .cluster import Cluster, Found, What, all_there, signal_process
from .jobs import Job, Jobs

PATIENCE_S = 600.0


class Story:
    """A cluster on hosts with one job, and conditions to wait for."""

    def __init__(
        self,
        lab: Lab,
        links: Links,
        directory: Path,
        slots: int,
        versions: Mapping[tuple[What, str], Path] | None = None,
    ) -> None:
        self.lab = lab
        self.links = links
        self.directory = directory
        names = list(lab.hosts)
        self.cluster = Cluster(lab, links, directory, names[:1], slots, lease_s=10.0, versions=versions)
        self.desk = self.cluster.desk()
        self.jobs = Jobs(self.cluster, self.desk, random.Random(1), 1)
        self.cluster.open()
        self.until("all servers are there", lambda: all_there(self.desk, len(names)))

    def until(self, what: str, probe: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while not (found := probe()):
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {PATIENCE_S:.0f} s: {what}\n{self.logs()}")
            time.sleep(0.2)
        return found

    def restart(self, what: What, name: str) -> None:
        """Restart a daemon as systemd does: SIGTERM, then a new process of the version in `cluster.versions`."""
        (running,) = [found for found in self.cluster.processes(name) if found.what is what]
        signal_process(running.pid, signal.SIGTERM)
        self.until(f"the {what.value} on {name} ends", lambda: not Path(f"/proc/{running.pid}").exists())
        self.cluster.start(what, name)
        self.until("all servers are there", lambda: all_there(self.desk, len(self.lab.hosts)))

    def workers(self, name: str) -> list[Found]:
        return [found for found in self.cluster.processes(name) if found.what is What.WORKER]

    def goes_on(self, job: Job) -> None:
        """Wait until the job has new steps."""
        self.jobs.look(ask=True)
        known = job.applied[-1:]

        def probe() -> bool:
            self.jobs.look(ask=True)
            assert job.verdict is None, job.verdict
            return job.applied[-1:] != known

        self.until(f"{job.name} goes on", probe)

    def trains_on(self, job: Job, servers: int) -> None:
        """Wait until the job has new steps, on so many servers."""
        self.jobs.look(ask=True)
        known = job.applied[-1:]

        def probe() -> bool:
            self.jobs.look(ask=True)
            assert job.verdict is None, job.verdict
            return len(job.servers()) == servers and job.applied[-1:] != known

        self.until(f"{job.name} trains on {servers} servers", probe)

    def ends(self, job: Job) -> None:
        def probe() -> bool:
            self.jobs.look(ask=True)
            return job.verdict is not None

        self.until(f"{job.name} ends", probe)
        assert job.verdict is not None
        assert (job.verdict.finished, job.verdict.lost_samples, job.verdict.equal) == (True, 0, True), job.verdict

    def events(self) -> list[EventKind]:
        answer = self.desk.ask(GetEvents(), timeout_s=5.0)
        assert isinstance(answer, Events)
        return [event.kind for event in answer.events]

    def logs(self) -> str:
        parts = [f"--- {log.name}\n{log.read_text(errors='replace')[-4000:]}" for log in self.directory.rglob("*.log")]
        return "\n".join(parts)
