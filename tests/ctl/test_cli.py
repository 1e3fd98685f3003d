"""`elasticctl` as people and programs use it: real processes, a real cluster, answers, refusals and exit codes."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import getpass
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .command import ELASTICCTL, PATIENCE_S, Cli, completed, one_line


@pytest.mark.cluster
def test_a_job_goes_through_its_life(cli: Cli) -> None:
    job = cli("submit", "sleep.yaml").stdout.strip()
    assert job.startswith("sleep-")
    assert job in [entry["job"] for entry in cli.json("status")["jobs"]]
    assert job in cli("status").stdout
    assert cli.json("status", job)["spec"]["command"] == ["sleep", "60"]
    assert "sleep 60" in cli("status", job).stdout
    assert cli("cancel", job).stdout == f"{job} cancelled\n"
    assert cli("wait", job, code=1).stdout.startswith(f"{job} cancelled")
    assert job not in [entry["job"] for entry in cli.json("status")["jobs"]]
    assert job in [entry["job"] for entry in cli.json("status", "--all")["jobs"]]
    kinds = [event["kind"] for event in cli.json("events", job)["events"]]
    assert (kinds[0], kinds[-1]) == ("submitted", "cancelled")


@pytest.mark.cluster
def test_all_jobs_of_a_user_are_cancelled_held_and_released_at_once(cli: Cli) -> None:
    first = running(cli, "sleep", "600")
    waiting = [cli("submit", "--gpus", "2", "--", "sleep", "600").stdout.strip() for _ in range(2)]
    asked = one_line(cli("cancel", "--all", code=1))
    assert asked == f"elasticctl: cancel --all would cancel {', '.join([first, *waiting])}: say --yes", (
        "no terminal to ask at"
    )
    assert set(cli("hold", "--all", "--state", "pending", "--yes").stdout.split("\n")) == {
        f"{job} held" for job in waiting
    } | {""}
    assert cli.json("release", "--all", "--yes")["resumed"] == waiting
    assert "no pending job of yours to release" in cli("release", "--all", "--state", "pending", "--yes").stderr
    assert cli.json("cancel", "--all", "--state", "running", "-y")["cancelled"] == [first]
    assert set(cli.json("cancel", "--all", "--yes")["cancelled"]) == set(waiting)
    assert "no unfinished job of yours to cancel" in cli("cancel", "--all").stderr
    for arguments in ((), ("--all", first), ("--state", "running", first), ("--all", "--state", "done")):
        one_line(cli("cancel", *arguments, code=2))


@pytest.mark.cluster
def test_of_several_jobs_those_that_there_are_are_cancelled_and_the_others_named(cli: Cli) -> None:
    job, other = (cli("submit", "sleep.yaml").stdout.strip() for _ in range(2))
    done = cli("cancel", job, "nobody-99", other, code=2)
    assert done.stdout == f"{job} cancelled\n{other} cancelled\n"
    assert "there is no job 'nobody-99'" in done.stderr
    again = cli("cancel", job, code=1)
    assert f"{job} is over already: it was cancelled" in one_line(again)


@pytest.mark.cluster
def test_a_jobs_own_exit_code_and_output_come_back(cli: Cli) -> None:
    done = cli("submit", "--name", "three", "--follow", "--", sys.executable, "train.py", code=3)
    job, *log = done.stdout.splitlines()
    assert log == ["hello"]
    assert f"{job} failed after " in done.stderr
    for words in ("(exit code 3)", "attempt 1", f"elasticctl logs {job} --worker 0", f"{job}.0.log"):
        assert words in done.stderr
    assert cli("logs", job).stdout == "hello\n"
    assert cli("logs", job, "--worker", "0").stdout == "hello\n"
    assert cli("logs", job, "--since", "1h").stdout == "hello\n"
    assert cli("logs", job, "--attempt", "1", "--tail", "1", "--follow").stdout == "hello\n"
    assert "attempts with workers: 1" in one_line(cli("logs", job, "--attempt", "2", code=2))
    ended = cli("wait", job, code=3).stdout
    assert ended.startswith(f"{job} failed")
    path = ended.splitlines()[-1].partition(":")[2]
    assert Path(path).read_text().endswith("o hello\n"), "the log is where it is said to be"


@pytest.mark.cluster
def test_run_shows_a_jobs_output_and_exits_with_its_code(cli: Cli) -> None:
    done = cli("run", "--name", "seven", "--", "bash", "-c", "echo out; echo wrong >&2; exit 7", code=7)
    assert done.stdout == "out\n", "the output of the job alone"
    job = done.stderr.partition("elasticctl: ")[2].partition(":")[0]
    assert job.startswith("seven-")
    assert "\nwrong\n" in done.stderr
    assert f"elasticctl: {job} failed after " in done.stderr
    assert cli("attach", job, code=7).stdout == "out\n"
    assert "one job file at a time" in one_line(cli("run", "a.yaml", "b", code=2))


@pytest.mark.cluster
def test_a_job_that_is_run_goes_on_after_ctrl_c_and_is_attached_again(cli: Cli) -> None:
    command = [ELASTICCTL, "--dir", str(cli.directory), "run", "--name", "goes-on", "--", "bash", "-c"]
    script = "echo one; while ! test -e end; do sleep 0.1; done; echo two; exit 5"
    with started(
        [*command, script],
        cwd=cli.cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as client:
        assert client.stdout is not None
        assert client.stderr is not None
        assert client.stdout.readline() == b"one\n"
        job = client.stderr.readline().decode().split()[1].rstrip(":")
        client.send_signal(signal.SIGINT)
        assert client.stderr.readline() == b"\n"
        said = client.stderr.readline().decode()
        for words in (f"{job} goes on", f"`elasticctl attach {job}`", "Ctrl-C again leaves it"):
            assert words in said
        assert client.poll() is None
        client.send_signal(signal.SIGINT)
        assert client.wait(PATIENCE_S) == 130
    while (phase := cli.json("status", job)["phase"]) != "running":
        assert phase == "starting"  # on a crowded machine it still does
        time.sleep(0.1)
    (cli.cwd / "end").touch()
    assert cli("attach", job, code=5).stdout == "one\ntwo\n"


@pytest.mark.cluster
def test_a_job_starts_after_another_one_and_ends_with_it_if_that_fails(cli: Cli) -> None:
    first = cli("submit", "--name", "prep", "--", "bash", "-c", "while ! test -e prepared; do sleep 0.1; done; exit 4")
    prep = first.stdout.strip()
    done = cli("submit", "--after", "prep", "--name", "train", "--", "true")
    train = done.stdout.strip()
    assert f"elasticctl: waits for {prep} (" in done.stderr
    clean = cli("submit", "--after", f"{prep}:any", "--name", "clean", "--", "true").stdout.strip()
    assert f"waits for {prep} (" in cli("explain", train).stdout
    assert f"waits for {prep} (" in cli("submit", "--dry-run", "--after", prep, "--", "true").stderr
    (cli.cwd / "prepared").touch()
    ended = cli("wait", train, code=1).stdout
    assert f"never started: {prep}, which had to finish first, has failed (DependencyNeverSatisfied)" in ended
    cli("wait", clean)
    assert f"{prep} has failed, so a job that waits for it" in one_line(
        cli("submit", "--after", prep, "--", "true", code=1)
    )
    assert "is not a job, such as" in one_line(cli("submit", "--after", "afterok:7", "--", "true", code=2))


WARNED = "import signal, time; signal.signal(signal.SIGUSR1, lambda *a: print('warned', flush=True)); time.sleep(600)"


@pytest.mark.cluster
def test_a_job_with_a_time_limit_is_warned_and_ends(cli: Cli) -> None:
    script = f'{sys.executable} -c "{WARNED}" & wait; wait'  # the shell, which has no handler, lives on
    done = cli("run", "--time", "8s", "--warn", "5s", "--name", "limited", "--", "bash", "-c", script, code=1)
    assert done.stdout == "warned\n"
    assert "it has run for 8s, its time limit" in done.stderr
    assert "has run 8s of 8s" in cli("status", done.stderr.split()[1].rstrip(":")).stdout
    assert "such as 90m or 2h" in one_line(cli("submit", "--time", "60", "--", "true", code=2))
    assert "goes with --time" in one_line(cli("submit", "--warn", "60s", "--", "true", code=2))
    assert "time: 1d2h\n" in cli("submit", "--dry-run", "--time", "1-02:00:00", "--", "true").stdout


@pytest.mark.cluster
def test_an_array_is_submitted_shown_as_one_waited_for_and_cancelled(cli: Cli) -> None:
    command = ("bash", "-c", "echo {index} of $ELASTICCTL_ARRAY_INDEX; test {index} != 2")
    done = cli("submit", "--array", "1-3%1", "--name", "list", "--wait", "--", *command, code=1)
    assert done.stdout == "list\n"
    assert "elasticctl: list[1-3%1]: 3 jobs, list-1-" in done.stderr
    ended = [view for view in cli.json("status", "--all")["jobs"] if view["spec"]["name"].startswith("list-")]
    assert [view["phase"] for view in ended] == ["finished", "failed", "finished"]
    assert cli("logs", ended[2]["job"]).stdout == "3 of 3\n"
    (cli.cwd / "grid.yaml").write_text("lr: [0.1, 0.2]\nwd: [0, 1, 2]\n")
    grid = ("--sweep", "grid.yaml", "--array", "%1", "--name", "grid")
    document = cli.json("submit", *grid, "--", "bash", "-c", "echo {lr} {wd}; sleep 600")
    assert (document["array"], len(document["jobs"])) == ("grid", 6)
    (row,) = [line for line in cli("status").stdout.splitlines() if line.startswith("grid")]
    assert row.split()[0] == "grid[0-5%1]"
    assert "6 pending" in row or "5 pending, 1 " in row
    assert len(cli.json("status", "grid")["jobs"]) == 6
    after = cli("submit", "--after", "grid", "--", "true").stdout.strip()
    assert len(cli.json("status", after)["spec"]["after"]) == 6
    assert cli("status", "-r").stdout.count("\ngrid-") == 6
    assert cli("cancel", "grid-[12]-*").stdout.splitlines() == [f"{job} cancelled" for job in document["jobs"][1:3]]
    assert len(cli("cancel", "grid").stdout.splitlines()) == 4
    assert "no unfinished job of yours matches 'grid-*'" in one_line(cli("cancel", "grid-*", code=2))
    assert "follows one job" in one_line(cli("run", "--array", "0-3", "--", "true", code=2))


@pytest.mark.cluster
def test_a_batch_script_is_submitted_with_the_options_that_it_states(cli: Cli) -> None:
    lines = (
        "#!/bin/bash",
        "#SBATCH --job-name=Batch --exclusive",
        "#SBATCH -t 10:00",
        "#ELASTICCTL --env A=1 --env B=2",
    )
    (cli.cwd / "job.sh").write_text("\n".join([*lines, 'echo "$A $B $*"', "exit 6"]))
    done = cli("run", "--env", "B=3", "job.sh", "--lr", "0.1", code=6)
    assert done.stdout == "1 3 --lr 0.1\n", "what is typed has precedence; what follows the script is for it"
    assert "#SBATCH --exclusive is not read: " in done.stderr
    job = cli.json("status", done.stderr.partition("elasticctl: batch-")[2].partition(":")[0])
    assert (job["spec"]["name"], job["spec"]["time_limit_s"], job["exit_code"]) == ("batch", 600.0, 6)
    told = cli("submit", "--dry-run", "--", "bash", "job.sh").stderr
    assert "`elasticctl submit job.sh` reads #SBATCH" in told


@contextlib.contextmanager
def started(command: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not outlive a failing test."""
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def running(cli: Cli, *command: str) -> str:
    """A job that runs."""
    job = cli("submit", "--", *command).stdout.strip()
    deadline = time.monotonic() + PATIENCE_S
    while cli.json("status", job)["workers"][0]["phase"] != "running":
        assert time.monotonic() < deadline
    return job


@pytest.mark.cluster
def test_a_command_runs_beside_a_worker_with_its_output_input_and_exit_code(cli: Cli) -> None:
    job = running(cli, "sleep", "600")
    done = cli("exec", job, "--", "sh", "-c", "pwd; echo wrong >&2; exit 7", code=7)
    assert (done.stdout, done.stderr) == (f"{cli.cwd}\n", "wrong\n")
    assert "--rank 3: " in one_line(cli("exec", job, "--rank", "3", "--", "true", code=2))
    assert "which command? Such as" in one_line(cli("exec", job, code=2))
    exec_cat = [ELASTICCTL, "--dir", str(cli.directory), "exec", job, "--", "cat"]
    data = os.urandom(500_000)
    assert subprocess.run(exec_cat, input=data, capture_output=True, check=True).stdout == data
    first = subprocess.run(f"{shlex.join(exec_cat[:-1])} yes | head -1", shell=True, capture_output=True, check=True)
    assert (first.stdout, first.stderr) == (b"y\n", b""), "nobody reads it any more"
    with started([*exec_cat[:-1], "sh", "-c", "echo there; sleep 600"], stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"there\n"
        cli("cancel", job)
        assert client.wait(PATIENCE_S) == 137
    assert f"{job} is cancelled: no worker of it runs" in one_line(cli("exec", job, "--", "true", code=1))


@pytest.mark.cluster
def test_a_shell_in_a_running_job_has_a_terminal(cli: Cli) -> None:
    job = running(cli, "sleep", "600")
    master, slave = pty.openpty()
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 99, 0, 0))
    command = [ELASTICCTL, "--dir", str(cli.directory), "exec", job, "--", "bash", "--norc", "--noprofile"]
    with subprocess.Popen(
        command,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm", "LINES": "24", "COLUMNS": "80"},
    ) as client:
        seen = b""

        def until(words: bytes) -> None:
            nonlocal seen
            while words not in seen:
                assert select.select([master], [], [], PATIENCE_S)[0], seen
                seen += os.read(master, 4096)

        os.write(master, b"stty size; echo $TERM; sleep 600\r")
        until(b"33 99\r\nxterm\r\n")
        os.write(master, b"\x03")
        os.write(master, b"echo still $((1 + 1)); exit 5\r")
        until(b"still 2\r\n")
        assert client.wait(PATIENCE_S) == 5
    assert termios.tcgetattr(slave)[3] & termios.ECHO, "the terminal is as it was"
    os.close(master)
    os.close(slave)
    cli("cancel", job)


@pytest.mark.cluster
def test_ctrl_c_ends_a_command_beside_a_worker(cli: Cli) -> None:
    job = running(cli, "sleep", "600")
    command = [ELASTICCTL, "--dir", str(cli.directory), "exec", job, "--", "sh", "-c", "echo there; exec sleep 70707"]
    with started(
        command,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"there\n"
        client.send_signal(signal.SIGINT)
        assert client.wait(PATIENCE_S) == 130
    deadline = time.monotonic() + PATIENCE_S
    while any("70707" in process.cmdline() for process in cli.processes()):
        assert time.monotonic() < deadline
    cli("cancel", job)


@pytest.mark.cluster
def test_a_job_that_has_only_waited_has_no_log(cli: Cli) -> None:
    jobs = [cli("submit", "--gpus", "2", "--", "sleep", "600").stdout.strip() for _ in range(2)]
    done = cli("logs", jobs[1])
    assert done.stdout == ""
    assert f"{jobs[1]} has had no worker yet" in done.stderr
    for job in jobs:
        cli("cancel", job)


@pytest.mark.cluster
def test_servers_and_version_are_shown(cli: Cli) -> None:
    (server,) = cli.json("servers")["servers"]
    assert (server["server"]["server"], server["alive"], len(server["server"]["gpus"])) == ("local-1", True, 2)
    assert "local-1" in cli("servers").stdout
    assert "is a member of this cluster" in cli("servers", "adopt", "local-1", code=1).stderr
    assert "there is no server 'local-9'" in cli("servers", "adopt", "local-9", code=2).stderr
    assert cli.json("version")["cluster"]["servers"] == 1
    assert "type" not in cli.json("version")["cluster"]
    assert cli("version").stdout.startswith("elasticctl 0.")


@pytest.mark.cluster
def test_jobs_that_are_over_are_paged_through(cli: Cli) -> None:
    jobs = [cli.json("submit", "sleep.yaml")["job"] for _ in range(3)]
    for job in jobs:
        cli("cancel", job)
    first = cli.json("history", "--limit", "2")
    assert [view["job"] for view in first["jobs"]] == [jobs[2], jobs[1]]
    assert first["more_before"] == jobs[1]
    rest = cli.json("history", "--before", jobs[1], "--limit", "1")
    assert [view["job"] for view in rest["jobs"]] == [jobs[0]]
    text = cli("history", "--limit", "2")
    assert jobs[2] in text.stdout
    assert f"history --limit 2 --before {jobs[1]}" in text.stderr
    named = cli("history", "--state", "cancelled", "--since", "1h", "--limit", "1", "--csv", "--format", "job,exit,by")
    assert named.stdout == f"job,exit_code,ended_by\n{jobs[2]},,{getpass.getuser()}\n"
    shown = [view["job"] for view in cli.json("status", "--all")["jobs"]]
    assert shown[-3:] == jobs, "in the order of submission"
    assert "there is no job" in one_line(cli("history", "--before", "nothing-7", code=2))


@pytest.mark.cluster
def test_a_server_is_cordoned_drained_and_uncordoned(alone: Cli) -> None:
    cli = alone
    cli("up", "--gpus", "2")
    (server,) = cli.json("servers")["servers"]
    name = server["server"]["server"]

    def cordons() -> list[dict[str, object]]:
        (shown,) = cli.json("servers")["servers"]
        return [{key: one[key] for key in ("gpu", "kind", "reason")} for one in shown["cordons"]]

    said = cli("cordon", name, "--reason", "new disk").stdout
    assert said == f"{name} takes no new work; what runs there goes on\n"
    assert cordons() == [{"gpu": None, "kind": "cordon", "reason": "new disk"}]
    text = cli("servers").stdout
    assert re.search(r"^\S+ +cordoned \d+s ago ", text, re.MULTILINE)
    assert "no new work here: cordoned by operator:" in text
    assert cli("drain", name).stdout == f"{name} is empty, and takes no new work\n"
    assert cordons() == [{"gpu": None, "kind": "drain", "reason": "new disk"}]
    assert re.search(r"^\S+ +drained \d+s ago ", cli("servers").stdout, re.MULTILINE)
    assert cli.json("drain", name, "--preempt")["drained"] is True
    assert cli("servers", "exclude", f"{name}:0").stdout.startswith(f"{name}:0 takes no new work")
    still = cli("uncordon", f"{name}:0").stdout
    assert still.startswith(f"{name}:0 is not cordoned any more, but:\n  no new work on GPU 0: drain ordered by")
    assert cli("uncordon", name).stdout == f"{name} may be used\n"
    assert cordons() == []
    assert cli("drain", f"{name}:0", "--no-wait").stdout == f"{name}:0 is being drained\n"
    assert cli("servers", "include", name).stdout == f"{name} may be used\n"
    assert cordons() == []


@pytest.mark.cluster
def test_a_server_with_work_is_neither_removed_nor_said_to_be_drained(alone: Cli) -> None:
    cli = alone
    cli("up", "--gpus", "2")
    (server,) = cli.json("servers")["servers"]
    name = server["server"]["server"]
    job = cli("submit", "--", "sleep", "300").stdout.strip()
    deadline = time.monotonic() + PATIENCE_S
    while job not in (shown := cli("servers").stdout):
        assert time.monotonic() < deadline, shown
    refused = one_line(cli("servers", "remove", name, code=1))
    assert f"server {name} still has workers of jobs ({job}.0 on {name}:0): drain it first" in refused
    told = cli("drain", name, code=1).stderr
    assert f"{job} (0) stays: a fixed gang of 1 GPU cannot be moved; `elasticctl cancel` ends it" in told
    assert f"End it: elasticctl --dir {cli.directory} uncordon {name}" in told
    document = cli.json("drain", name, code=1)
    assert [document["drained"], [one["job"] for one in document["still_there"]]] == [False, [job]]
    cli("cancel", job)
    assert cli("drain", name).stdout.startswith(f"{name} is empty")
    cli("uncordon", name)
    assert "there is no server" in one_line(cli("servers", "remove", "nowhere", code=2))
    assert "exclude each other" in one_line(cli("drain", name, "--no-wait", "--timeout", "1s", code=2))
    assert "is no SERVER:GPU" in one_line(cli("drain", f"{name}:x", code=2))
    assert f"{name} is there: drain it or switch it off first, or say --yes" in one_line(
        cli("servers", "remove", name, code=1)
    )
    assert cli("servers", "remove", name, "--yes").stdout == f"{name} is removed\n"
    assert cli("up").stdout.startswith(f"started {name} at "), "its agent is started again, and joins"
    assert [view["state"] for view in cli.json("servers")["servers"]] == ["alive"]


@pytest.mark.cluster
def test_the_policy_is_shown_tried_out_changed_and_given_back(cli: Cli) -> None:
    assert cli.json("policy", "show")["policy"] == {"name": "max-min", "parameters": {}}
    assert "controller.yaml" in cli("policy", "show").stdout
    job = cli("submit", "--gpus", "2", "--", "sleep", "600").stdout.strip()
    (cli.cwd / "mine.yaml").write_text("policy: tiresias-l\nparameters: {thresholds_gpu_s: [60]}\nplacement: buddy\n")
    tried = cli.json("policy", "set", "mine.yaml", "--dry-run")
    assert (tried["dry_run"], tried["after"]["policy"]["name"], tried["shares"]) == (True, "tiresias-l", [])
    assert cli.json("policy", "show")["policy"]["name"] == "max-min"
    assert "max-min gives way to tiresias-l" in cli("policy", "set", "mine.yaml").stdout
    shown = cli.json("policy", "show")
    assert shown["policy"]["parameters"]["thresholds_gpu_s"] == [60.0]
    assert (shown["placement"]["name"], shown["packing"], shown["at_run_time"]) == ("buddy", "none", True)
    assert shown["source"] == str(cli.cwd / "mine.yaml")
    cli("policy", "set", "--packing", "network")
    shown = cli.json("policy", "show")
    assert (shown["policy"]["name"], shown["packing"], shown["placement"]["name"]) == ("tiresias-l", "network", "buddy")
    for words in ("thresholds_gpu_s: [60]", "set at run time", "the configuration has max-min"):
        assert words in cli("policy", "show").stdout
    cli("policy", "set", "--from-config")
    assert cli.json("policy", "show")["policy"]["name"] == "max-min"
    told = [event["text"] for event in cli.json("events")["events"] if event["kind"] == "policy"]
    assert [text.split(" ")[0] for text in told] == ["max-min", "tiresias-l", "tiresias-l"]
    cli("cancel", job)


@pytest.mark.cluster
def test_quotas_are_shown_as_soon_as_a_policy_file_sets_some(cli: Cli) -> None:
    (line,) = cli("quota").stdout.splitlines()
    assert line.startswith("There are no quotas: each user may use all 2 GPUs. Set some: ")
    assert cli.json("quota")["quotas"] == []
    user = os.environ.get("USER") or getpass.getuser()
    (cli.cwd / "quotas.yaml").write_text(f"policy: max-min\nquotas: {{users: {{{user}: {{gpus: 1, jobs: 9}}}}}}\n")
    assert f"quotas: {user}: 1 GPU, 9 jobs\n" in cli("policy", "set", "quotas.yaml").stdout
    assert "quotas" not in cli("policy", "set", "--placement", "buddy").stdout
    job = cli("submit", "--gpus", "2", "--", "sleep", "60").stdout.strip()
    deadline = time.monotonic() + PATIENCE_S
    while not (shown := cli.json("quota")["quotas"][0])["used_gpus"]:
        assert time.monotonic() < deadline, shown
        time.sleep(0.1)
    assert (shown["name"], shown["gpus"], shown["borrowed_gpus"], shown["most_jobs"]) == (user, 1, 1, 9)
    head, row = cli("quota").stdout.splitlines()
    assert head.split() == ["WHO", "GPUS", "MOST", "IN", "USE", "BORROWED", "LENT", "JOBS", "PROMISED"]
    assert row.split() == [user, "1", "-", "2", "1", "-", "1", "of", "9", "-"]
    cli("cancel", job)
    assert f"quotas: {user}: none of its own\n" in cli("policy", "set", "--from-config").stdout


@pytest.mark.cluster
def test_scaling_what_has_not_joined_answers_at_once_and_says_why(cli: Cli) -> None:
    job = cli("submit", "--gpus", "1:2", "--", "sleep", "600").stdout.strip()
    deadline = time.monotonic() + PATIENCE_S
    while cli.json("status", job)["phase"] != "running":
        assert time.monotonic() < deadline
    share = cli.json("status", job)["share_gpus"]
    line = one_line(cli("scale", job, str(3 - share), code=1))
    assert "its command has not called elastic.join(), so it is a fixed gang" in line
    assert cli.json("status", job)["share_gpus"] == share
    cli("cancel", job)


@pytest.mark.cluster
def test_a_dry_run_submits_nothing(cli: Cli) -> None:
    before = len(cli.json("status", "--all")["jobs"])
    done = cli("submit", "--dry-run", "--gpus", "99", "--", "true", code=1)
    assert "true would not be admitted: it needs at least 99 GPUs, and the cluster has" in done.stderr
    spec = cli.json("submit", "--dry-run", "--gpus", "1:4", "--", "sleep", "1")
    assert (spec["gpus"], spec["virtual_workers"], spec["command"]) == ({"min": 1, "max": 4}, 4, ["sleep", "1"])
    shown = cli("submit", "--dry-run", "sleep.yaml").stdout
    (cli.cwd / "shown.yaml").write_text(shown)
    assert cli("submit", "--dry-run", "shown.yaml").stdout == shown, "it is a job file"
    assert len(cli.json("status", "--all")["jobs"]) == before


@pytest.mark.cluster
def test_a_job_that_waits_is_explained_and_what_is_said_to_start_it_starts_it(cli: Cli) -> None:
    first = cli("submit", "--name", "holds", "--gpus", "2", "--", "sleep", "600").stdout.strip()
    while cli.json("status", first)["phase"] != "running":
        time.sleep(0.1)
    waits = cli("submit", "sleep.yaml").stdout.strip()
    found = cli.json("explain", waits)
    assert found["holders"] == [{"job": first, "before_gpus": 2, "after_gpus": 2, "reason": ""}]
    (command,) = [remedy["command"] for remedy in found["remedies"] if remedy["kind"] == "end"]
    assert command == f"elasticctl cancel {first}"
    assert found["starts"]["simulations"] > 0
    assert cli.json("explain", waits, "--no-forecast")["starts"] is None
    assert "  starts  " not in cli("explain", waits, "--no-forecast").stdout
    assert "elasticctl: starts " in cli("submit", "--dry-run", "sleep.yaml").stderr
    told = cli("explain", waits).stdout
    assert "  starts  " in told
    assert f"{waits}: pending for " in told
    assert command in told
    cli(*command.split()[1:])
    while cli.json("status", waits)["phase"] != "running":
        time.sleep(0.1)
    assert f"0 -> 1    {first} was cancelled" in cli("explain", waits).stdout
    then = cli.json("explain", waits, "--at", datetime.datetime.fromtimestamp(found["time_s"]).isoformat())
    assert (then["share_gpus"], then["holders"]) == (0, [{"job": first, "share_gpus": 2}])
    assert then["next"]["share_gpus"] == 1
    assert (
        f"  held by     {first} 2: 2 GPUs"
        in cli("explain", waits, "--at", f"{time.time() - found['time_s']:.1f}s").stdout
    )
    cli("cancel", waits)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("status", "nobody"), "there is no job 'nobody'"),
        (("explain", "nobody"), "there is no job 'nobody'"),
        (("scale", "nobody", "2"), "there is no job 'nobody'"),
        (("cancel", "nobody"), "there is no job 'nobody'"),
        (("logs", "nobody"), "there is no job 'nobody'"),
        (("wait", "nobody"), "there is no job 'nobody'"),
        (("policy", "set", "--placement", "tight"), "there is no placement 'tight'; known are fewest-servers, buddy"),
    ],
)
def test_what_a_cluster_does_not_know_is_refused_in_one_sentence(
    cli: Cli, arguments: tuple[str, ...], words: str
) -> None:
    assert words in one_line(cli(*arguments, code=2))


@pytest.mark.cluster
@pytest.mark.parametrize("command", [("events", "-f"), ("status", "-w")])
def test_what_goes_on_for_ever_ends_quietly_on_ctrl_c(cli: Cli, command: tuple[str, ...]) -> None:
    process = subprocess.Popen(
        [ELASTICCTL, "--dir", str(cli.directory), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # children of a background job ignore SIGINT
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_a_report_tells_who_has_had_the_gpus_and_outlives_the_job(cli: Cli) -> None:
    job = cli("submit", "--name", "reported", "--gpus", "1", "--", "sleep", "60").stdout.strip()
    deadline = time.monotonic() + PATIENCE_S
    while not cli.json("report", "--job", job)["rows"][0]["held_gpu_s"]:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    cli("cancel", job)
    (row,) = cli.json("report", "--job", job)["rows"]
    columns = ("used_gpu_s", "idle_gpu_s", "paused_gpu_s", "lost_gpu_s")
    assert sum(row["gpu_seconds"][name] for name in columns) == pytest.approx(row["held_gpu_s"])
    assert job in [row["job"] for row in cli.json("report", "--by", "job")["rows"]]
    everyone = cli.json("report")["rows"]
    today = cli.json("report", "--by", "day", "--since", "1d")["rows"]
    assert sum(row["held_gpu_s"] for row in everyone) >= row["held_gpu_s"]
    assert sum(row["held_gpu_s"] for row in today) >= row["held_gpu_s"]
    head, *lines = cli("report", "--by", "job", "--csv").stdout.splitlines()
    assert head == "user,day,job,phase,used_gpu_s,idle_gpu_s,paused_gpu_s,lost_gpu_s,held_gpu_s"
    assert any(line.split(",")[2] == job for line in lines)
    assert "GPU time" in cli("status", job).stdout
    shown = cli("report", "--by", "job")
    assert job in shown.stdout
    assert "(UTC)" in shown.stderr


@pytest.mark.cluster
def test_status_loads_nothing_that_it_does_not_need(cli: Cli) -> None:
    heavy = {"torch", "numpy", "rich", "yaml", "asyncio", "pydantic", "elasticd.ctl.local", "elasticd.ctl.simulate"}
    program = (
        f"import sys; sys.argv[1:] = ['--dir', {str(cli.directory)!r}, 'status']\n"
        "from elasticd.ctl.main import main\n"
        f"try: main()\nfinally: print(*{heavy!r} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.split() == []


def completed_in_time(cli: Cli, line: str, expected: list[str]) -> None:
    """Completion has a short time limit and then returns nothing, so on a loaded machine the Tab is repeated."""
    deadline = time.monotonic() + PATIENCE_S
    while (offered := completed(cli, line)) != expected:
        assert offered == [] or expected == [], offered
        assert time.monotonic() < deadline, line


@pytest.mark.cluster
def test_a_shell_completes_jobs_servers_and_policies_of_the_running_cluster(cli: Cli) -> None:
    job = cli("submit", "--name", "to-complete", "--", "sleep", "60").stdout.strip()
    for command in ("scale", "cancel", "wait", "status", "logs", "events", "profile"):
        completed_in_time(cli, f"elasticctl {command} to-", [job])
    completed_in_time(cli, "elasticctl servers remove loc", ["local-1"])
    completed_in_time(cli, "elasticctl drain loc", ["local-1"])
    cli("cancel", job)
    completed_in_time(cli, "elasticctl logs to-", [job])
    completed_in_time(cli, f"elasticctl --dir {cli.directory} logs to-", [job])
    assert completed(cli, "elasticctl scale to-") == [], "it is over"
    assert {"status", "scale"} <= {*completed(cli, "elasticctl s")}


@pytest.mark.cluster
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_like_empty_ones(cli: Cli, closed: str) -> None:
    """As a daemon or a cron job may leave them."""
    for words in ("status", "cancel --all", "exec nosuch -- cat"):
        command = f"'{ELASTICCTL}' --dir '{cli.directory}' {words} {closed}"
        done = subprocess.run(["sh", "-c", command], cwd=cli.cwd, capture_output=True, text=True, timeout=PATIENCE_S)
        assert "Traceback" not in done.stderr + done.stdout
        assert done.returncode in (0, 1, 2)
        if "2>" in closed:
            assert "elasticctl:" not in done.stdout + done.stderr, "a remark is no answer"


@pytest.mark.cluster
def test_status_shows_arrays_and_patterns_also_when_they_are_over(cli: Cli) -> None:
    cli("submit", "--array", "0-1", "--name", "swept", "--wait", "--", "true")
    assert "is an array of 2 jobs: name one of swept-0-" in one_line(cli("status", "swept", code=2))
    for pattern in ("swept", "swept-*", "swept-[01]-*"):
        found = cli.json("status", pattern, "--all")["jobs"]
        assert [view["spec"]["name"] for view in found] == ["swept-0", "swept-1"]
        assert [line.split()[2] for line in cli("status", pattern, "--all").stdout.splitlines()[1:]] == ["finished"] * 2
    assert "no job matches 'nosuch-*'" in one_line(cli("status", "nosuch-*", "--all", code=2))
    assert "no unfinished job matches 'swept-*'" in one_line(cli("status", "swept-*", code=2))
