"""Attacks of hostile jobs on the booted machine of `boot.sh`, against the shipped units with their rights: ``attacks.py``.

It runs as root with the standard library only, and uses the tools of `story.py`. Each attack's outcome goes to
/srv/out/attacks.json; if any succeeds, the script ends with an error that lists all.
"""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))
import story  # beside this file on the booted machine

GPUS = 8  # of the stand-in
TASKS = 60
MEMORY_GIB = 0.25
AGENT_YAML = f"""
server: s1
nvml_library: /srv/libnvidia-ml.so.1
worker_device: cpu
worker_limits: {{memory_gib: {MEMORY_GIB}, tasks: {TASKS}}}
health: {{probation_s: 0}}
"""
BOMB = "import os, time\nwhile True:\n  try: os.fork()\n  except OSError: time.sleep(0.1)"
HOG = "x = bytearray(700 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nprint('it has all of it')"
ORPHAN = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open(sys.argv[1], 'w').write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
while not os.path.exists(sys.argv[1]): time.sleep(0.05)
os.kill(os.getppid(), signal.SIGKILL)
time.sleep(600)
"""
OPENER = """
import os, sys, time
for each in range(8):
    try: os.open(f'/dev/nvidia{each}', os.O_RDWR)
    except OSError as error: print('nvidia', each, error.errno, flush=True)
for name in ('nvidiactl',):
    try: os.open(f'/dev/{name}', os.O_RDWR)
    except OSError as error: print(name, 0, error.errno, flush=True)
time.sleep(float(sys.argv[1]))
"""
SHARER = """
import os, sys, time
print('tmp', sorted(os.listdir('/tmp')), flush=True)
print('shm', sorted(os.listdir('/dev/shm')), flush=True)
open(f'/tmp/of-{sys.argv[1]}', 'w').write('x'); open(f'/dev/shm/of-{sys.argv[1]}', 'w').write('x')
until = time.time() + float(sys.argv[2])
while time.time() < until:
    print('sees', len(os.listdir('/dev/shm')), flush=True)
    time.sleep(0.5)
"""
UNIFIED = Path("/sys/fs/cgroup/unified")
ENXIO = 6  # no driver answers: as far as an open can get here


def submit(name: str, *command: str, gpus: int = 1) -> str:
    options = ("--name", name, "--gpus", str(gpus), "--restarts", "0")
    line = [*story.elasticctl("submit", "--json", *options, "--"), *command]
    done = subprocess.run(line, cwd=story.HOME, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["job"])


def phase(name: str) -> str:
    return str((story.job(name) or {}).get("phase"))


def wait_for(name: str, *phases: str) -> dict[str, Any]:
    story.until(f"{name} is {' or '.join(phases)}, and not {phase(name)}", lambda: phase(name) in phases)
    return story.job(name) or {}


def log_of(name: str) -> list[list[str]]:
    return [line.split() for line in story.run(*story.elasticctl("logs", name), check=False).splitlines()]


def said(name: str, *words: str, least: int = 1) -> list[list[str]]:
    def lines() -> list[list[str]] | None:
        found = [line for line in log_of(name) if any(word in line for word in words)]
        return found if len(found) >= least else None

    return list(story.until(f"{name} says {words}", lines))


def of_alice() -> list[int]:
    """Alice's processes, without her `elasticctl` commands."""
    uid = pwd.getpwnam(story.USER).pw_uid
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if path.stat().st_uid == uid and "elasticctl" not in story.command_line(path):
                found.append(int(path.name))
        except OSError:
            continue
    return found


def server() -> dict[str, Any]:
    return dict(story.until("the server is there", lambda: (story.ask("servers") or {}).get("servers"))[0])


def groups_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


def fork_bomb() -> tuple[bool, str]:
    name = submit("bomb", "python3", "-c", BOMB)
    wait_for(name, "running", "starting", "training", "failed")
    most = 0
    for _ in range(40):
        most = max(most, len(of_alice()))
        if most > 4 * TASKS:
            break
        time.sleep(0.1)
    story.ask("cancel", name)
    wait_for(name, "cancelled", "failed", "finished")
    left = len(of_alice())
    for pid in of_alice():  # remains of it would disturb later attacks
        os.kill(pid, 9)
    return most <= TASKS + 2 and left == 0, f"at most {most} processes (limit {TASKS}), {left} left after the job"


def memory_hog() -> tuple[bool, str]:
    name = submit("hog", "python3", "-c", HOG)
    now = wait_for(name, "failed", "finished")
    return "out of memory" in now["reason"], f"{now['phase']}: {now['reason']}"


def orphan() -> tuple[bool, str]:
    note = story.HOME / "orphan"
    name = submit("orphan", "python3", "-c", ORPHAN, str(note))
    wait_for(name, "failed", "finished")
    pid = int(note.read_text())
    alive = Path(f"/proc/{pid}").exists()
    if alive:
        os.kill(pid, 9)
    return not alive, f"it {'lives' if alive else 'is dead'} when its job has ended and its GPU is free"


def foreign_gpu() -> tuple[bool, str]:
    first = submit("opener", "python3", "-c", OPENER, "600")
    second = submit("other", "python3", "-c", OPENER, "600")
    answers = {}
    for name in (first, second):
        lines = said(name, "nvidia", least=GPUS)
        answers[name] = {int(line[-2]): int(line[-1]) for line in lines}
    own = {name: [gpu for gpu, error in each.items() if error == ENXIO] for name, each in answers.items()}
    shared = [int(line[-1]) for line in said(first, "nvidiactl")]
    for name in (first, second):
        story.ask("cancel", name)
        wait_for(name, "cancelled")
    fine = all(len(each) == 1 for each in own.values()) and len({gpu for each in own.values() for gpu in each}) == 2
    return fine and shared == [ENXIO], f"two jobs of one GPU may open {list(own.values())} of {GPUS}"


def rooms() -> tuple[bool, str]:
    Path("/tmp/of-root").write_text("x")
    Path("/tmp/of-root").chmod(0o644)
    first = submit("sharer", "python3", "-c", SHARER, "sharer", "600")
    said(first, "sees")
    outside = [str(path) for top in ("/tmp", "/dev/shm") for path in Path(top).glob("of-sharer")]
    second = submit("looker", "python3", "-c", SHARER, "looker", "1")
    wait_for(second, "finished", "failed")
    seen = [line for line in said(second, "tmp", "shm") if "'of-sharer']" in line[-1] or "of-" in " ".join(line[2:])]
    story.ask("cancel", first)
    wait_for(first, "cancelled")

    def left() -> list[str]:
        places = [*Path("/tmp").glob("of-*r"), *Path("/dev/shm").glob("of-*"), *Path("/dev/shm").glob("elasticctl-*/*")]
        return [str(path) for path in (*places, *Path("/var/lib/elasticctl/agent/rooms").glob("*"))]

    give_up_at = time.monotonic() + 10
    while left() and time.monotonic() < give_up_at:
        time.sleep(0.1)
    text = f"outside: {outside or 'nothing'}; another job sees: {seen or 'nothing'}; left: {left() or 'nothing'}"
    return not outside and not seen and not left(), text


def restart() -> tuple[bool, str]:
    """The agent restarts while a worker runs: the worker stays in its groups, and new ones are made."""
    first = submit("stays", "python3", "-c", OPENER, "600")
    said(first, "nvidia", least=GPUS)
    (pid,) = [pid for pid in of_alice() if "python3\0-c" in story.command_line(Path(f"/proc/{pid}"))][:1]
    if "hugetlb" in (UNIFIED / "cgroup.controllers").read_text() if UNIFIED.is_dir() else "":
        # In version 2 a group with controllers enabled holds no process itself. A hybrid system may have this one to show that.
        for above in ("", "system.slice", f"system.slice/{story.unit('workers')}"):
            (UNIFIED / above / "cgroup.subtree_control").write_text("+hugetlb")
    before, agent = groups_of(pid), story.pid("agent")
    story.run("systemctl", "daemon-reload")
    story.run("systemctl", "restart", story.unit("agent"))
    after = groups_of(pid) if Path(f"/proc/{pid}").exists() else ""
    same = after == before
    fine = story.pid("agent") != agent and same
    beside = all(story.unit("workers") in line for line in before.splitlines() if "memory" in line or line[:2] == "0:")
    story.until("the server is heard again", lambda: "away" not in json.dumps(server()["state"]))
    second = submit("after", "python3", "-c", HOG)
    now = wait_for(second, "failed", "finished")
    story.ask("cancel", first)
    wait_for(first, "cancelled")
    story.until("its processes end", lambda: not Path(f"/proc/{pid}").exists())
    lost = sorted({*before.splitlines()} ^ {*after.splitlines()})
    text = f"in other groups: {lost}, beside the agent's: {beside}; the next: {now['reason']}"
    return fine and beside and "out of memory" in now["reason"], text


def keeper_killed() -> tuple[bool, str]:
    """The process that keeps the delegated group ends, with and without a worker in the group: limits hold all the time."""
    said_of, fine = [], True
    for first in ("kept", ""):
        if first:
            name = submit(first, "python3", "-c", OPENER, "600")
            said(name, "nvidia", least=GPUS)
        os.kill(int(story.until("the group is kept", lambda: int(story.shown("workers", "MainPID")))), 9)
        story.run("systemctl", "daemon-reload")
        hog = submit("hog-of-" + (first or "none"), "python3", "-c", HOG)
        now = wait_for(hog, "failed", "finished")
        said_of.append(now["reason"].partition(":")[2].strip()[:80])
        fine = fine and "out of memory" in now["reason"] and (not first or phase(name) in ("starting", "running"))
        if first:
            story.ask("cancel", name)
            wait_for(name, "cancelled")
    story.until("the group is kept again", lambda: int(story.shown("workers", "MainPID")))
    restarts = int(story.shown("workers", "NRestarts"))
    return fine, f"{said_of}; {restarts} restarts, {story.shown('workers', 'ActiveState')}"


def unheld() -> tuple[bool, str]:
    """Without the delegated group nothing starts, and the status names the reason."""
    story.run("systemctl", "stop", story.unit("agent"))
    story.run("systemctl", "mask", "--runtime", story.unit("workers"), check=False)
    story.run("systemctl", "kill", "--signal=KILL", "--kill-who=all", story.unit("workers"), check=False)
    time.sleep(1)
    story.run("systemctl", "start", story.unit("agent"))
    time.sleep(5)
    name = submit("never", "sleep", "600")
    time.sleep(3)
    now, told = phase(name), json.dumps(server())
    doctor = story.doctor("cgroups")["server cgroups"]
    story.ask("cancel", name)
    fine = now == "pending" and "no control group" in told and doctor[0] == "failure"
    return fine, f"the job is {now}; doctor: {doctor}; servers: {told[-700:]}"


ATTACKS: tuple[Callable[[], tuple[bool, str]], ...] = (
    *(memory_hog, orphan, foreign_gpu, rooms, restart, keeper_killed, fork_bomb, unheld),
)


def main() -> None:
    story.run("systemd-sysusers", "/usr/local/lib/sysusers.d/elasticctl.conf")
    story.run("systemd-tmpfiles", "--create", "/usr/local/lib/tmpfiles.d/elasticctl.conf")
    story.run("useradd", "--create-home", "--home-dir", str(story.HOME), story.USER)
    for minor, name in [*((index, f"nvidia{index}") for index in range(GPUS)), (255, "nvidiactl")]:
        os.mknod(f"/dev/{name}", 0o20666, os.makedev(195, minor))
        os.chmod(f"/dev/{name}", 0o666)
    drop_in = Path("/run/systemd/system/elasticctl-agent.service.d/standin.conf")
    allowed = "".join(
        f"DeviceAllow={path} rw\n" for path in sorted(Path("/dev").glob("nvidia*"))
    )  # there is no driver to name
    drop_in.write_text(f"[Service]\nEnvironment=NVML_SERVER=/srv/server.txt\n{allowed}")
    with (story.ETC / "agent.yaml").open("a") as file:
        file.write(AGENT_YAML)
    story.run("systemctl", "daemon-reload")
    story.run("systemctl", "enable", "--now", *map(story.unit, story.DAEMONS))
    story.until("the GPUs are there", lambda: (story.ask("servers") or {}).get("servers"))
    outcomes: dict[str, tuple[bool, str]] = {}
    for attack in ATTACKS:
        try:
            outcomes[attack.__name__] = attack()
        except Exception as error:  # the others are tried all the same
            outcomes[attack.__name__] = (False, f"{type(error).__name__}: {error}")
        print(attack.__name__, outcomes[attack.__name__], flush=True)
        (story.OUT / "attacks.json").write_text(json.dumps(outcomes, indent=1))
    assert all(holds for holds, _ in outcomes.values()), json.dumps(outcomes, indent=1)


if __name__ == "__main__":
    main()
