"""Lab of the recorded hour: hosts, accounts, a cluster with keys, and the commands typed there."""

from __future__ import annotations

import collections
import json
import random
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .lab import ROOT, Host, Lab

HOSTS = ("gpu1", "gpu2", "gpu3")
USERS = ("alice", "bob")
OPERATOR = "carol"
SLOTS = 2
SCRIPT = ROOT / "tests" / "cluster" / "train_small.py"
BIN = Path(sys.executable).parent
DISK = "/disk"  # of the first host
DIRECTORY = f"{DISK}/cluster"  # of the controller's state
UP = "elasticctl up --hosts hosts.txt --checkpoints /data/checkpoints --ssh 'ssh -o BatchMode=yes -o ConnectTimeout=2'"
KNOWN_WITHIN_S = 10.0  # until a new key is accepted
REPAIRED_WITHIN_S = 120.0


@dataclass
class Job:
    """A job that was submitted, or may have been."""

    name: str
    owner: str
    epochs: int
    virtual: int
    fails: bool
    id: str = ""  # "": the submission was not answered
    cancelled: bool = False
    perhaps_cancelled: bool = False  # the cancellation was not answered


@dataclass
class Answer:
    code: int
    text: str


@dataclass
class Recording:
    """Log of events, in order, and of faults found."""

    began: float = field(default_factory=time.monotonic)
    lines: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    counts: collections.Counter[str] = field(default_factory=collections.Counter)

    def tell(self, line: str) -> None:
        self.lines.append(f"[{time.monotonic() - self.began:6.1f} s] {line}")
        print(self.lines[-1], flush=True)

    def fault(self, line: str) -> None:
        self.faults.append(line)
        self.tell(f"FAULT: {line}")


class Room:
    """Hosts, people and cluster."""

    def __init__(self, lab: Lab, recording: Recording) -> None:
        self.lab = lab
        self.recording = recording
        self.jobs: dict[str, Job] = {}
        self.attempts: collections.Counter[tuple[str, str]] = collections.Counter()  # refused ones, by person and act
        self.dark: set[str] = set()  # hosts that are off or unreachable

    def types(self, user: str, line: str, at: Host | None = None, told: bool = True) -> Answer:
        """Run `line` as `user`. Returns its output and exit code. All but root use any reachable host."""
        host = at or self.lab[HOSTS[0]]
        variables = f"export PATH={BIN}:$PATH" + (f" ELASTICCTL_DIR={DIRECTORY}" if user == "root" else "")
        done = host.shell(f"{variables}; {line}", user=user, check=False)
        answer = Answer(done.returncode, (done.stdout + done.stderr).strip())
        if "Traceback" in answer.text:
            self.recording.fault(f"a traceback: {line}\n{answer.text}")
        if told:
            shown = line.replace(f"{sys.executable} {SCRIPT}", "python train_small.py")
            said = answer.text.splitlines()[-1][:200] if answer.text else ""
            self.recording.tell(
                f"{user}@{host.name}$ {shown}\n{'':11}{said or '(nothing)'}   (exit code {answer.code})"
            )
        return answer

    def seat(self, rng: random.Random) -> Host | None:
        """Return a random reachable host; None if there is none."""
        lit = [name for name in HOSTS if name not in self.dark]
        return self.lab[rng.choice(lit)] if lit else None

    def asks(self, line: str) -> Any:
        """Return the operator's answer as decoded JSON; None if the command fails."""
        answer = self.types("root", f"elasticctl {line} --json", told=False)
        return json.loads(answer.text) if answer.code == 0 else None

    def open(self) -> None:
        """Create accounts, start the cluster, issue keys."""
        for name in HOSTS:
            self.furnish(name)
        lines = "".join(f"{name} slots={SLOTS}\n" for name in HOSTS)
        self.lab[HOSTS[0]].write(f"{DISK}/hosts.txt", lines.encode())
        self.up()
        for principal, user in [*((f"user:{user}", user) for user in USERS), (f"operator:{OPERATOR}", OPERATOR)]:
            key, address = f"/home/{user}/my.key", f"tcp://{self.lab.address(HOSTS[0])}:7700"
            keys = f"--keys {DIRECTORY}/controller/keys --account {user}"
            made = self.types("root", f"elasticctl keys add {principal} {keys} --address {address} --out {key}")
            assert made.code == 0, made.text
            self.types("root", f"chown {user}: {key}", told=False)
            deadline = time.monotonic() + KNOWN_WITHIN_S
            while self.types(user, "elasticctl login my.key").code != 0:
                assert time.monotonic() < deadline, f"{user} is not let in"

    def furnish(self, name: str) -> None:
        """Set up a host that has just booted."""
        for user in (*USERS, OPERATOR):
            self.lab.add_user(user, [name])
        self.lab.serve_ssh()

    def up(self) -> None:
        """Start missing daemons, and wait until all servers are back."""
        deadline = time.monotonic() + REPAIRED_WITHIN_S
        while self.types("root", f"cd {DISK}; {UP}").code != 0 or not self.whole():
            if time.monotonic() > deadline:
                self.recording.fault(f"not whole within {REPAIRED_WITHIN_S:.0f} s:\n{self.look()}")
                return
            time.sleep(1.0)

    def whole(self) -> bool:
        """Return whether all servers are alive, waiting some seconds for it."""
        deadline = time.monotonic() + 15.0
        while time.monotonic() < deadline:
            servers = (self.asks("servers") or {}).get("servers", [])
            if [server["state"] for server in servers] == ["alive"] * len(HOSTS):
                return True
            time.sleep(0.5)
        return False

    def look(self) -> str:
        """Return the operator's view, and check that each process of a job runs as its owner."""
        said = "\n".join(f"root$ {line}\n{self.types('root', line, told=False).text}" for line in
                         ("elasticctl status", "elasticctl servers"))  # fmt: skip
        self.recording.tell(f"a look\n{said}")
        for host in [self.lab[name] for name in HOSTS if name not in self.dark]:
            for line in host.shell("ps -eo user:20,args", check=False).stdout.splitlines():
                found = re.search(r"train_small\.py /data/([a-z]+)\d", line)
                if found and line.split()[0] != found[1]:
                    self.recording.fault(f"on {host.name} a job runs as another account than its owner's: {line}")
        return said
