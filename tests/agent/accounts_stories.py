"""An agent with jobs of other accounts: real processes of real users. Needs root."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elasticd.agent import cgroups, shim
from elasticd.agent.accounts import Account
from elasticd.agent.cgroups import Cgroups, Limits
from elasticd.agent.commands import Commands
from elasticd.agent.disk import Disk, Rules
from elasticd.agent.environment import Surroundings
from elasticd.agent.events import ProcessExited, ProcessFailed, ProcessStarted
from elasticd.agent.forkserver.client import WarmProcesses
from elasticd.agent.logfiles import JobFiles
from elasticd.agent.processes import Processes
from elasticd.agent.rooms import Rooms
from elasticd.agent.scratch import Scratch
from elasticd.agent.task_queues import TaskQueues
from elasticd.protocol.messages import LogPiece, ReadLog, StartWorker
from elasticd.protocol.model import Gpu, GpuKind, GpuRange, JobId, JobSpec, Snapshot, WorkerId
from elasticd.runtime.clock import SteadyClock
from elasticd.runtime.loop import Loop

ALICE, BOB = "nobody", "daemon"  # accounts that every system has
PATIENCE_S = 120.0
PATH = "/usr/bin:/bin"
SITE = next(Path(path) for path in sys.path if path.endswith("site-packages"))
SOURCE = Path(shim.__file__).parents[2]

only_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can start processes as others")


def uid(account: str) -> int:
    return pwd.getpwnam(account).pw_uid


def as_account(account: str, *command: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command as another account, as its own shell would."""
    entry = pwd.getpwnam(account)
    return subprocess.run(
        command,
        user=entry.pw_uid,
        group=entry.pw_gid,
        extra_groups=[],
        env={"PATH": PATH} | (env or {}),
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
    )


def python_for_all() -> tuple[str, dict[str, str]] | None:
    """An interpreter with the product's packages that every account can execute, and the variables that it needs."""
    for name in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        env = {} if name == sys.executable else {"PYTHONPATH": f"{SITE}:{SOURCE}"}
        with contextlib.suppress(OSError):
            if as_account(ALICE, name, "-c", "import torch, elasticd", env=env).returncode == 0:
                return name, env
    return None


class Agent:
    """The processes part of an agent that runs as root."""

    def __init__(
        self,
        directory: Path,
        warm: bool = False,
        limits: Limits | None = None,
        root_jobs: bool = False,
        rooms: bool = False,
    ) -> None:
        self.directory, self.closed = directory, False
        self.state = directory / "state"
        self.state.mkdir(mode=0o711, exist_ok=True)
        self.told: list[ProcessStarted | ProcessExited | ProcessFailed] = []
        self.loop = Loop(SteadyClock(), self._on_turn, lambda: time.time() + 0.01)
        around = Surroundings(
            agent_address=f"ipc://{directory}/workers",
            address="127.0.0.1",
            checkpoints=directory / "checkpoints",
            gpus=tuple(Gpu(index=index, kind=GpuKind.CPU, name="cpu") for index in range(2)),
        )
        files = JobFiles(self.state / "jobs")
        self.tasks = TaskQueues(self.loop.wake)
        self.cgroups = Cgroups(directory.name, limits or Limits(tasks=500), None, cgroups.mounted())
        self.rooms = Rooms(directory / "rooms", directory.name) if rooms else None
        rules = Rules(
            Scratch(directory / "scratch"), self.cgroups, rooms=self.rooms, root_jobs=root_jobs, log_bytes=1 << 20
        )
        self.disk = Disk(self.state, files, around, rules)
        clock = SteadyClock()
        self.warm = None
        if warm:
            mounts = self.disk.mounts
            self.warm = WarmProcesses(self.state, None, self.loop, clock, self.tasks, self.cgroups, mounts=mounts)
        self.commands = Commands(self.loop, clock, self.tasks, self.disk)
        self.processes = Processes(files, around, self.loop, clock, self.warm, self._tell, self.tasks, self.disk)

    def _tell(self, event: ProcessStarted | ProcessExited | ProcessFailed) -> None:
        if isinstance(event, ProcessExited):
            self.commands.end(event.worker, lambda: self.told.append(event))
        else:
            self.told.append(event)

    def _on_turn(self) -> None:
        self.tasks.deliver()
        self.processes.pass_time()
        self.commands.pass_time()
        if self.warm is not None:
            self.warm.pass_time()

    def start(
        self,
        account: str,
        *command: str,
        job: str = "digits-1",
        number: int = 0,
        workdir: str = "/",
        env: dict[str, str] | None = None,
    ) -> WorkerId:
        order = self.order(account, *command, job=job, number=number, workdir=workdir, env=env)
        assert self.processes.start(order) is None
        return order.worker

    @staticmethod
    def order(
        account: str,
        *command: str,
        job: str = "digits-1",
        number: int = 0,
        workdir: str = "/",
        env: dict[str, str] | None = None,
        snapshot: Snapshot | None = None,
    ) -> StartWorker:
        spec = JobSpec(
            name="digits",
            command=command,
            gpus=GpuRange(min=1, max=1),
            virtual_workers=1,
            workdir=workdir,
            env={"PATH": PATH} | (env or {}),
            snapshot=snapshot,
        )
        worker = WorkerId(f"{job}.{number}")
        return StartWorker(
            job=JobId(job), worker=worker, gpu=0, spec=spec, generation=1, uid="ab", account=account, owner="somebody"
        )

    def until(self, holds: Callable[[], object]) -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < give_up_at, f"it did not come to pass; told: {self.told}"
            self.loop.turn()

    def turn_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.loop.turn()

    def end(self, worker: WorkerId) -> ProcessExited | ProcessFailed:
        """Wait for a worker's end; returns the event."""
        ends = [t for t in self.told if t.worker == worker and not isinstance(t, ProcessStarted)]
        if not ends:
            self.until(lambda: any(t.worker == worker and not isinstance(t, ProcessStarted) for t in self.told))
            return self.end(worker)
        return ends[0]

    def run(self, account: str, *command: str, **options: object) -> str:
        """Run a worker that must succeed; returns its output."""
        worker = self.start(account, *command, **options)  # type: ignore[arg-type]
        end = self.end(worker)
        assert isinstance(end, ProcessExited), end
        assert end.exit_code == 0, (end, self.log(worker))
        return self.log(worker)

    def piece(self, worker: WorkerId, growing: bool = False) -> LogPiece:
        request = ReadLog(request="r", job=worker_job(worker), worker=worker, offset=0, limit=1 << 20, uid="ab")
        return self.disk.read_log(request, growing, self.disk.writer(request))

    def log(self, worker: WorkerId) -> str:
        lines = self.piece(worker).data.decode().splitlines()
        return "\n".join(line.split(" ", 2)[2] for line in lines)

    def output(self, account: str, job: str = "digits-1") -> Path:
        return self.state / "accounts" / account / f"{job}.ab"

    def seen(self, account: str, worker: WorkerId) -> dict:
        """The exit-tracking record of a running worker, as its shim has written it."""
        path = self.output(account, worker_job(worker)) / f"{worker}.json"
        self.until(lambda: path.exists() and json.loads(path.read_text()).get("pid"))
        return json.loads(path.read_text())

    def close(self, kill: bool = True) -> None:
        """`kill`: kill all its processes, too."""
        if self.closed:
            return
        self.closed = True
        records = [watched.record for watched in self.processes._watched.values()]
        self.commands.close()
        self.processes.close()
        if self.warm is not None:
            self.warm.close()
            give_up_at = time.monotonic() + PATIENCE_S
            while self.tasks._waiting and time.monotonic() < give_up_at:
                time.sleep(0.01)
        self.tasks.close()
        self.loop.close()
        if kill:
            for record in records:
                cgroups.remove(record.cgroups)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(record.shim_pid or 0, signal.SIGKILL)
            for path in self.cgroups.others(frozenset()):
                cgroups.remove((path,))
            self.cgroups.close()
            if self.rooms is not None:
                for name, owner in self.rooms.others(frozenset()):
                    self.rooms.remove(name, Account("", owner, owner, (), "/"))
                self.rooms.close()


def worker_job(worker: WorkerId) -> JobId:
    return JobId(worker.rpartition(".")[0])


@contextlib.contextmanager
def public_directory(above: str = "/tmp") -> Iterator[Path]:
    """A directory that all accounts may traverse; pytest's are private."""
    path = Path(tempfile.mkdtemp(prefix="elasticd-test-", dir=above))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path, ignore_errors=True)
