"""Any command, with real processes: plain scripts, torchrun on one and on two servers, exits, restarts."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elasticd.ctl.jobfile import Overrides, build
from elasticd.ctl.jobgpus import GpuOptions
from elasticd.protocol.errors import RequestRefused
from elasticd.protocol.messages import Scale, Submit, Submitted
from elasticd.protocol.model import JobPhase

HERE = Path(__file__).parent
DDP = HERE / "train_ddp.py"
MakeCluster = Callable[..., Any]

pytestmark = pytest.mark.cluster


def submit(cluster: Any, *command: str, gpus: str | None = None, **options: Any) -> str:
    """As `elasticctl submit -- COMMAND` does, with the programs of this interpreter's environment."""
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"}
    overrides = Overrides(gpus=GpuOptions(gpus), command=command, name="run", **options)
    answer = cluster.client.ask(Submit(spec=build(None, overrides, cluster.directory, environ)))
    assert isinstance(answer, Submitted), answer
    return answer.job


def ranks(directory: Path) -> list[list[str]]:
    """What each process of the script has written, by rank."""
    files = sorted(directory.iterdir(), key=lambda path: int(path.name))
    return [path.read_text().split() for path in files]


@pytest.mark.parametrize("servers", [1, 2])
def test_torchrun_starts_its_processes_on_one_server_and_on_two(
    make_cluster: MakeCluster, tmp_path: Path, servers: int
) -> None:
    cluster = make_cluster(servers=servers, slots=2)
    (out := tmp_path / "out").mkdir()
    job = submit(cluster, "torchrun", "--nproc-per-node", "2", str(DDP), str(out), gpus=str(2 * servers))
    view = cluster.until_final(job)
    world = 2 * servers
    total = str(world * (world + 1) // 2)
    assert [(found[0], found[1], found[2]) for found in ranks(out)] == [
        (str(rank), str(world), total) for rank in range(world)
    ]
    assert [found[3] for found in ranks(out)] == ["0", "1"] * servers
    assert not view.elastic
    assert len(view.past_workers) == servers


def test_a_plain_distributed_script_runs_as_one_process_for_each_gpu(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(servers=2, slots=2)
    (out := tmp_path / "out").mkdir()
    job = submit(cluster, "python", str(DDP), str(out), gpus="4")
    assert len(cluster.until_final(job).past_workers) == 4
    assert [found[:5] for found in ranks(out)] == [[str(r), "4", "10", str(r % 2), "2"] for r in range(4)]


def test_two_jobs_of_torchrun_meet_at_ports_of_their_own(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(servers=1, slots=4)
    jobs = []
    for name in ("one", "two"):
        (out := tmp_path / name).mkdir()
        jobs.append(submit(cluster, "torchrun", "--nproc-per-node", "2", str(DDP), str(out)))
    for job in jobs:
        cluster.until_final(job)
    assert [found[1] for name in ("one", "two") for found in ranks(tmp_path / name)] == ["2"] * 4


def test_a_command_that_fails_says_which_process_with_its_last_words(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(servers=1, slots=2)
    script = 'if [ "$RANK" = 1 ]; then echo "no such data" >&2; exit 3; fi; exec sleep 600'
    view = cluster.until_over(submit(cluster, "bash", "-c", script, gpus="2"))
    assert (view.phase, view.exit_code) == (JobPhase.FAILED, 3)
    assert view.reason == f"{view.job}.1 on s1:1: exit code 3: no such data"
    cluster.until("its fellow is stopped", lambda: not cluster.job(view.job).workers)


def test_a_killed_command_runs_again_only_if_its_user_allows_it(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(servers=1, slots=2)
    pid = tmp_path / "pid"
    script = (
        f'echo $$ > "{pid}.new"; mv "{pid}.new" "{pid}"; if [ -e "{tmp_path}/go" ]; then exit 0; fi; exec sleep 600'
    )
    for restarts in (None, 1):
        pid.unlink(missing_ok=True)
        job = submit(cluster, "bash", "-c", script, restarts=restarts)
        cluster.until("it runs", pid.exists)
        cluster.until("that is known", lambda job=job: cluster.job(job).phase is JobPhase.RUNNING)
        with pytest.raises(RequestRefused, match="fixed gang"):
            cluster.client.ask(Scale(job=job, share=1))
        (tmp_path / "go").touch()
        os.kill(int(pid.read_text()), signal.SIGKILL)
        view = cluster.until_over(job)
        assert (view.phase, view.restarts) == ((JobPhase.FINISHED, 1) if restarts else (JobPhase.FAILED, 0))
        (tmp_path / "go").unlink()
    assert view.reason == ""


def test_a_command_goes_on_while_its_agent_and_the_controller_are_replaced(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(servers=1, slots=2)
    go = tmp_path / "go"
    script = f'echo run >> "{tmp_path}/runs"; while [ ! -e "{go}" ]; do sleep 0.1; done'
    job = submit(cluster, "bash", "-c", script)
    cluster.until("it runs", lambda: cluster.job(job).phase is JobPhase.RUNNING)
    for name in ("s1", "controller"):
        cluster.kill(name)
        cluster.start(name)
    cluster.until("the controller knows it", lambda: cluster.job(job).share_gpus == 1)
    go.touch()
    cluster.until_final(job)
    assert (tmp_path / "runs").read_text() == "run\n"
