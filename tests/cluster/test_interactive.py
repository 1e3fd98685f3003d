"""`elasticctl run --pty`: a shell at a terminal, in a job of its own, with real processes."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elasticd.protocol.messages import GetJobs, GetServers, Jobs
from elasticd.protocol.model import JobPhase

pytestmark = pytest.mark.cluster

MakeCluster = Callable[..., Any]
WITHIN_S = 90.0
ELASTICCTL = str(Path(sys.executable).with_name("elasticctl"))


class Typist:
    """A client at a terminal of its own."""

    def __init__(self, address: str, *words: str) -> None:
        self.end, terminal = pty.openpty()
        line = [ELASTICCTL, "--controller", address, *words]
        self.client = subprocess.Popen(line, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True)
        os.close(terminal)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.end, text.encode())

    def until(self, words: str) -> None:
        give_up_at = time.monotonic() + WITHIN_S
        while words not in self.seen:
            assert time.monotonic() < give_up_at, self.seen
            if select.select([self.end], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.end, 65536).decode(errors="replace")
                except OSError:
                    break
        assert words in self.seen, self.seen


def jobs(cluster: Any) -> list[Any]:
    answer = cluster.client.ask(GetJobs(final_too=True))
    assert isinstance(answer, Jobs)
    return list(answer.jobs)


def test_a_shell_has_a_job_of_its_own_which_ends_with_it(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(servers=1, slots=2)
    typist = Typist(cluster.address, "run", "--pty", "--gpus", "2", "sh")
    typist.type("tty && echo it has $((40 + 2)); exit 5\n")
    typist.until("it has 42")
    assert "/dev/pts/" in typist.seen
    assert typist.client.wait(WITHIN_S) == 5
    (job,) = jobs(cluster)
    assert cluster.until_over(job.job).exit_code == 5
    cluster.until("its GPUs are free", lambda: not cluster.client.ask(GetServers()).servers[0].used)


def test_a_shell_whose_client_is_killed_gives_its_gpus_back(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(servers=1, slots=1)
    typist = Typist(cluster.address, "run", "--pty", "sh")
    typist.type("echo it has $((40 + 2))\n")
    typist.until("it has 42")
    (job,) = jobs(cluster)
    assert job.phase is JobPhase.RUNNING
    typist.client.kill()
    typist.client.wait()
    view = cluster.until_over(job.job)
    assert (view.phase, view.exit_code) == (JobPhase.FAILED, 129)


def test_a_shell_that_waits_for_gpus_is_cancelled_by_ctrl_c(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(servers=1, slots=1)
    script = tmp_path / "long.py"
    script.write_text("import time; time.sleep(600)")
    first = cluster.submit(gpus=(1, 1), virtual_workers=1, script=script, restarts=0)
    cluster.until("it runs", lambda: cluster.job(first).phase is JobPhase.RUNNING)
    typist = Typist(cluster.address, "run", "--pty", "sh")
    typist.until("waits")
    typist.client.send_signal(2)
    typist.until("is cancelled")
    assert typist.client.wait(WITHIN_S) != 0
    (shell,) = [job for job in jobs(cluster) if job.job != first]
    assert cluster.until_over(shell.job).phase is JobPhase.CANCELLED
