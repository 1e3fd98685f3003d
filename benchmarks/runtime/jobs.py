"""The same training job under four runtimes, each able to start, to change its number of workers, and to end.

`resize` requests the change and returns; its cost is read from the job's record (`record`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from elasticd.ctl.client import Client
from elasticd.protocol.messages import GetJob, JobFound, JobView, Scale, Submit, Submitted
from elasticd.protocol.model import CheckpointSpec, GpuRange, JobId, JobSpec

from .processes import ROOT, Family, MeasurementFailed, end_tree, free_port, module, until
from .record import Applied, Record

MOST = 4
START_S = 240.0


@dataclass(frozen=True)
class Load:
    """Training of a job. `pace_s`: simulated compute time of an accelerator per micro-batch, in addition to the CPU's work."""

    model: str
    pace_s: float = 0.0
    checkpoint_every: int = 20  # steps, for runtimes that restart from checkpoints


class MeasuredJob(ABC):
    """One job in its own directory."""

    name: str

    def __init__(self, family: Family, directory: Path, load: Load) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.family = family
        self.directory = directory
        self.load = load
        self.record = Record(directory / "record")
        self.log = directory / "log"

    @abstractmethod
    def start(self, workers: int) -> None:
        """Start training."""

    @abstractmethod
    def resize(self, workers: int) -> None:
        """Request another number of workers."""

    @abstractmethod
    def close(self) -> None:
        """End all processes of this job."""

    def move(self) -> None:
        """Request the replacement of one worker by a new one."""
        raise NotImplementedError(f"{self.name} cannot be asked for a move")

    def replace_lost(self) -> None:
        """Start replacements of killed workers, where the runtime does not."""
        return

    def lines(self) -> list[Applied]:
        return self.record.read()

    def until_steady(self, workers: int, steps: int, not_these: frozenset[int] = frozenset()) -> frozenset[int]:
        """Wait until the last `steps` steps are of `workers` processes, none in `not_these`. Returns the processes' numbers."""

        def probe() -> frozenset[int] | None:
            recent = self.lines()[-workers * steps :]
            pids = frozenset(line.pid for line in recent)
            steady = (
                len(recent) == workers * steps and len(pids) == workers and {line.world for line in recent} == {workers}
            )
            return pids if steady and pids != not_these else None

        try:
            return until(f"{self.name}: {steps} steps of {workers} workers", probe, START_S)
        except MeasurementFailed as error:
            raise MeasurementFailed(f"{error}\n{self.story()}") from None

    def story(self) -> str:
        """Return the ends of the processes' logs."""
        texts = [
            path.read_text(errors="replace")[-1500:]
            for path in sorted(self.directory.rglob("*log"))[-8:]
            if path.is_file()
        ]
        return "\n".join(texts)

    def arguments(self, *more: str) -> list[str]:
        """Return the arguments of `train_ddp`."""
        load = self.load
        checkpoint = str(self.directory / "checkpoint")
        return [load.model, str(self.directory / "record"), checkpoint, *more]


class OurJob(MeasuredJob):
    """This project: a cluster of real daemons, two servers with two CPU slots each, started and stopped through elasticctl."""

    name = "elasticctl"
    script = "train_elastic"

    def up(self) -> None:
        """Start the cluster without a job."""
        cluster = self.directory / "cluster"
        self._elasticctl = [str(Path(sys.executable).with_name("elasticctl")), "--dir", str(cluster)]
        self._run("up", "--servers", "2", "--gpus", "2")
        self._client = Client(json.loads((cluster / "cluster.json").read_text())["controller"])

    def start(self, workers: int) -> None:
        self.up()
        command = module(self.script, self.load.model, str(self.directory / "record"), str(self.load.pace_s))
        spec = JobSpec(
            name="bench",
            command=tuple(command),
            gpus=GpuRange(min=1, max=MOST),
            virtual_workers=MOST,
            workdir=str(ROOT),
            checkpoint=CheckpointSpec(every_s=1e6),
            user="bench",
        )
        answer = self._client.ask(Submit(spec=spec))
        assert isinstance(answer, Submitted)
        self._job: JobId = answer.job
        self.resize(workers)

    def resize(self, workers: int) -> None:
        self._client.ask(Scale(job=self._job, share=workers), timeout_s=60.0)

    def view(self) -> JobView:
        answer = self._client.ask(GetJob(job=self._job))
        assert isinstance(answer, JobFound)
        return answer.job

    def close(self) -> None:
        if hasattr(self, "_client"):
            self._client.close()
        self._run("down", "--purge", "--yes")

    def _run(self, *arguments: str) -> None:
        with self.log.open("ab") as log:
            command = [*self._elasticctl, *arguments]
            # In its own session, since Ctrl-C is for this process, which then ends the cluster.
            code = subprocess.run(command, stdout=log, stderr=log, check=False, start_new_session=True).returncode
        if code:
            raise MeasurementFailed(f"elasticctl {arguments[0]} ended with {code}\n{self.story()}")


class TorchrunJob(MeasuredJob):
    """torchrun's elastic launch, one agent with one worker each: a change restarts all workers from the last checkpoint."""

    name = "torchrun"

    def start(self, workers: int) -> None:
        self._port = free_port()
        self._agents: list[subprocess.Popen[bytes]] = []
        self.resize(workers)

    def resize(self, workers: int) -> None:
        while len(self._agents) > workers:
            self._agents.pop().send_signal(signal.SIGTERM)  # the agent ends its worker, and leaves the rendezvous
        while len(self._agents) < workers:
            self._agents.append(self._agent(first=not self._agents))

    def move(self) -> None:
        """Add a third agent, then end the second: the first one hosts the rendezvous and has to stay."""
        self._agents.append(self._agent(first=False))
        self.until_steady(len(self._agents), 3)
        self._agents.pop(1).send_signal(signal.SIGTERM)

    def _agent(self, first: bool) -> subprocess.Popen[bytes]:
        arguments = self.arguments(str(self.load.checkpoint_every), str(self.load.pace_s))
        command = [
            *(sys.executable, "-m", "torch.distributed.run", f"--nnodes=1:{MOST}", "--nproc-per-node=1"),
            *("--rdzv-id=bench", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self._port}"),
            # The default waits 30 s for further workers once there are enough. 1 s is in torchrun's favour.
            *(f"--rdzv-conf=is_host={int(first)},last_call_timeout=1", "--local-addr=127.0.0.1", "--max-restarts=1000"),
            *("--module", "benchmarks.runtime.train_ddp", *arguments),
        ]
        # Otherwise workers use the first agent's own store, and a restart can find the keys of the earlier one.
        variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        process = self.family.start(command, variables, self.log)
        if first:
            time.sleep(1.5)  # the other agents connect to its store
        return process

    def close(self) -> None:
        for process in self._agents:
            end_tree(process.pid)


class StopResumeJob(MeasuredJob):
    """Stop, checkpoint, and restart with another number of workers, in new interpreters or forked from a warm one."""

    forked = False
    name = "cold resume"

    def start(self, workers: int) -> None:
        self._stop = self.directory / "stop"
        self._ranks: list[subprocess.Popen[bytes]] = []
        self._begin(workers)

    def resize(self, workers: int) -> None:
        self.stop()
        self.go_on(workers)

    def stop(self) -> None:
        """Have the job save a checkpoint, and wait until all workers have ended."""
        self._stop.touch()
        self._wait()
        self._stop.unlink()

    def go_on(self, workers: int) -> None:
        """Start the stopped job again, from its checkpoint."""
        self._begin(workers)

    def move(self) -> None:
        self.resize(2)

    def _begin(self, workers: int) -> None:
        arguments = self.arguments("0", str(self.load.pace_s), str(self._stop))
        port = str(free_port())
        for rank in range(workers):
            variables = {"RANK": str(rank), "WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            self._ranks.append(self.family.start(module("train_ddp", *arguments), variables, self.log))

    def _wait(self) -> None:
        for process in self._ranks:
            process.wait(START_S)
        self._ranks.clear()

    def close(self) -> None:
        for process in self._ranks:
            end_tree(process.pid)


class ForkedJob(StopResumeJob):
    """A StopResumeJob whose new workers are forked from a process that has imported everything."""

    name = "warm resume"

    def start(self, workers: int) -> None:
        self._server = self.family.start(
            module("forkserver"), log=self.log, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._expect(b"ready")
        super().start(workers)

    def _begin(self, workers: int) -> None:
        arguments = self.arguments("0", str(self.load.pace_s), str(self._stop))
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps([workers, free_port(), arguments]).encode() + b"\n")
        self._server.stdin.flush()

    def _wait(self) -> None:
        self._expect(b"done")

    def _expect(self, word: bytes) -> None:
        assert self._server.stdout is not None
        said = self._server.stdout.readline().strip()
        if said != word:
            raise MeasurementFailed(f"the warm process said {said!r}\n{self.story()}")

    def close(self) -> None:
        end_tree(self._server.pid)


def kill(pid: int) -> float:
    """Send SIGKILL. Returns the time just before it (CLOCK_MONOTONIC, s)."""
    at_s = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return at_s
