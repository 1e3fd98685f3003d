"""Events on the booted machine of `boot.sh`: ``story.py first``, then, after a loss of power, ``story.py second``.

It runs as root with the standard library only. Findings go to /srv/out/BOOT.json; on a failed check it ends with an error that
names it.
"""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

OUT = Path("/srv/out")
ETC = Path("/etc/elasticctl")
PYTHON = "/opt/elasticctl/bin/python"
USER = "alice"
HOME = Path("/home/alice")
CLIENTS = "ipc:///var/lib/elasticctl/controller/clients"
DAEMONS = ("controller", "agent")
PATIENCE_S = 120.0
STEPS_OF_EPOCH = 16
found: dict[str, Any] = {}


def run(*command: str, check: bool = True) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    if check and done.returncode:
        raise AssertionError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def until(what: str, probe: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if result := probe():
            return result
        time.sleep(0.1)
    raise AssertionError(f"not within {PATIENCE_S:.0f} s: {what}")


def unit(daemon: str) -> str:
    return f"elasticctl-{daemon}.service"


def shown(daemon: str, name: str) -> str:
    return run("systemctl", "show", "--value", "--property", name, unit(daemon)).strip()


def pid(daemon: str) -> int:
    return int(shown(daemon, "MainPID"))


def ask(*arguments: str) -> Any:
    """Answer of `elasticctl ... --json` to alice; None: the command fails now."""
    done = subprocess.run([*elasticctl(*arguments), "--json"], cwd=HOME, capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def job(name: str) -> dict[str, Any] | None:
    return dict(answer) if (answer := ask("status", name)) else None


def trains_past(name: str, step: int) -> dict[str, Any]:
    """The job, once it has applied more than `step` steps."""

    def further() -> dict[str, Any] | None:
        now = job(name)
        if now and now["phase"] in ("failed", "cancelled"):
            raise AssertionError(f"{name} has {now['phase']}: {now['reason']}")
        return now if now and (now["step"] or 0) > step else None

    return dict(until(f"{name} trains past step {step}", further))


def comes_back(daemon: str, before: int, restarts: int) -> float:
    """Wait for the daemon's next process; returns the time (s)."""
    began = time.monotonic()
    until(
        f"the {daemon} comes back", lambda: pid(daemon) not in (0, before) and shown(daemon, "ActiveState") == "active"
    )
    now = int(shown(daemon, "NRestarts"))
    assert now == restarts + 1, f"{unit(daemon)}: {now} restarts, expected {restarts + 1}"
    return time.monotonic() - began


def same_workers(name: str, before: dict[str, Any]) -> dict[str, Any]:
    """The job, which trains on with the same processes."""
    now = trains_past(name, before["step"])
    kept = ("generation", "restarts", "job")
    assert {key: now[key] for key in kept} == {key: before[key] for key in kept}, (before, now)
    return now


def command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_text(errors="replace")
    except OSError:  # it has ended
        return ""


def newest_checkpoint() -> int | None:
    """Step of the newest checkpoint."""
    steps = [int(path.stem.rpartition("-")[2]) for path in Path("/var/lib/elasticctl").rglob("*-step-*.pt")]
    return max(steps, default=None)


def first() -> None:
    run("systemd-sysusers", "/usr/local/lib/sysusers.d/elasticctl.conf")
    run("systemd-tmpfiles", "--create", "/usr/local/lib/tmpfiles.d/elasticctl.conf")
    run("useradd", "--create-home", "--home-dir", str(HOME), USER)
    with (ETC / "agent.yaml").open("a") as file:
        file.write("server: s1\ncpu_slots: 2\n")

    began = time.monotonic()
    run("systemctl", "enable", "--now", *map(unit, DAEMONS))
    found["started_s"] = time.monotonic() - began
    for daemon in DAEMONS:
        assert shown(daemon, "ActiveState") == "active", run("systemctl", "status", unit(daemon), check=False)
    owner = os.stat(f"/proc/{pid('controller')}").st_uid
    assert owner == os.stat("/var/lib/elasticctl/controller").st_uid != 0, "the controller runs as its own user"

    (HOME / "job.yaml").write_text(
        f"name: story\ngpus: 2\ncheckpoint: {{every: 2s}}\n"
        f"command: {PYTHON} /srv/train_small.py {HOME}/model.pt"
        f" --epochs 100000 --size {8 * STEPS_OF_EPOCH} --batch-size 4 --pace 0.05\n"
    )
    until("the server is there", lambda: (ask("servers") or {}).get("servers"))
    name = until("the job is submitted", lambda: ask("submit", str(HOME / "job.yaml")))["job"]
    now = trains_past(name, 0)
    owners = {path.stat().st_uid for path in Path("/proc").glob("[0-9]*") if "train_small" in command_line(path)}
    assert owners == {pwd.getpwnam(USER).pw_uid}, f"the job's processes belong to users {owners}"

    for daemon in DAEMONS:
        before, restarts = pid(daemon), int(shown(daemon, "NRestarts"))
        os.kill(before, signal.SIGKILL)
        found[f"{daemon}_killed_s"] = comes_back(daemon, before, restarts)
        now = same_workers(name, now)

    before = pid("agent")
    run("systemctl", "restart", unit("agent"))
    assert pid("agent") != before
    now = same_workers(name, now)

    for daemon in DAEMONS:
        before, restarts = pid(daemon), int(shown(daemon, "NRestarts"))
        os.kill(before, signal.SIGSTOP)
        found[f"{daemon}_stopped_s"] = comes_back(daemon, before, restarts)
        now = same_workers(name, now)
        assert "Fatal Python error: Aborted" in (OUT / f"{daemon}.log").read_text(), (
            "the watchdog's SIGABRT is in the log"
        )

    doctor_finds()
    reloads()
    now = same_workers(name, now)
    found["step_at_power_loss"] = now["step"]
    found["checkpoint"] = until("a checkpoint", newest_checkpoint)
    found["job"] = name


def doctor(*only: str) -> dict[str, tuple[str, str]]:
    """Output of `elasticctl doctor` as root, by place and check."""
    line = ["/opt/elasticctl/bin/elasticctl", "doctor", "--json", *(word for name in only for word in ("--only", name))]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd="/")
    checks = json.loads(done.stdout)["checks"]
    return {f"{each['subject']} {each['name']}": (each["outcome"], each["found"]) for each in checks}


def doctor_finds() -> None:
    """The installed services are well; a disabled or ended one is reported."""
    names = ("configuration", "daemon", "unit", "state", "sockets", "programs", "listening", "open-files", "processes")
    well = doctor(*names, "controller", "scratch", "checkpoints")
    found["doctor"] = {name: said for name, (outcome, said) in well.items() if outcome == "warning"}
    assert not [name for name, (outcome, _) in well.items() if outcome == "failure"], well
    for name in ("configuration", "daemon", "open-files"):
        assert well[f"server {name}"][0] == well[f"controller {name}"][0] == "ok", well
    run("systemctl", "disable", unit("agent"))
    assert "does not start with the machine" in doctor("unit")["server unit"][1]
    run("systemctl", "enable", unit("agent"))
    run("systemctl", "stop", unit("controller"))
    ended = doctor("unit", "daemon", "controller")
    run("systemctl", "start", unit("controller"))
    assert "elasticctl-controller is inactive" in ended["controller unit"][1], ended
    assert ended["controller daemon"][0] == ended["server controller"][0] == "failure", ended


def reloads() -> None:
    """A valid file is loaded while the daemons run; an invalid one changes nothing, and is reported."""
    processes = [pid(daemon) for daemon in DAEMONS]
    right = (ETC / "controller.yaml").read_text()
    (ETC / "controller.yaml").write_text(
        right.replace("policy: max-min", "policy: fifo").replace("cluster: local", "cluster: other")
    )
    run("systemctl", "reload", *map(unit, DAEMONS))
    until("the other policy decides", lambda: (ask("policy", "show") or {}).get("policy", {}).get("name") == "fifo")
    assert "cluster has changed in the configuration: that needs a restart" in (OUT / "controller.log").read_text()

    (ETC / "controller.yaml").write_text(f"polcy: max-min\n{right}")
    wrong = subprocess.run(["systemctl", "reload", unit("controller")], capture_output=True, text=True, check=False)
    assert wrong.returncode != 0
    assert "line 1: polcy: is unknown" in (OUT / "controller.log").read_text()
    assert ask("policy", "show")["policy"]["name"] == "fifo"
    (ETC / "controller.yaml").write_text(right)
    run("systemctl", "reload", unit("controller"))
    until("the first policy decides", lambda: ask("policy", "show")["policy"]["name"] == "max-min")
    assert [pid(daemon) for daemon in DAEMONS] == processes


def second() -> None:
    before = json.loads((OUT / "first.json").read_text())
    name = before["job"]
    for daemon in DAEMONS:
        until(f"the {daemon} starts with the machine", lambda daemon=daemon: shown(daemon, "ActiveState") == "active")
    now = trains_past(name, before["step_at_power_loss"] + 5 * STEPS_OF_EPOCH)
    assert now["restarts"] >= 1, now
    # "[WORKER] epoch E done at step S on N", by the workers of the first boot, 0 and 1, then by those of the second.
    log = [line.split() for line in run(*elasticctl("logs", name)).splitlines() if " done at step " in line]
    lives = [words[0] in ("[0]", "[1]") for words in log]
    lived = max(int(words[6]) for words, early in zip(log, lives, strict=True) if early)
    resumed = next(int(words[6]) for words, early in zip(log, lives, strict=True) if not early)
    assert before["checkpoint"] < resumed <= lived + STEPS_OF_EPOCH, (before["checkpoint"], resumed, lived)
    found["first_epoch_ends_at_step"] = resumed
    until("the job is cancelled", lambda: ask("cancel", name))
    until("the job ends", lambda: (job(name) or {}).get("phase") == "cancelled")

    run("/srv/install", "uninstall")
    assert [shown(daemon, "ActiveState") for daemon in DAEMONS] == ["inactive", "inactive"]
    assert not Path("/opt/elasticctl").exists()
    assert not Path("/usr/local/bin/elasticctl").is_symlink()
    assert (ETC / "controller.yaml").exists()
    assert Path("/var/lib/elasticctl/controller/cluster.db").exists()


def elasticctl(*arguments: str) -> list[str]:
    """The command line as alice types it."""
    alice = pwd.getpwnam(USER)
    become = ["setpriv", f"--reuid={alice.pw_uid}", f"--regid={alice.pw_gid}", "--init-groups", "--reset-env"]
    return [*become, "env", f"ELASTICCTL_CONTROLLER={CLIENTS}", "/usr/local/bin/elasticctl", *arguments]


if __name__ == "__main__":
    boot = sys.argv[1]
    began_s = time.monotonic()
    {"first": first, "second": second}[boot]()
    assert run("systemctl", "is-active", "sysinit.target", check=False).strip() != "active", "not isolated"
    found["took_s"] = time.monotonic() - began_s
    (OUT / f"{boot}.json").write_text(json.dumps(found, indent=1))
