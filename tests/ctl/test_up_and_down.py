"""A cluster on one machine from `elasticctl up` to `down`: what is started, kept and removed, with real processes."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from elasticd.ctl import local

from .command import ELASTICCTL, PATIENCE_S, Cli, one_line


def test_without_a_cluster_everything_says_so_with_its_own_exit_code(tmp_path: Path) -> None:
    nowhere = Cli(tmp_path / "nowhere", tmp_path)
    assert "no cluster at" in one_line(nowhere("status", code=3))
    refused = nowhere("--controller", f"ipc://{tmp_path}/nobody", "status", code=3)
    assert f"no controller answers at ipc://{tmp_path}/nobody" in one_line(refused)
    assert "wants a key" in one_line(nowhere("--controller", "tcp://127.0.0.1:9", "status", code=2))
    assert "no cluster at" in nowhere("down").stderr


def test_who_waits_while_another_process_removes_the_directory_has_the_new_directorys_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, waits, done = tmp_path / "cluster", threading.Event(), threading.Event()
    found: list[bool] = []
    opened: list[int] = []
    real = fcntl.flock

    def flock(descriptor: int, how: int) -> None:
        opened.append(os.fstat(descriptor).st_ino)
        if len(opened) == 2:  # the one that waits: it has opened the file, and is as fast as the removal
            waits.set()
            done.wait(60.0)
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)

    def waiting() -> None:
        with local._locked(directory):
            found.append((directory / ".lock").exists() and (directory / ".lock").stat().st_ino == opened[-1])

    with local._locked(directory):
        thread = threading.Thread(target=waiting)
        thread.start()
        assert waits.wait(60.0)
        local._let_go(directory)
    done.set()
    thread.join(60.0)
    assert found == [True]


@pytest.mark.cluster
def test_up_again_starts_what_was_killed_and_the_jobs_are_still_there(alone: Cli) -> None:
    alone("up", "--servers", "2", "--gpus", "1")
    (alone.cwd / "sleep.yaml").write_text("name: sleep\ncommand: sleep 60\ngpus: 1\n")
    job = alone("submit", "sleep.yaml").stdout.strip()
    daemons = json.loads((alone.directory / "cluster.json").read_text())["daemons"]
    for name in ("controller", "local-2"):
        os.kill(daemons[name]["pid"], signal.SIGKILL)
    assert alone.json("up")["started"] == ["controller", "local-2"]
    assert alone.json("up")["started"] == []
    assert [entry["job"] for entry in alone.json("status")["jobs"]] == [job]
    assert "--servers 3" in one_line(alone("up", "--servers", "3", code=2))
    assert len(alone.processes()) >= 4


@pytest.mark.cluster
def test_down_keeps_what_was_made_and_removes_it_only_when_told(alone: Cli) -> None:
    alone("up", "--gpus", "1")
    job = alone("submit", "--name", "stubborn", "--", "sh", "-c", "trap '' TERM; while true; do sleep 1; done")
    deadline = time.monotonic() + PATIENCE_S
    while alone.json("status", job.stdout.strip())["workers"][0]["phase"] not in ("starting", "running"):
        assert time.monotonic() < deadline
    done = alone("down")
    assert alone.processes() == []
    assert done.stdout == f"stopped; kept {alone.directory}\n"
    assert "the records of its jobs, no checkpoints and logs (" in done.stderr
    assert f"`elasticctl --dir {alone.directory} down --purge` removes them" in done.stderr
    assert "nothing runs" in alone("down").stdout
    assert f"is stopped: `elasticctl --dir {alone.directory} up`" in one_line(alone("status", code=3))
    alone("up")
    assert [entry["job"] for entry in alone.json("status", "--all")["jobs"]] == [job.stdout.strip()]
    assert "say --yes" in one_line(alone("down", "--purge", code=2)), "nobody is there to ask"
    assert len(alone.processes()) > 0
    assert alone("down", "--purge", "--yes").stdout == f"stopped; removed {alone.directory}\n"
    assert alone.processes() == []
    assert not alone.directory.exists()


@pytest.mark.cluster
def test_down_has_jobs_save_their_state_and_up_goes_on_from_there(alone: Cli) -> None:
    alone("up", "--gpus", "2")
    enough, script = alone.cwd / "enough", Path(__file__).parents[1] / "cluster" / "train_small.py"
    command = [sys.executable, str(script), str(alone.cwd / "model.pt"), "--epochs", "40", "--size", "128"]
    pace = ["--pace", "0.05", "--enough", str(enough)]
    job = alone("submit", "--gpus", "1:2", "--virtual-workers", "4", "--", *command, *pace).stdout.strip()
    deadline = time.monotonic() + PATIENCE_S
    while (alone.json("status", job)["step"] or 0) < 5:
        assert time.monotonic() < deadline
    done = alone("down")
    assert alone.processes() == []
    assert re.search(rf"^{job}: after \d+ steps, its state is saved$", done.stderr, re.MULTILINE), done.stderr
    enough.touch()
    alone("up")
    assert alone("wait", job).stdout == f"{job} finished\n"
    assert "restarted" not in [event["kind"] for event in alone.json("events", job)["events"]]


@pytest.mark.cluster
def test_what_a_cluster_made_is_removed_after_a_yes_at_the_terminal(alone: Cli) -> None:
    alone("up", "--gpus", "1")
    for word, code in (("n", 1), ("y", 0)):
        asked, mine = os.openpty()
        command = [ELASTICCTL, "--dir", str(alone.directory), "down", "--purge"]
        os.write(asked, f"{word}\n".encode())
        done = subprocess.run(command, stdin=mine, capture_output=True, text=True, timeout=PATIENCE_S)
        os.close(asked)
        os.close(mine)
        assert f"Remove {alone.directory} with the records of its jobs" in done.stderr
        assert done.returncode == code
        assert alone.directory.exists() == (word == "n")
        assert bool(alone.processes()) == (word == "n")


@pytest.mark.cluster
def test_a_stopped_cluster_may_get_other_options(alone: Cli) -> None:
    alone("up", "--gpus", "1")
    assert "down` first" in one_line(alone("up", "--gpus", "2", code=2))
    alone("down")
    alone("up", "--servers", "2", "--gpus", "2", "--policy", "fifo")
    shown = alone.json("servers")["servers"]
    assert [len(view["server"]["gpus"]) for view in shown] == [2, 2]
    assert alone.json("policy", "show")["policy"]["name"] == "fifo"


@pytest.mark.cluster
def test_a_dead_controller_is_named_at_once_with_its_process_its_log_and_what_starts_it(alone: Cli) -> None:
    alone("up", "--gpus", "1")
    pid = json.loads((alone.directory / "cluster.json").read_text())["daemons"]["controller"]["pid"]
    os.kill(pid, signal.SIGKILL)
    psutil.wait_procs([process for process in alone.processes() if process.pid == pid], timeout=PATIENCE_S)
    line = one_line(alone("status", code=3))
    for words in (
        f"process {pid} does not run",
        f"`elasticctl --dir {alone.directory} up` starts it again",
        f"its log is {alone.directory}/log/controller.log, which ends with: ",
    ):
        assert words in line
    assert "no controller" not in alone("version").stderr
    assert alone.json("up")["started"] == ["controller"]
    pid = json.loads((alone.directory / "cluster.json").read_text())["daemons"]["controller"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert f"runs as process {pid} and does not answer; its log is" in one_line(alone("status", code=3))
    os.kill(pid, signal.SIGCONT)


@pytest.mark.cluster
def test_who_follows_a_job_outlasts_a_restart_of_the_controller(alone: Cli) -> None:
    alone("up", "--gpus", "1")
    go_on = alone.cwd / "go-on"
    script = f"echo hello; until [ -e {go_on} ]; do sleep 0.1; done; echo bye"
    job = alone("submit", "--name", "long", "--", "sh", "-c", script).stdout.strip()
    words = [ELASTICCTL, "--dir", str(alone.directory), "attach", job]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        assert follower.stderr is not None
        assert follower.stdout.readline() == "hello\n"
        os.kill(
            json.loads((alone.directory / "cluster.json").read_text())["daemons"]["controller"]["pid"], signal.SIGKILL
        )
        assert any("the controller does not answer; waits for it, at most 2m00s" in line for line in follower.stderr)
        alone("up")
        go_on.touch()
        assert follower.stdout.read() == "bye\n"
        assert f"{job} finished" in follower.stderr.read()
        assert follower.wait() == 0


@pytest.mark.cluster
def test_a_cluster_that_cannot_start_says_why_and_leaves_nothing(alone: Cli) -> None:
    done = alone("up", "--policy", "best-of-all", code=1)
    assert "best-of-all" in done.stderr
    assert "max-min" in done.stderr
    assert alone.processes() == []
    assert not (alone.directory / "cluster.json").exists()


def test_a_directory_with_other_things_in_it_is_left_alone(alone: Cli) -> None:
    alone.directory.mkdir()
    (alone.directory / "thesis.tex").write_text("precious")
    assert "thesis.tex" in one_line(alone("up", code=2))
    assert (alone.directory / "thesis.tex").read_text() == "precious"
