"""Jobs of other accounts, and attacks of such a job on the agent, which is root, and on other accounts' jobs."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from elasticd.agent import privileges, shim
from elasticd.agent.cgroups import Limits
from elasticd.agent.disk import Failed, open_to_pass
from elasticd.agent.events import ProcessExited, ProcessFailed, StopSignal
from elasticd.protocol.messages import ReadLog
from elasticd.protocol.model import Fault
from elasticd.protocol.snapshots import File, pack

from .accounts_stories import ALICE, BOB, Agent, as_account, only_root, public_directory

pytestmark = only_root


def runs(pid: int) -> bool:
    return shim.start_ticks(pid) is not None


# ---------------------------------------------------------------------------------------------- identity of a worker


def test_a_worker_is_its_account_with_no_way_back(agent: Agent) -> None:
    shown = agent.run(ALICE, "sh", "-c", "id -u; id -g; id -G; umask; ulimit -c; pwd; cat /proc/self/status; env")
    lines = shown.splitlines()
    assert lines[:3] == ["65534", "65534", "65534"]
    assert lines[3:6] == ["0022", "0", "/"]
    assert "NoNewPrivs:\t1" in lines
    assert {line for line in lines if line.startswith(("CapPrm", "CapEff", "CapAmb", "CapInh"))} == {
        f"{name}:\t0000000000000000" for name in ("CapPrm", "CapEff", "CapAmb", "CapInh")
    }
    assert f"USER={ALICE}" in lines
    assert "HOME=/nonexistent" in lines
    assert "Uid:\t65534\t65534\t65534\t65534" in lines


def test_its_shim_is_the_account_too_and_has_none_of_its_variables(agent: Agent) -> None:
    worker = agent.start(ALICE, "sleep", "60", env={"LD_LIBRARY_PATH": "/evil"})
    seen = agent.seen(ALICE, worker)
    for pid in (seen["shim_pid"], seen["pid"]):
        assert "Uid:\t65534\t65534\t65534\t65534" in Path(f"/proc/{pid}/status").read_text()
    assert b"evil" not in Path(f"/proc/{seen['shim_pid']}/environ").read_bytes()
    assert b"evil" in Path(f"/proc/{seen['pid']}/environ").read_bytes()
    assert Path(f"/proc/{seen['pid']}/oom_score_adj").read_text().strip() == "500"


KEYRING = """
import ctypes, sys
library = ctypes.CDLL(None, use_errno=True)
KEYCTL_SEARCH, SESSION = 10, -3
print(library.syscall(ctypes.c_long(%d), KEYCTL_SEARCH, SESSION, b"user", b"elasticctl-test", 0))
"""


@pytest.mark.skipif(os.uname().machine not in privileges.KEYCTL, reason="another processor")
def test_it_has_a_keyring_of_its_own_and_finds_nothing_in_that_of_the_agents_session(agent: Agent) -> None:
    library, keyctl = ctypes.CDLL(None, use_errno=True), privileges.KEYCTL[os.uname().machine]
    add_key, session = {250: 248, 219: 217}[keyctl], -3
    key = library.syscall(ctypes.c_long(add_key), b"user", b"elasticctl-test", b"secret", 6, session)
    if key < 0:
        pytest.skip("no keyrings here")
    try:
        assert agent.run(ALICE, "/usr/bin/python3", "-c", KEYRING % keyctl) == "-1"
    finally:
        library.syscall(ctypes.c_long(keyctl), 9, key, session)  # KEYCTL_UNLINK


def test_its_files_are_its_own_and_closed_to_others(agent: Agent) -> None:
    agent.run(
        ALICE, "sh", "-c", 'echo secret; echo state > "$ELASTICD_CHECKPOINT_DIRECTORY/step"; echo x > "$TMPDIR/x"'
    )
    log = agent.output(ALICE) / "digits-1.0.log"
    assert (log.stat().st_uid, log.stat().st_mode & 0o777) == (65534, 0o600)
    checkpoint = agent.directory / "checkpoints" / ALICE / "digits-1.ab" / "step"
    assert checkpoint.stat().st_uid == 65534
    for path in (log, checkpoint):
        assert "Permission denied" in as_account(BOB, "cat", str(path)).stderr


def test_the_copy_of_its_snapshot_is_its_own_and_closed_to_others(agent: Agent) -> None:
    snapshot, data = pack([File("lib/a.py", False, b"secret"), File("run.sh", True, b"#!/bin/sh\ncat lib/a.py; id -u")])
    order = agent.order(ALICE, "./run.sh", snapshot=snapshot)
    assert agent.disk.snapshot_of(order) is None
    copy = agent.disk.unpack(order, data)
    assert isinstance(copy, Path), copy
    assert agent.disk.snapshot_of(order) == copy
    assert {path.stat().st_uid for path in (copy, copy / "lib", copy / "lib" / "a.py")} == {65534}
    assert "Permission denied" in as_account(BOB, "cat", str(copy / "lib" / "a.py")).stderr
    assert agent.run(ALICE, "./run.sh", workdir=str(copy)) == "secret65534"
    agent.disk.remove_snapshot(order.job, order.uid)
    assert not copy.exists()


def test_links_in_place_of_the_copy_of_its_snapshot_lead_only_where_the_account_may_write(agent: Agent) -> None:
    snapshot, data = pack([File("a.py", False, b"text")])
    order = agent.order(ALICE, "true", snapshot=snapshot)
    agent.run(ALICE, "true")
    output = agent.output(ALICE)
    output.rename(output.with_name("moved"))
    output.symlink_to("/etc")
    failed = agent.disk.unpack(order, data)
    assert isinstance(failed, Failed)
    assert not list(Path("/etc").glob("code-*"))


@pytest.mark.parametrize(
    ("account", "reason"),
    [
        ("", "no job runs as root here"),
        ("root", "no job runs as root"),
        ("no-such-one", "has no account 'no-such-one'"),
        ("../x", "has no account '../x'"),
    ],
)
def test_root_and_unknown_accounts_are_refused(agent: Agent, account: str, reason: str) -> None:
    end = agent.end(agent.start(account, "true"))
    assert isinstance(end, ProcessFailed)
    assert (reason in end.reason, end.fault) == (True, Fault.SERVER)


def test_root_may_run_jobs_where_the_operator_says_so(place: Path) -> None:
    agent = Agent(place, root_jobs=True)
    try:
        worker = agent.start("", "id", "-u")
        assert agent.end(worker).exit_code == 0
        assert (agent.state / "jobs" / "digits-1.ab" / "digits-1.0.log").read_text().endswith("o 0\n")
    finally:
        agent.close()


def test_an_interpreter_that_the_account_cannot_execute_is_named_with_what_is_closed(agent: Agent, place: Path) -> None:
    (place / "closed").mkdir(mode=0o700)
    program = place / "closed" / "python"
    shutil.copy("/bin/true", program)
    end = agent.end(agent.start(ALICE, str(program), "x.py"))
    assert end.reason == f"cannot start {program}: Permission denied: {place}/closed is closed to this account"
    (place / "python").symlink_to(program)
    end = agent.end(agent.start(ALICE, "python", "x.py", job="digits-2", env={"PATH": str(place)}))
    assert end.reason == f"cannot start python: Permission denied: {place}/closed is closed to this account"


# -------------------------------------------------------------------------------------------------- attacks: files


def test_it_reads_nothing_of_roots(agent: Agent) -> None:
    end = agent.end(worker := agent.start(ALICE, "cat", "/etc/shadow"))
    assert end.exit_code == 1
    assert "Permission denied" in agent.log(worker)
    assert "Permission denied" in agent.log(agent_ran(agent, "ls", str(agent.state), job="digits-2"))
    assert "Permission denied" in agent.log(agent_ran(agent, "cat", f"{agent.state}/identity.json", job="digits-3"))


def agent_ran(agent: Agent, *command: str, job: str, account: str = ALICE) -> str:
    (agent.state / "identity.json").touch(mode=0o600)
    worker = agent.start(account, *command, job=job)
    agent.end(worker)
    return worker


@pytest.mark.parametrize("what", ["log", "exit", "json"])
def test_links_in_place_of_its_files_lead_nowhere(agent: Agent, what: str) -> None:
    """The agent, which is root, reads all three files; the directory belongs to the account."""
    secret = agent.directory / "secret"
    secret.write_text('1.0 o root\n{"exit_code": 0, "reason": "of root"}')
    secret.chmod(0o600)
    attack = f"cd {agent.output(ALICE)}; rm -f *.{what}; ln -s {secret} digits-1.0.{what}; echo done; exit 3"
    worker = agent.start(ALICE, "sh", "-c", attack)
    end = agent.end(worker)
    assert "root" not in end.reason
    assert b"root" not in agent.piece(worker).data
    assert secret.read_text().startswith("1.0 o root")


def test_a_pipe_in_place_of_its_log_or_its_end_holds_nobody_up(agent: Agent) -> None:
    attack = f"cd {agent.output(ALICE)}; rm -f *.log *.exit*; mkfifo digits-1.0.log digits-1.0.exit; kill -9 $PPID"
    worker = agent.start(ALICE, "sh", "-c", attack)
    end = agent.end(worker)
    assert end.reason == "the process that kept it was killed"
    assert "no plain file" in agent.piece(worker).error


def test_what_it_claims_of_its_end_blames_no_server_and_floods_no_terminal(agent: Agent) -> None:
    claim = json.dumps({"exit_code": 1 << 70, "reason": "\x1b[2J" + "x" * 5000, "fault": "server"})
    attack = f"cd {agent.output(ALICE)}; kill -STOP $PPID; printf '%s' '{claim}' > digits-1.0.exit; kill -9 $PPID"
    end = agent.end(agent.start(ALICE, "sh", "-c", attack))
    assert end.fault in (None, Fault.KILLED)
    assert end.exit_code is None
    assert len(end.reason) <= shim.MAX_REASON_CHARACTERS
    assert "\x1b" not in end.reason


@pytest.mark.parametrize("file", ["exit", "json"])
@pytest.mark.parametrize("text", ["depth", "bytes"])
def test_a_record_that_cannot_be_read_does_not_end_the_agent(agent: Agent, place: Path, file: str, text: str) -> None:
    written = {
        "depth": b'{"more": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        "bytes": b'{"reason": "\xff", "boot_id": "\xff"}',
    }
    (place / "written").write_bytes(written[text])
    (place / "written").chmod(0o644)
    attack = f"cd {agent.output(ALICE)}; kill -STOP $PPID; cat {place}/written > digits-1.0.{file}; kill -9 $PPID"
    assert isinstance(agent.end(agent.start(ALICE, "sh", "-c", attack)), ProcessExited)


def test_a_checkpoint_directory_that_another_account_made_first_is_refused(agent: Agent) -> None:
    checkpoints = agent.directory / "checkpoints"
    checkpoints.mkdir()
    checkpoints.chmod(0o1777)
    assert as_account(BOB, "mkdir", "-m", "777", f"{checkpoints}/{ALICE}").returncode == 0
    end = agent.end(agent.start(ALICE, "true"))
    assert end.reason == f"cannot be started: {checkpoints}/{ALICE} is not a directory of account {ALICE}"
    (checkpoints / ALICE).rmdir()
    assert as_account(BOB, "ln", "-s", "/etc", f"{checkpoints}/{ALICE}").returncode == 0
    end = agent.end(agent.start(ALICE, "true", job="digits-2"))
    assert "is not a directory" in end.reason
    assert not Path("/etc/digits-2.ab").exists()


def test_its_checkpoints_as_a_link_are_followed_only_with_its_own_rights(agent: Agent) -> None:
    agent.run(ALICE, "true")
    own = agent.directory / "checkpoints" / ALICE
    shutil.rmtree(own / "digits-1.ab")
    assert as_account(ALICE, "ln", "-s", "/root/made-by-the-agent", f"{own}/digits-2.ab").returncode == 0
    agent.end(agent.start(ALICE, "true", job="digits-2"))
    assert not Path("/root/made-by-the-agent").exists()


def test_a_directory_of_somebody_elses_is_no_workdir(agent: Agent, place: Path) -> None:
    (place / "closed").mkdir(mode=0o700)
    end = agent.end(agent.start(ALICE, "true", workdir=str(place / "closed")))
    assert end.reason.startswith(f"cannot start true (in {place}/closed): Permission denied")


def test_what_it_leaves_in_its_scratch_is_removed_and_nothing_that_links_lead_to(
    agent: Agent, open_to_all: Path
) -> None:
    (open_to_all / "precious").write_text("x")
    (open_to_all / "precious").chmod(0o666)
    attack = f"cd $TMPDIR; mkdir -p a/b; ln -s {open_to_all} a/b/link; chmod 0 a/b a; pwd"
    scratch = Path(agent.run(ALICE, "sh", "-c", attack))
    agent.until(lambda: not scratch.exists())
    assert (open_to_all / "precious").read_text() == "x"


# ---------------------------------------------------------------------------------------------- attacks: processes


def test_it_cannot_signal_the_agent_or_anothers_worker(agent: Agent) -> None:
    other = agent.start(BOB, "sleep", "60", job="other-2")
    seen = agent.seen(BOB, other)
    pids = [seen["pid"], seen["shim_pid"], os.getpid()]
    script = "; ".join(f"kill -9 {pid}; echo $?" for pid in pids)
    assert [line for line in agent.run(ALICE, "sh", "-c", script).splitlines() if line.isdigit()] == ["1", "1", "1"]
    assert all(map(runs, pids))


def test_daemons_that_it_leaves_behind_end_with_it(agent: Agent, open_to_all: Path) -> None:
    script = (
        f"for i in 1 2 3; do setsid sh -c 'setsid sleep 300 & echo $! >> {open_to_all}/pids' & done; wait; sleep 0.3"
    )
    agent.run(ALICE, "sh", "-c", script)
    pids = [int(word) for word in (open_to_all / "pids").read_text().split()]
    assert len(pids) == 3
    assert not any(map(runs, pids))  # at the report of the end, not some time later


def test_one_that_kills_its_shim_first_leaves_nothing_either(agent: Agent, open_to_all: Path) -> None:
    script = f"setsid sh -c 'setsid sleep 300 & echo $! > {open_to_all}/pid'; kill -9 $PPID; sleep 300"
    end = agent.end(agent.start(ALICE, "sh", "-c", script))
    assert end.reason == "the process that kept it was killed"
    assert not runs(int((open_to_all / "pid").read_text()))


FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.mark.skipif(not (FREEZER / "cgroup.procs").exists(), reason="only a freezer of version 1 keeps what is killed")
def test_a_gpu_is_not_free_while_something_that_the_kernel_cannot_end_is_left(agent: Agent, open_to_all: Path) -> None:
    """A frozen process does not end when it is killed, like one that hangs in a driver."""
    frozen = FREEZER / agent.directory.name
    frozen.mkdir()
    worker = agent.start(ALICE, "sh", "-c", f"setsid sleep 300 & echo $! > {open_to_all}/pid; sleep 300")
    agent.until(lambda: (open_to_all / "pid").exists() and (open_to_all / "pid").read_text())
    left = int((open_to_all / "pid").read_text())
    try:
        (frozen / "cgroup.procs").write_text(str(left))
        (frozen / "freezer.state").write_text("FROZEN")
        agent.until(lambda: (frozen / "freezer.state").read_text().strip() == "FROZEN")
        watched = agent.processes._watched[worker]
        os.kill(watched.pid, signal.SIGKILL)
        agent.until(lambda: worker in agent.processes._left)
        assert not any(isinstance(told, ProcessExited) for told in agent.told)
        assert agent.processes.knows(watched.record.job, "ab")
        agent.close(kill=False)
        later = Agent(agent.directory)
        try:
            found = later.processes.adopt()
            assert [each.worker for each in found.running] == [worker]
            (frozen / "freezer.state").write_text("THAWED")
            assert later.end(worker).reason == "the process that kept it was killed"
            assert not runs(left)
        finally:
            later.close()
    finally:
        (frozen / "freezer.state").write_text("THAWED")
        while runs(left):
            time.sleep(0.01)
        frozen.rmdir()


LISTS = "ls -A /tmp /dev/shm | tr '\\n' ' '; echo"


def test_workers_of_a_job_share_its_own_tmp_and_shared_memory_which_go_with_it() -> None:
    with public_directory("/var/tmp") as place:
        agent = Agent(place, rooms=True)
        assert agent.rooms is not None
        try:
            first = agent.start(ALICE, "sh", "-c", "touch /tmp/mine /dev/shm/mine; exec sleep 300")
            agent.until(lambda: list((place / "rooms").glob("*/mine")))
            seen = agent.run(ALICE, "sh", "-c", LISTS, number=1)
            assert seen.split() == ["/dev/shm:", "mine", "/tmp:", "mine"], "another worker of the job"
            assert "mine" not in agent.run(BOB, "sh", "-c", LISTS, job="other-2")
            assert not [path for path in ("/tmp/mine", "/dev/shm/mine") if Path(path).exists()]
            room = agent.processes._watched[first].record.room
            unseen = agent.end(agent.start(ALICE, "sh", "-c", "true", workdir="/tmp/work", job="other-3"))
            assert unseen.reason.startswith("/tmp/work is not seen by the job, as jobs have a /tmp")
            assert unseen.fault is Fault.SCRIPT
            agent.close(kill=False)
            agent = Agent(place, rooms=True)
            agent.processes.adopt()
            seen = agent.run(ALICE, "sh", "-c", LISTS, number=2)
            assert seen.split() == ["/dev/shm:", "mine", "/tmp:", "mine"], "after a restart of the agent, too"
            agent.processes.signal(first, StopSignal.KILL)
            agent.end(first)
            agent.until(lambda: agent.rooms is not None and agent.rooms.others(frozenset()) == [])
            agent.run(ALICE, "sh", "-c", "true", number=3)
            assert agent.rooms is not None
            assert room not in dict(agent.rooms.others(frozenset()))
        finally:
            agent.close()


def test_a_forked_worker_is_in_its_jobs_room_too(python: tuple[str, dict[str, str]]) -> None:
    with public_directory("/var/tmp") as place:
        agent = Agent(place, rooms=True, warm=True)
        try:
            script = place / "lists.py"
            script.write_text("import os; print(sorted(os.listdir('/tmp')), flush=True)\n")
            script.chmod(0o644)
            interpreter, env = python
            keeper = agent.start(ALICE, "sh", "-c", "touch /tmp/mine; exec sleep 300")
            agent.until(lambda: list((place / "rooms").glob("*/mine")))
            assert "'mine'" in agent.run(ALICE, interpreter, str(script), number=1, env=env)
            assert agent.warm is not None
            agent.until(lambda: agent.warm and any(each.watched for each in agent.warm._processes.values()))
            (key,) = agent.warm._processes
            assert key.room == agent.processes._watched[keeper].record.room
            worker = agent.start(ALICE, interpreter, str(script), number=2, env=env)
            agent.until(lambda: worker in agent.processes._watched or any(t.worker == worker for t in agent.told))
            assert agent.processes._watched[worker].child is None, "it is forked"
            agent.end(worker)
            assert "'mine'" in agent.log(worker)
        finally:
            agent.close()


def test_a_fork_bomb_stays_in_its_cgroup_and_is_ended_as_a_whole(place: Path) -> None:
    agent = Agent(place, limits=Limits(tasks=40))
    try:
        worker = agent.start(ALICE, "sh", "-c", "f() { f | f & f; }; f")
        session = str(agent.seen(ALICE, worker)["pid"])  # of the fork bomb: other tests use this account, too
        agent.turn_for(0.5)  # the fork bomb may be over by then: its first shell ends where it cannot fork
        agent.processes.signal(worker, StopSignal.KILL)
        agent.end(worker)
        left = as_account(ALICE, "pgrep", "-s", session).stdout.split()
        assert not [pid for pid in left if runs(int(pid))]
    finally:
        agent.close()


def test_memory_that_runs_out_ends_the_worker_with_that_reason_and_not_the_agent(place: Path) -> None:
    agent = Agent(place, limits=Limits(memory_bytes=64 << 20, tasks=100))
    try:
        end = agent.end(agent.start(ALICE, "sh", "-c", "x=$(head -c 300000000 /dev/zero | tr '\\0' x)"))
        assert end.reason.startswith("out of memory (a worker here may use 0.1 GiB): ")
        assert end.fault is Fault.KILLED
    finally:
        agent.close()


@pytest.mark.parametrize("forged", ["of another", "init", "of the agent", "numbers that none has"])
def test_forged_process_numbers_reach_no_process_of_anybody_else(agent: Agent, forged: str) -> None:
    other = agent.start(BOB, "sleep", "60", job="other-2")
    victim = agent.seen(BOB, other)
    named = {"of another": victim["pid"], "init": 1, "of the agent": os.getpid(), "numbers that none has": -1}[forged]
    ticks = shim.start_ticks(named) if named > 0 else 0
    claim = {
        "shim_pid": named,
        "shim_start_ticks": ticks,
        "pid": named,
        "start_ticks": ticks,
        "boot_id": shim.boot_id(),
    }
    script = f"cd {agent.output(ALICE)}; printf '%s' '{json.dumps(claim)}' > x; mv x digits-1.0.json; echo up; sleep 60"
    worker = agent.start(ALICE, "sh", "-c", f"sleep 0.3; {script}")
    agent.until(lambda: "up" in agent.piece(worker, growing=True).data.decode())
    kept = agent.processes._watched[worker].pid
    agent.close(kill=False)  # a restarted agent reads the records from disk
    later = Agent(agent.directory)
    try:
        found = later.processes.adopt()
        assert {running.worker for running in found.running} == {worker, other}, "the agent has noted who keeps them"
        assert not found.exited
        assert later.processes._watched[worker].pid == kept
        later.processes.signal(worker, StopSignal.KILL)
        assert later.end(worker).fault is Fault.KILLED
        assert runs(victim["pid"])
        assert runs(victim["shim_pid"])
        later.turn_for(0.3)
        assert runs(victim["pid"])
    finally:
        later.close()


SPOILED = {
    "another boot": {"boot_id": "another"},
    "no process": {"shim_pid": None, "pid": None},
    "one that has ended": {"shim_pid": 2**22 + 1, "shim_start_ticks": 1, "pid": 2**22 + 1, "start_ticks": 1},
    "all of that": {"boot_id": "another", "shim_pid": 2**22 + 1, "shim_start_ticks": 1, "pid": None},
}


@pytest.mark.parametrize("spoiled", SPOILED, ids=SPOILED)
@pytest.mark.parametrize("seen", [True, False], ids=["an agent that has seen it all", "a later agent"])
def test_one_that_spoils_its_record_and_kills_its_shim_blames_no_server(
    agent: Agent, place: Path, spoiled: str, seen: bool
) -> None:
    claim = json.dumps({"boot_id": shim.boot_id()} | SPOILED[spoiled])
    spoil = f"cd {agent.output(ALICE)}; printf '%s' '{claim}' > x; mv x digits-1.0.json; echo up"
    worker = agent.start(ALICE, "sh", "-c", f"sleep 0.3; {spoil}; sleep 1; kill -9 $PPID; sleep 60")
    later = agent
    if not seen:
        agent.until(lambda: "up" in agent.piece(worker, growing=True).data.decode())
        agent.close(kill=False)
        later = Agent(place)
        found = later.processes.adopt()
        assert [running.worker for running in found.running] == [worker], "what it writes is not believed"
    try:
        end = later.end(worker)
        assert (end.reason, end.fault) == ("the process that kept it was killed", Fault.KILLED)
    finally:
        later.close()


def test_one_that_has_ended_while_no_agent_ran_blames_no_server_either(agent: Agent, place: Path) -> None:
    spoil = f"cd {agent.output(ALICE)}; rm -f *; mkdir digits-1.0.json digits-1.0.exit digits-1.0.exit.new"
    worker = agent.start(ALICE, "sh", "-c", f"sleep 0.5; {spoil}; kill -9 $PPID")
    agent.until(lambda: agent.told)
    kept = agent.processes._watched[worker].pid
    agent.close(kill=False)
    while runs(kept):
        time.sleep(0.02)
    later = Agent(place)
    try:
        (end,) = later.processes.adopt().exited
        assert (end.reason, end.fault) == ("the process that kept it was killed", Fault.KILLED)
    finally:
        later.close()


@pytest.mark.parametrize(
    "spoil",
    [
        "mkdir digits-1.1.log",
        "mkdir digits-1.1.json",
        "mkdir digits-1.1.exit",
        "mkdir digits-1.1.exit.new",
        "cd ..; mv digits-1.ab x; touch digits-1.ab; ln -s x y",
        "cd ..; mv digits-1.ab x; ln -s digits-1.ab digits-1.ab",
        "rmdir $ELASTICD_CHECKPOINT_DIRECTORY; touch $ELASTICD_CHECKPOINT_DIRECTORY",
        "chmod 0 $ELASTICD_CHECKPOINT_DIRECTORY/..; rmdir $ELASTICD_CHECKPOINT_DIRECTORY",
        "chmod 0 .",
    ],
)
def test_what_is_spoiled_for_the_next_worker_of_a_job_blames_no_server(agent: Agent, spoil: str) -> None:
    """One worker that could not be started would keep all jobs away from its server for a while."""
    agent.end(agent.start(ALICE, "sh", "-c", f"cd {agent.output(ALICE)}; {spoil}; kill -9 $PPID"))
    end = agent.end(agent.start(ALICE, "sleep", "0.1", number=1))
    assert end.fault is not Fault.SERVER, end


def test_a_shim_that_breaks_before_it_is_its_account_is_the_servers_fault(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    end = agent.end(agent.start(ALICE, "true"))
    assert (end.reason, end.fault) == ("the process that keeps it could not begin (exit code 1)", Fault.SERVER)


def test_an_agent_that_is_started_anew_finds_the_workers_of_all_accounts(agent: Agent) -> None:
    kept = agent.start(ALICE, "sh", "-c", "trap 'echo late; exit 4' TERM; while :; do sleep 0.05; done")
    over = agent.start(BOB, "sh", "-c", "exit 3", job="other-2")
    process = agent.seen(ALICE, kept)["pid"]
    agent.end(over)
    agent.close(kill=False)
    later = Agent(agent.directory)
    try:
        found = later.processes.adopt()
        assert [running.worker for running in found.running] == [kept]
        assert [(end.worker, end.exit_code) for end in found.exited] == [(over, 3)]
        os.kill(process, signal.SIGTERM)
        end = later.end(kept)
        assert (end.exit_code, end.reason) == (4, "exit code 4")
        assert later.log(kept) == "late"
    finally:
        later.close()


def test_the_first_workers_of_several_accounts_may_begin_at_once(tmp_path: Path) -> None:
    """They race to make the directory above those of all accounts."""
    with ThreadPoolExecutor(4) as threads:
        for number in range(200):
            begun = threading.Barrier(4)

            def make(path: Path = tmp_path / str(number) / "above", begun: threading.Barrier = begun) -> None:
                begun.wait()
                open_to_pass(path)

            for made in [threads.submit(make) for _ in range(4)]:
                made.result()
            assert stat.S_IMODE((tmp_path / str(number) / "above").stat().st_mode) == 0o711


def test_records_are_forgotten_and_the_log_stays(agent: Agent) -> None:
    agent.run(ALICE, "echo", "hello")
    worker = next(told.worker for told in agent.told)
    agent.processes.forget("digits-1", worker, "ab")  # type: ignore[arg-type]
    # Another process removes the records one by one during this read: the end must be that of both directories.
    agent.until(
        lambda: (
            sorted(path.name for path in (agent.state / "jobs" / "digits-1.ab").iterdir()) == ["account"]
            and sorted(path.name for path in agent.output(ALICE).iterdir()) == [f"{worker}.log"]
        )
    )
    assert agent.log(worker) == "hello"


# --------------------------------------------------------------------------------------------------------- leftovers


def test_shared_memory_that_it_leaves_behind_goes_and_what_others_use_stays(agent: Agent, place: Path) -> None:
    in_use = Path("/dev/shm/psm_in_use_by_a_test")
    script = "echo x > /dev/shm/torch_left_by_a_test; echo x > /dev/shm/psm_in_use_by_a_test; echo x > /dev/shm/data_of_a_test"
    worker = agent.start(ALICE, "sh", "-c", f"{script}; sleep 0.5")
    agent.until(lambda: in_use.exists())
    user = subprocess.Popen(["sleep", "60"], stdin=in_use.open())
    try:
        agent.end(worker)
        agent.until(lambda: not Path("/dev/shm/torch_left_by_a_test").exists())
        assert in_use.exists()
        assert Path("/dev/shm/data_of_a_test").exists()
    finally:
        user.kill()
        user.wait()
        for name in ("psm_in_use_by_a_test", "data_of_a_test"):
            Path(f"/dev/shm/{name}").unlink(missing_ok=True)


def test_what_an_agent_that_was_killed_has_left_is_removed_by_the_next(agent: Agent) -> None:
    worker = agent.start(ALICE, "sleep", "60")
    seen = agent.seen(ALICE, worker)
    record = agent.processes._watched[worker].record
    agent.close(kill=False)
    os.kill(seen["shim_pid"], signal.SIGKILL)
    later = Agent(agent.directory)
    try:
        later.processes.adopt()
        later.until(lambda: not any(Path(path).exists() for path in record.cgroups))
        later.until(lambda: not (agent.directory / "scratch" / record.scratch).exists())
    finally:
        later.close()


def test_the_log_of_a_worker_that_writes_without_end_is_bounded_and_says_what_is_missing(agent: Agent) -> None:
    worker = agent.start(
        ALICE, "sh", "-c", "i=0; while [ $i -lt 60000 ]; do echo line $i of very many lines; i=$((i+1)); done"
    )
    agent.end(worker)
    files = sorted(agent.output(ALICE).glob("*.log*"))
    assert 2 < len(files) <= shim.LOG_FILES
    assert sum(path.stat().st_size for path in files) <= 1 << 20
    data, offset = b"", 0
    while True:
        request = ReadLog(request="r", job="digits-1", worker=worker, offset=offset, limit=1 << 20, uid="ab")  # type: ignore[arg-type]
        piece = agent.disk.read_log(request, False, agent.disk.writer(request))
        data, offset = data + piece.data, piece.next_offset
        if piece.end:
            break
    lines = data.decode().splitlines()
    assert lines[0].endswith("o line 0 of very many lines")
    assert lines[-1].endswith("o line 59999 of very many lines")
    assert sum("of this log were not kept" in line for line in lines) == 1
