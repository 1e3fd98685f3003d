"""The measured job under torchft: a lighthouse, and one replica group of one process per worker.

torchft is not a dependency: it is measured where it can be imported (`--torchft DIRECTORY`).
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

from .jobs import MeasuredJob
from .processes import end_tree, free_port, module

# By default the lighthouse counts a replica as alive for 5 s after its last heartbeat, and waits 60 s for others to join.
# These values are in torchft's favour.
LIGHTHOUSE = """
import signal, sys
from torchft.coordination import LighthouseServer
server = LighthouseServer(sys.argv[1], min_replicas=1, heartbeat_timeout_ms=1000, join_timeout_ms=1000)
signal.pause()
"""


def installed() -> str | None:
    """Return torchft's version; None if it is not installed."""
    if importlib.util.find_spec("torchft") is None:
        return None
    for distribution in ("torchft", "torchft-nightly"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return "unknown"


class TorchftJob(MeasuredJob):
    """torchft. A killed replica is restarted at once, as its launcher would do."""

    name = "torchft"

    def start(self, workers: int) -> None:
        port = free_port()
        self._variables = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
        self._address = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-c", LIGHTHOUSE, f"127.0.0.1:{port}"]
        self._lighthouse = self.family.start(command, self._variables, self.log)
        self._workers = workers
        self._replicas: list[subprocess.Popen[bytes]] = []
        self._started = 0
        self.replace_lost()

    def resize(self, workers: int) -> None:
        raise NotImplementedError("only losses are measured")

    def replace_lost(self) -> None:
        self._replicas = [process for process in self._replicas if process.poll() is None]
        while len(self._replicas) < self._workers:
            self._replicas.append(self._replica())

    def _replica(self) -> subprocess.Popen[bytes]:
        self._started += 1
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "TORCHFT_LIGHTHOUSE": self._address}
        load = self.load
        record = str(self.directory / "record")
        command = module(
            "train_torchft", load.model, record, str(load.pace_s), str(self._workers), f"replica{self._started}"
        )
        return self.family.start(command, {**self._variables, **place}, self.log)

    def close(self) -> None:
        for process in [*self._replicas, self._lighthouse]:
            if process.poll() is None:
                end_tree(process.pid)
