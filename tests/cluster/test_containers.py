"""Jobs in containers, with real podman: the bits, the limits and the ends of plain jobs, and no container left behind."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from elasticd.agent.cgroups import mounted
from elasticd.agent.config import tag
from elasticd.protocol.errors import RequestRefused
from elasticd.protocol.messages import Cancel, GetServers
from elasticd.protocol.model import JobPhase
from tests.images import IMAGE, containers_of, install, mounts

from .conftest import PATIENCE_S
from .test_smoke import alone, assert_same_bits, load

pytestmark = pytest.mark.cluster

MakeCluster = Callable[..., Any]


@pytest.fixture(scope="module")
def image() -> str:
    """The name of an image in this account's store."""
    if problem := install():
        pytest.skip(problem)
    return IMAGE


@pytest.fixture
def scratch() -> Iterator[Path]:
    """The directory of the workers' temporary files, with a path as short as those of installations."""
    with tempfile.TemporaryDirectory(prefix="elt-", dir="/tmp", ignore_cleanup_errors=True) as path:
        yield Path(path)


@pytest.fixture
def contained(scratch: Path, make_cluster: MakeCluster, image: str) -> Any:
    cluster = make_cluster(
        servers=1, slots=3, agents_too={"container_mounts": list(mounts()), "scratch_directory": str(scratch)}
    )
    cluster.scratch, cluster.before = scratch, {path.name for path in Path("/tmp").glob("elasticctl-*")}
    (there,) = cluster.client.ask(GetServers()).servers
    assert there.server.no_containers == ""
    return cluster


def left_of(cluster: Any) -> list[str]:
    """What is left of containers: podman's directories, mounts, control groups, processes of podman."""
    scratch = cluster.scratch
    found = [str(entry) for entry in scratch.iterdir()]
    found += [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(scratch) in line]
    found += [str(path) for path in Path("/tmp").glob("elasticctl-*") if path.name not in cluster.before]
    groups = f"*/elasticctl-{tag(cluster.directory / 's1')}/job-*"
    found += [str(path) for path in Path("/sys/fs/cgroup").glob(groups) if path.is_dir()]
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if any(str(scratch) in word for word in words) and process.pid != os.getpid():
            found.append(" ".join(words)[:200])
    return found


def nothing_is_left(cluster: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while left := left_of(cluster):
        assert time.monotonic() < deadline, f"left of containers: {left}"
        time.sleep(0.1)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.is_file() else b""
    except FileNotFoundError:  # of a worker that has just ended
        return b""


def test_a_job_in_a_container_is_resized_and_killed_and_ends_with_the_bits_of_a_plain_one(
    contained: Any, image: str, tmp_path: Path
) -> None:
    output, enough = tmp_path / "model.pt", tmp_path / "enough"
    arguments = ("--epochs", "8", "--size", "250")
    pace = ("--pace", "0.15", "--enough", str(enough))
    job = contained.submit(str(output), *arguments, *pace, gpus=(1, 3), image=image)
    contained.until_step(job, 3)
    contained.scale(job, 2)
    workers = contained.until("it has two workers", lambda: len(contained.pids(job)) == 2 and contained.pids(job))
    inside = {worker: containers_of(worker) for worker in workers}
    assert all(inside.values()), "its workers are not in containers"
    assert all(pid in inside[worker] for worker, pid in workers.items()), "a worker tells another process's number"
    key = psutil.Process(workers[min(workers)]).environ()["ELASTICD_KEY"]
    told = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    assert not [line for line in told if key in line], "the job's key is in a command line"
    records = [Path(top, name) for top, _, names in os.walk(contained.scratch) for name in names]
    assert any(path.name == "config.json" for path in records)
    assert not [path for path in records if key.encode() in _bytes(path)], "podman has written the job's key down"

    victim = max(workers)
    os.kill(workers[victim], signal.SIGKILL)
    contained.until("the killed worker is replaced", lambda: victim not in contained.pids(job))
    contained.until_share(job, 2)
    contained.until_step(job, contained.job(job).step + 2)
    enough.touch()
    contained.until_final(job)
    assert_same_bits(load(output), alone(tmp_path / "alone.pt", *arguments))
    nothing_is_left(contained)


def test_no_container_outlives_its_shim_even_while_the_agent_is_dead(
    contained: Any, image: str, tmp_path: Path
) -> None:
    output, enough = tmp_path / "model.pt", tmp_path / "enough"
    arguments = ("--epochs", "4", "--size", "250")
    pace = ("--pace", "0.15", "--enough", str(enough))
    job = contained.submit(str(output), *arguments, *pace, gpus=(2, 2), image=image)
    contained.until_step(job, 3)
    inside = {worker: containers_of(worker) for worker in contained.pids(job)}
    contained.kill("s1")
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if any(word.endswith("agent/shim.py") for word in words) and job in words:
            process.kill()
    contained.until("its containers have ended", lambda: not any(containers_of(worker) for worker in inside))
    contained.start("s1")
    contained.until("other workers train", lambda: contained.pids(job).keys() - inside.keys())
    enough.touch()
    contained.until_final(job)
    assert_same_bits(load(output), alone(tmp_path / "alone.pt", *arguments))
    nothing_is_left(contained)


STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("asked to end", flush=True), sys.exit(5)))
print("path", os.environ["PATH"], "home", os.environ["HOME"], "uid", os.getuid(), flush=True)
kept = bytearray(int(sys.argv[1]) << 20)
open("pid", "w").write(str(os.getpid()))
time.sleep(600)
"""


@pytest.mark.skipif(os.getuid() != 0 or not mounted().old, reason="needs control groups of version 1, and root")
def test_limits_signals_and_exit_codes_are_those_of_plain_jobs(contained: Any, image: str, tmp_path: Path) -> None:
    script = tmp_path / "stubborn.py"
    script.write_text(STUBBORN)
    greedy = contained.submit(
        "400", gpus=(1, 1), virtual_workers=1, script=script, restarts=0, image=image, memory_bytes=1 << 27
    )
    assert contained.until_over(greedy).phase is JobPhase.FAILED
    assert "killed by SIGKILL" in contained.job(greedy).reason, (
        "root's group of a container takes the kernel's count along"
    )

    job = contained.submit("1", gpus=(1, 1), virtual_workers=1, script=script, restarts=0, image=image)
    pid = tmp_path / "pid"
    contained.until("it runs", lambda: pid.exists() and pid.read_text())
    contained.client.ask(Cancel(job=job))
    (log,) = contained.directory.glob(f"s1/jobs/{job}.*/*.log")
    contained.until("the command has got SIGTERM", lambda: "asked to end" in log.read_text())
    text = log.read_text()
    assert "home /root uid 0" in text
    assert str(Path(sys.executable).parent) not in text, "the PATH is this machine's, not the image's"

    ended = contained.submit("x", gpus=(1, 1), virtual_workers=1, script=script, restarts=0, image=image)
    assert contained.until_over(ended).phase is JobPhase.FAILED
    assert "exit code 1: ValueError" in contained.job(ended).reason
    absent = contained.submit(
        "1", gpus=(1, 1), virtual_workers=1, script=script, restarts=0, image="localhost/absent:1"
    )
    assert contained.until_over(absent).phase is JobPhase.FAILED
    assert (
        "the image localhost/absent:1 is not on this server, and podman cannot pull it" in contained.job(absent).reason
    )
    nothing_is_left(contained)


def test_a_cluster_without_podman_refuses_a_job_with_an_image(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(servers=1, slots=1)
    (there,) = cluster.client.ask(GetServers()).servers
    if not there.server.no_containers:
        pytest.skip("this machine has podman: the reason is tested with the scheduler")
    with pytest.raises(RequestRefused, match="its workers run in containers, and no server can"):
        cluster.submit("x", gpus=(1, 1), image="localhost/x:1")
