"""The controller's store is moved to etcd and back while a job trains, and restored from a backup: with real processes."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticd.protocol.errors import ClusterUnreachable
from elasticd.protocol.messages import Ping, Pong

from ..etcds import Etcd, needed
from .touched import repeated

pytestmark = pytest.mark.campaign
HERE = Path(__file__).parent


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    needed()
    (tmp_path / "etcd").mkdir()
    etcd = Etcd(tmp_path / "etcd", size=3)
    yield etcd
    etcd.close()


def elasticctl(*words: object) -> str:
    command = [sys.executable, "-m", "elasticd.ctl.main", "store", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout


class Moving:
    """A cluster whose controller is given another store."""

    def __init__(self, cluster: Any, etcd: Etcd) -> None:
        self.cluster, self.file = cluster, cluster.directory / "controller.yaml"
        endpoints = [member.endpoint for member in etcd.members]
        root = f"/elasticctl/{secrets.token_hex(4)}"
        options = yaml.safe_load(self.file.read_text())
        self.options = {
            "sqlite": options | {"store": "sqlite"},
            "etcd": options
            | {"store": "etcd", "etcd": {"endpoints": endpoints, "timeout_s": 2.0, "root": root, "insecure": True}},
        }
        self.with_etcd = cluster.directory / "with_etcd.yaml"  # as `store copy` reads it
        self.with_etcd.write_text(yaml.safe_dump(self.options["etcd"]))

    def use(self, store: str) -> None:
        self.file.write_text(yaml.safe_dump(self.options[store]))

    def stop(self) -> None:
        self.cluster.processes["controller"].send_signal(signal.SIGTERM)
        self.cluster.processes["controller"].wait()

    def start(self) -> None:
        self.cluster.start("controller")
        self.cluster.until("the controller answers", self._answers)
        self.cluster.until("all servers are there", self.cluster.all_there)

    def _answers(self) -> bool:
        try:
            return isinstance(self.cluster.client.ask(Ping()), Pong)
        except ClusterUnreachable:  # it starts, and stands for election
            return False


def test_a_job_trains_on_while_the_store_is_moved_to_etcd_and_back(
    make_cluster: Callable[..., Any], tmp_path: Path, etcd: Etcd
) -> None:
    cluster = make_cluster(servers=2, slots=1)
    moving = Moving(cluster, etcd)
    touched = tmp_path / "touched"
    job = cluster.submit(
        str(tmp_path / "model.pt"), "--epochs", "60", "--size", "250", "--pace", "0.02", "--touched", str(touched),
        gpus=(1, 2),
    )  # fmt: skip
    cluster.until_share(job, 2)
    view = cluster.until_step(job, 5)
    pids = cluster.pids(job)
    moving.stop()
    told = elasticctl("copy", f"sqlite:{tmp_path / 'controller'}", f"etcd:{moving.with_etcd}")
    assert "1 jobs" in told
    (tmp_path / "controller" / "cluster.db").rename(tmp_path / "old.db")
    moving.use("etcd")
    moving.start()
    view = cluster.until_step(job, view.step + 20)
    assert cluster.pids(job) == pids
    cluster.scale(job, 1)
    moving.stop()
    elasticctl("copy", f"etcd:{moving.with_etcd}", f"sqlite:{tmp_path / 'controller'}")
    moving.use("sqlite")
    moving.start()
    view = cluster.until_final(job)
    assert view.restarts == 0
    assert not repeated(touched, 60 * 250, view), "a step was trained twice"


def test_a_job_that_went_on_after_a_backup_loses_no_step_when_that_is_restored(
    make_cluster: Callable[..., Any], tmp_path: Path, etcd: Etcd
) -> None:
    cluster = make_cluster(servers=1, slots=2)
    moving = Moving(cluster, etcd)
    job = cluster.submit(str(tmp_path / "model.pt"), "--epochs", "60", "--size", "250", "--pace", "0.02", gpus=(1, 1))
    cluster.until_step(job, 3)
    elasticctl("backup", f"sqlite:{tmp_path / 'controller'}", tmp_path / "kept")  # while the controller runs
    step = cluster.scale(job, 2).step or cluster.job(job).step
    moving.stop()
    assert "no step is lost" in elasticctl("restore", tmp_path / "kept", f"etcd:{moving.with_etcd}")
    moving.use("etcd")
    moving.start()
    view = cluster.until_final(job)
    assert view.step == view.total_steps - 1
    assert step is not None
    assert any(event.kind.value == "overtaken" for event in events(cluster))


def events(cluster: Any) -> Any:
    from elasticd.protocol.messages import GetEvents

    return cluster.client.ask(GetEvents()).events
