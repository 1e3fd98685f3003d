"""Attacks of jobs of other accounts by libraries, interpreters and warm processes on the agent, which is root."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from elasticd.agent import accounts, shim
from elasticd.agent.events import ProcessExited, ProcessStarted, StopSignal
from elasticd.agent.forkserver import client
from elasticd.runtime.transport import SO_PASSRIGHTS

from .accounts_stories import ALICE, BOB, Agent, only_root, uid

pytestmark = only_root


def runs(pid: int) -> bool:
    return shim.start_ticks(pid) is not None


def refuses_descriptors() -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            return probe.getsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS) == 1
        except OSError:
            return False


# ------------------------------------------------------------------------------------ attacks: executables of the agent

PRELOADED = """
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded(void) {
    FILE *file = fopen("%s/loaded", "a");
    if (file) { fprintf(file, "%%d\\n", (int)geteuid()); fclose(file); }
}
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no compiler")
def test_a_library_that_it_wants_preloaded_is_loaded_by_nothing_of_roots(agent: Agent, open_to_all: Path) -> None:
    (open_to_all / "evil.c").write_text(PRELOADED % open_to_all)
    library = open_to_all / "evil.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, open_to_all / "evil.c"], check=True)
    agent.run(ALICE, "true", env={"LD_PRELOAD": str(library), "PYTHONPATH": str(open_to_all), "PYTHONSTARTUP": "x"})
    loaded = (open_to_all / "loaded").read_text().split()
    assert set(loaded) == {"65534"}


@pytest.mark.parametrize("program", ["./python", "sub/../python", "absolute", "python"])
def test_a_hostile_interpreter_is_executed_only_as_its_account_warm_processes_too(place: Path, program: str) -> None:
    agent = Agent(place, warm=True)
    try:
        home = place / "all"
        (home / "sub").mkdir(parents=True)
        (home / "python").write_text(f"#!/bin/sh\nid -u >> {home}/ran\nexec sleep 0.2\n")
        (home / "python").chmod(0o755)
        home.chmod(0o777)
        command = str(home / "python") if program == "absolute" else program
        env = {"PATH": f"{home}:/usr/bin:/bin"}
        for number in range(2):
            agent.end(agent.start(ALICE, command, "train.py", workdir=str(home), env=env, number=number))
        agent.turn_for(0.5)
        ran = (home / "ran").read_text().split()
        assert len(ran) >= 3
        assert set(ran) == {"65534"}
    finally:
        agent.close()


LYING = """#!/usr/bin/python3 -IS
import json, os, socket, sys
connection = socket.socket(fileno=int(sys.argv[4]))
connection.send(json.dumps({"executable": EXECUTABLE, "watched": {}}).encode())
while True:
    data, descriptors, _, _ = socket.recv_fds(connection, 1 << 17, 1)
    if not data:
        break
    line = socket.socket(fileno=descriptors[0])
    line.send(b"VICTIM")
    word = line.recv(1)
    open("DIRECTORY/answered", "a").write(repr(word))
"""


@pytest.mark.usefixtures("python")
def test_a_warm_process_that_names_anothers_process_as_its_worker_is_not_believed(place: Path) -> None:
    agent = Agent(place, warm=True)
    try:
        victim = agent.seen(BOB, agent.start(BOB, "sleep", "300", job="other-2"))["pid"]
        home = place / "all"
        home.mkdir()
        home.chmod(0o777)
        python = home / "python"
        lying = (
            LYING.replace("VICTIM", str(victim))
            .replace("DIRECTORY", str(home))
            .replace("EXECUTABLE", repr(str(python)))
        )
        python.write_text(lying)
        python.chmod(0o755)
        agent.start(ALICE, str(python), "train.py", number=0)
        agent.until(lambda: agent.warm and list(agent.warm._processes.values()))
        agent.turn_for(1.0)
        worker = agent.start(ALICE, str(python), "train.py", number=1)
        agent.until(lambda: (home / "answered").exists() and (home / "answered").read_text())
        assert (home / "answered").read_text().startswith("b''")  # it was never ordered to continue
        agent.until(lambda: any(isinstance(t, ProcessStarted) and t.worker == worker for t in agent.told))
        assert agent.processes._watched[worker].pid != victim
        agent.processes.signal(worker, StopSignal.KILL)
        agent.turn_for(0.3)
        assert runs(victim)
    finally:
        agent.close()


def next_number(pid: int) -> None:
    """Make this the next process id. Skips the test where that is not possible."""
    try:
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
    except OSError as error:
        pytest.skip(f"numbers of processes cannot be chosen here: {error.strerror}")


@pytest.mark.parametrize("whose", [BOB, ALICE])
def test_a_process_that_has_the_number_of_a_dead_shim_is_not_taken_for_it(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """Between the check of its identity and its entry into the cgroup, the shim ends, and its process id is reused."""
    agent.start(ALICE, "sleep", "60")
    agent.until(lambda: agent.told)
    (watched,) = agent.processes._watched.values()
    look = accounts.runs_as
    for _ in range(20):  # another process on this machine may take the process id first
        shim_process = subprocess.Popen(["sleep", "60"], user=uid(ALICE), cwd="/")
        descriptor, number = os.pidfd_open(shim_process.pid), shim_process.pid
        others: list[subprocess.Popen[bytes]] = []

        def look_too_early(
            pid: int,
            shim: subprocess.Popen[bytes] = shim_process,
            others: list[subprocess.Popen[bytes]] = others,
        ) -> int | None:
            seen = look(pid)
            if not others:
                shim.kill()
                shim.wait()
                while len(others) < 20 and not any(other.pid == shim.pid for other in others):
                    next_number(shim.pid)
                    others.append(subprocess.Popen(["sleep", "60"], user=uid(whose), cwd="/"))
            return seen

        monkeypatch.setattr(accounts, "runs_as", look_too_early)
        try:
            admitted = agent.disk.admit(watched.record, number, descriptor)
            if not any(other.pid == number for other in others):
                continue
            assert not admitted
            moved = Path(f"/proc/{number}/cgroup").read_text() != Path("/proc/self/cgroup").read_text()
            assert moved == (whose == ALICE), "what is another account's is where it was; what is its own may stay"
            assert runs(number)
            return
        finally:
            os.close(descriptor)
            for other in others:
                other.kill()
                other.wait()
    raise AssertionError("somebody else always has the number")


NONSENSE = """#!/usr/bin/python3 -IS
import os, sys, time
if len(sys.argv) > 4:
    os.write(int(sys.argv[4]), SAID)
print("\\n" * 5000)
time.sleep(0.3)
"""


LINGERING = """#!/usr/bin/python3 -IS
import os, socket, struct, sys, time
here = socket.create_server(("127.0.0.1", 0))
full = socket.create_connection(here.getsockname())
there = here.accept()
full.setblocking(False)
try:
    while True:
        full.send(bytes(1 << 16))
except BlockingIOError:
    pass
full.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 20))
if len(sys.argv) > 4:
    with socket.socket(fileno=int(sys.argv[4])) as connection:
        try:
            socket.send_fds(connection, [b"{}"], [full.fileno()])
        except OSError as error:
            open("DIRECTORY/refused", "w").write(str(error.errno))
    full.close()
time.sleep(1)
os._exit(0)  # one that ends like this waits for nothing
"""


SENDS_LINGERING = """#!/usr/bin/python3 -IS
import json, os, socket, struct, sys, time
if len(sys.argv) < 5:
    time.sleep(60)
full = socket.create_connection(("127.0.0.1", PORT))
full.setblocking(False)
try:
    while True:
        full.send(bytes(1 << 16))
except BlockingIOError:
    pass
full.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, SECONDS))
connection = socket.socket(fileno=int(sys.argv[4]))
line, said = connection, json.dumps({"executable": "DIRECTORY/python", "watched": {}}).encode()
if WHEN != "it reports":
    connection.send(said)
if WHEN == "it is asked for a worker":
    data, descriptors, _, _ = socket.recv_fds(connection, 1 << 17, 1)
    line, said = socket.socket(fileno=descriptors[0]), str(os.getpid()).encode()
while not os.path.exists("DIRECTORY/go"):
    time.sleep(0.01)
socket.send_fds(line, [said], [full.fileno()])
os.close(full.detach())  # not the last one: nobody waits
open("DIRECTORY/sent", "w").close()
time.sleep(60)
"""

TALKATIVE = """#!/usr/bin/python3 -IS
import os, sys, time
if len(sys.argv) > 4:
    for _ in range(100_000):
        os.write(int(sys.argv[4]), b'{"executable": "DIRECTORY/python", "watched": {}}')
"""

LASTS = """#!/usr/bin/python3 -IS
import os, sys, time
if len(sys.argv) > 4:
    os.write(int(sys.argv[4]), b'{"executable": "DIRECTORY/python", "watched": {"/": 1}}')
time.sleep(60)
"""


@pytest.fixture
def home(place: Path) -> Path:
    """The directory of an account's interpreter."""
    path = place / "all"
    path.mkdir()
    path.chmod(0o777)
    return path


def program(path: Path, text: str) -> str:
    path.write_text(text.replace("DIRECTORY", str(path.parent)))
    path.chmod(0o755)
    return str(path)


@pytest.mark.skipif(not refuses_descriptors(), reason="a kernel before 6.16")
def test_an_open_file_that_a_warm_process_sends_holds_nobody_up(place: Path, home: Path) -> None:
    agent = Agent(place, warm=True)
    try:
        agent.end(agent.start(ALICE, program(home / "python", LINGERING), "train.py"))
        agent.until(lambda: (home / "refused").exists())
        assert not stuck_threads()
    finally:
        agent.close()


OLD_KERNEL = "elasticd.agent.forkserver.client.take_no_descriptors"


@pytest.mark.parametrize("when", ["it reports", "it has reported", "it is asked for a worker"])
def test_where_open_files_can_be_sent_they_hold_up_what_their_sender_wants_and_nothing_else(
    place: Path, home: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """As with any kernel before 6.16: the receiver, or a process that closes the connection, waits for the sent file."""
    monkeypatch.setattr(OLD_KERNEL, lambda line: None)
    here = socket.create_server(("127.0.0.1", 0))  # accepts, and reads nothing
    sends = SENDS_LINGERING.replace("WHEN", repr(when)).replace("SECONDS", "600")
    python = program(home / "python", sends.replace("PORT", str(here.getsockname()[1])))
    agent = Agent(place, warm=True)
    try:
        agent.start(ALICE, python, "train.py")
        assert agent.warm is not None
        warm = agent.warm
        agent.until(lambda: warm._processes)
        if when != "it reports":
            agent.until(lambda: any(phase.phase.value == "ready" for phase in warm._stock._kept.values()))
        if when == "it is asked for a worker":
            agent.start(ALICE, python, "train.py", number=1)
            agent.until(lambda: warm._channels)
        (home / "go").touch()
        while not (home / "sent").exists():  # no process here receives it
            time.sleep(0.01)
        for number in range(20):
            agent.loop.turn()
            agent.end(agent.start(BOB, "true", job=f"other-{number}"))  # long before the leftovers are gone
        assert stuck_threads(), "nothing lingers: this test shows nothing"
    finally:
        here.close()
        agent.close()


def stuck_threads() -> list[str]:
    """Threads of the agent that the kernel blocks until a socket has been emptied."""
    stacks = [path.read_text() for path in Path("/proc/self/task").glob("*/stack")]
    return [stack for stack in stacks if "sk_stream_wait_close" in stack or "tcp_close" in stack]


def test_a_warm_process_reports_once_and_is_ended_if_it_says_more(
    place: Path, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    agent = Agent(place, warm=True)
    try:
        agent.start(ALICE, program(home / "python", TALKATIVE), "train.py")
        agent.until(lambda: "says more than it should" in caplog.text)
        agent.turn_for(0.2)
        assert agent.tasks._waiting < 20
        assert caplog.text.count("says more than it should") == 1
        assert caplog.text.count("workers can be forked from") <= 1
    finally:
        agent.close()


def test_a_warm_process_that_hangs_holds_up_none_of_another_account(
    place: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names a file on a file system of its account's that does not answer."""
    gate, look = threading.Event(), client.located
    monkeypatch.setattr(client, "located", lambda path: gate.wait() if "hangs" in path else look(path))
    agent = Agent(place, warm=True)
    try:
        hangs = program(home / "python", NONSENSE.replace("SAID", repr(b'{"executable": "/hangs"}')))
        agent.start(ALICE, hangs, "train.py")
        agent.until(lambda: any("alice" in queue or ALICE in queue for queue in agent.tasks._queues))
        (home / "bob").mkdir()
        agent.start(BOB, program(home / "bob" / "python", LASTS), "train.py", job="other-2")
        agent.until(lambda: any(process.watched == {"/": 1} for process in agent.warm._processes.values()))  # type: ignore[union-attr]
    finally:
        gate.set()
        agent.close()


@pytest.mark.parametrize(
    "said",
    [
        b"{}",
        b"nonsense",
        b'{"watched": {"/etc/shadow": "x"}}',
        b'{"executable": "/root/x"}',
        b'{"executable": "/a\\u0000b"}',
        b'{"executable": "\xff"}',
        b'{"more": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    ],
    ids=["nothing", "no JSON", "a number that is none", "root's", "a zero byte", "no text", "a depth without end"],
)
def test_nonsense_from_a_warm_process_harms_nobody(place: Path, said: bytes) -> None:
    agent = Agent(place, warm=True)
    try:
        home = place / "all"
        home.mkdir()
        home.chmod(0o777)
        (home / "python").write_text(NONSENSE.replace("SAID", repr(said)))
        (home / "python").chmod(0o755)
        for number in range(2):
            worker = agent.start(ALICE, str(home / "python"), "train.py", number=number)
            assert isinstance(agent.end(worker), ProcessExited)
        agent.turn_for(0.5)
    finally:
        agent.close()


# ------------------------------------------------------------------------------------------------------ warm processes


def test_workers_are_forked_from_a_warm_process_of_their_own_account(
    place: Path, python: tuple[str, dict[str, str]]
) -> None:
    interpreter, env = python
    agent = Agent(place, warm=True)
    try:
        script = place / "show.py"
        script.write_text(
            "import os, sys; print(os.getresuid(), os.getgroups(), 'torch' in sys.modules, os.environ['TMPDIR'])\n"
        )
        script.chmod(0o644)
        assert agent.warm is not None

        def ready() -> int:
            return sum(bool(process.watched) for process in agent.warm._processes.values())  # type: ignore[union-attr]

        for number, account in enumerate((ALICE, BOB)):
            agent.run(account, interpreter, str(script), env=env, job=f"first-{number}")
            agent.until(lambda number=number: ready() == number + 1)
        for number, account in enumerate((ALICE, BOB)):
            worker = agent.start(account, interpreter, str(script), env=env, job=f"second-{number}")
            agent.until(lambda worker=worker: worker in agent.processes._watched)
            watched = agent.processes._watched[worker]
            assert watched.child is None, "it was executed"
            agent.end(worker)
            user = uid(account)
            assert agent.log(worker).startswith(f"({user}, {user}, {user}) [")
            assert " True " in agent.log(worker)
        owners = {Path(f"/proc/{p.child.pid}").stat().st_uid for p in agent.warm._processes.values()}
        assert owners == {uid(ALICE), uid(BOB)}
    finally:
        agent.close()
