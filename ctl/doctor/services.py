"""Checks of a daemon as a service: its configuration, its process, its systemd unit."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil

from ... import __version__
from .. import record
from ..render import span
from .checks import Finding, Register, absent, failure, ok, warning, worst
from .crowd import crowd
from .targets import Subject, Target, unit_options

CHECKS = Register(Subject.SERVER)
CHECKED_WITHIN_S = 20.0
ASKED_WITHIN_S = 5.0
MANY_RESTARTS = 3


@CHECKS.check(
    "configuration",
    "the daemon's configuration has mistakes, or a file that it names cannot be used",
    "mend the line that is named; `elasticctl config check`",
    limit_s=CHECKED_WITHIN_S + 2,
)
def configuration(target: Target) -> Finding:
    assert target.daemon is not None
    daemon = target.daemon
    command = [sys.executable, "-P", "-m", f"elasticd.{daemon.kind}", "--config", daemon.file, "--check"]
    limit_s = CHECKED_WITHIN_S * crowd().patience
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s, cwd="/")
    if done.returncode == 0:
        return ok(f"{daemon.file} is right")
    wrong = done.stderr.strip().splitlines() or [f"the check ends with exit code {done.returncode}"]
    if target.machine.uid not in (0, daemon.owner) and any("ermission denied" in line for line in wrong):
        return absent("root sees this")
    return failure("; ".join(wrong), f"mend it, then start the daemon: {start(target)}", certain=True)


def start(target: Target) -> str:
    """Return the command that starts the daemon."""
    assert target.daemon is not None
    if target.daemon.unit:
        return f"`systemctl enable --now elasticctl-{target.daemon.kind}`"
    if target.directory is not None and target.directory == Path(target.daemon.file).parent:
        return "`elasticctl up`"
    python = target.daemon.described.python if target.daemon.described is not None else sys.executable
    return f"`{python} -m elasticd.{target.daemon.kind} --config {target.daemon.file}`"


@CHECKS.check(
    "daemon",
    "the daemon does not run",
    "read the end of its log, then start it: `systemctl enable --now`, or `elasticctl up`",
)
def daemon(target: Target) -> Finding:
    assert target.daemon is not None
    found = target.daemon
    log = f"; log: {found.log}" if found.log else ""
    if found.pid is not None:
        age = span(time.time() - psutil.Process(found.pid).create_time())
        return ok(f"process {found.pid} runs for {age}{log}")
    last = record.tail(Path(found.log), 1) if found.log.startswith("/") else []
    ends = f", which ends with: {last[0]}" if last else ""
    return failure(f"no {found.kind} runs with {found.file}{log}{ends}", start(target))


@CHECKS.check(
    "unit",
    "the systemd unit is not enabled, has failed, is started again and again, is stale, or of another version",
    "`systemctl daemon-reload`, `enable --now`; `journalctl -u`; `make install`",
)
def unit(target: Target) -> Finding:
    assert target.daemon is not None
    if not target.daemon.unit:
        return absent("no systemd unit starts this daemon")
    systemctl = shutil.which("systemctl", path=target.machine.environ.get("PATH"))
    if systemctl is None:
        return absent("there is no systemd here")
    name = f"elasticctl-{target.daemon.kind}"
    names = "LoadState,ActiveState,UnitFileState,NRestarts,NeedDaemonReload"
    done = subprocess.run(
        [systemctl, "show", "--property", names, name],
        capture_output=True,
        text=True,
        timeout=ASKED_WITHIN_S,
        check=False,
    )
    properties = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    if done.returncode or "ActiveState" not in properties:
        return absent(f"systemd does not answer: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}")
    wrong = []
    if properties["ActiveState"] == "failed":
        wrong.append(
            failure(f"{name} has failed", f"`journalctl -u {name} -n 50` says why; `systemctl restart {name}`")
        )
    elif properties["ActiveState"] != "active":
        wrong.append(failure(f"{name} is {properties['ActiveState']}", f"`systemctl enable --now {name}`"))
    if properties.get("UnitFileState") not in ("enabled", "static"):
        wrong.append(
            warning(f"{name} is not enabled: it does not start with the machine", f"`systemctl enable {name}`")
        )
    if properties.get("NeedDaemonReload") == "yes":
        wrong.append(warning(f"the file of {name} has changed since systemd read it", "`systemctl daemon-reload`"))
    if properties.get("NRestarts", "0").isdigit() and int(properties.get("NRestarts", "0")) >= MANY_RESTARTS:
        wrong.append(
            warning(f"{name} was started again {properties['NRestarts']} times", f"`journalctl -u {name}` says why")
        )
    wrong += _other_version(target)
    return worst(wrong, ok(f"{name} is active and enabled"))


def _other_version(target: Target) -> list[Finding]:
    """Return a finding if the unit starts another elasticctl than this one."""
    assert target.daemon is not None
    python = unit_options(Path(target.daemon.unit)).get("ExecStart", "").split(" ")[0]
    if not python or not Path(python).exists():
        return [failure(f"the unit starts {python or 'nothing'}, which is not there", "`make install` once more")]
    command = [python, "-I", "-c", "import elasticd; print(elasticd.__version__)"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ASKED_WITHIN_S, check=False, cwd="/")
    there = done.stdout.strip()
    if done.returncode:
        return [failure(f"{python}, which the unit starts, has no elasticctl", "`make install` once more")]
    if there != __version__:
        return [
            warning(f"the unit starts elasticctl {there}, this is {__version__}", "`make install`, then restart it")
        ]
    return []
