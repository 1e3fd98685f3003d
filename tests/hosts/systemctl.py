#!/usr/bin/env python3
"""Replaces systemctl on hosts without systemd: ``systemctl enable --now UNIT``.

It reads the installed unit and provides the parts that the daemons need: the user, the directories, the variables, and the wait
for readiness (Type=notify). The unit's hardening has no effect here; tests/systemd tests it with a booted systemd.
"""

from __future__ import annotations

import os
import pwd
import shlex
import socket
import subprocess
import sys
from pathlib import Path

UNITS = Path("/usr/local/lib/systemd/system")
READY_WITHIN_S = 60.0
BASES = {"Runtime": "/run", "State": "/var/lib", "Logs": "/var/log"}


def options(unit: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (UNITS / f"{unit}.service").read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def start(unit: str) -> None:
    given = options(unit)
    account = pwd.getpwnam(given.get("User", ["root"])[0])
    variables = {"PATH": os.environ["PATH"], "HOME": account.pw_dir, "LANG": "C.UTF-8"}
    variables |= dict(pair.split("=", 1) for line in given.get("Environment", []) for pair in shlex.split(line))
    for kind, base in BASES.items():
        for name in given.get(f"{kind}Directory", []):
            directory = Path(base) / name
            directory.mkdir(parents=True, exist_ok=True)
            directory.chmod(int(given[f"{kind}DirectoryMode"][0], 8))
            os.chown(directory, account.pw_uid, account.pw_gid)
            variables[f"{kind.upper()}_DIRECTORY"] = str(directory)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
        ready.bind("")
        variables["NOTIFY_SOCKET"] = "@" + bytes(ready.getsockname())[1:].decode()
        become = ["setpriv", f"--reuid={account.pw_name}", f"--regid={account.pw_gid}", "--init-groups"]
        command = [*([] if account.pw_uid == 0 else become), *shlex.split(given["ExecStart"][0])]
        with Path(f"/var/log/{unit}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd="/",
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        ready.settimeout(READY_WITHIN_S)
        try:
            while b"READY=1" not in ready.recv(4096):
                pass
        except TimeoutError:
            sys.exit(f"{unit}: not ready, exit code {process.poll()}:\n{Path(f'/var/log/{unit}.log').read_text()}")


if __name__ == "__main__":
    if sys.argv[1:3] != ["enable", "--now"]:
        sys.exit(f"systemctl {shlex.join(sys.argv[1:])}: only `enable --now UNIT` is known here")
    for argument in sys.argv[3:]:
        start(argument)
