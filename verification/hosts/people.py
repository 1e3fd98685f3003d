"""Users and operator of the recorded hour, and its faults."""

from __future__ import annotations

import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence

from elasticd.ctl.logs import NOTHING_YET

from .room import HOSTS, OPERATOR, SCRIPT, USERS, Answer, Job, Room

POLICIES = ("max-min", "afs-l", "fifo")
KINDS = tuple((epochs, virtual) for epochs in (4, 8, 12) for virtual in (2, 3, 4))  # parameters that determine a result
PACE_S = 0.1
OPEN_JOBS = 3  # per user
FAIL_AT = 40  # step at which one of eight jobs fails
REFUSED, UNANSWERED = 4, (3, -9, 137)  # exit codes; the last two of a terminal on a host that is switched off
THINKS_S = (2.0, 9.0)
DARK_S = (2.0, 30.0)  # duration of a fault: shorter and longer than a lease of 10 s


class Person(threading.Thread):
    """A person who acts until stopped."""

    def __init__(self, room: Room, name: str, seed: str, stop: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self.room = room
        self.rng = random.Random(f"{seed}/{name}")
        self.stopping = stop
        self.submitted = 0
        self.acts: list[tuple[Callable[[], None], int]] = [
            (self.submit, 5), (self.scale, 5), (self.cancel, 1), (self.trespass, 3)
        ]  # fmt: skip
        if name == OPERATOR:
            self.acts = [(self.scale, 3), (self.cancel, 1), (self.set_policy, 1)]

    def run(self) -> None:
        acts, weights = zip(*self.acts, strict=True)
        try:
            while not self.stopping.wait(self.rng.uniform(*THINKS_S)):
                self.rng.choices(acts, weights)[0]()
        except Exception:  # outermost frame of a thread: its errors would otherwise be lost
            self.room.recording.fault(f"{self.name} gave up:\n{traceback.format_exc()}")

    def types(self, line: str) -> Answer:
        host = self.room.seat(self.rng)
        answer = self.room.types(self.name, line, host) if host is not None else Answer(UNANSWERED[0], "")
        self.room.recording.counts["unanswered"] += answer.code in UNANSWERED
        return answer

    def submit(self) -> None:
        mine = [job for job in self.room.jobs.values() if job.owner == self.name]
        shown = {job["job"] for job in (self.room.asks("status") or {}).get("jobs", [])}
        if sum(job.id in shown for job in mine) >= OPEN_JOBS:
            return
        self.submitted += 1
        job = Job(f"{self.name}{self.submitted}", self.name, *self.rng.choice(KINDS), fails=self.rng.random() < 0.125)
        train = f"{sys.executable} {SCRIPT} /data/{job.name}.pt --epochs {job.epochs} --pace {PACE_S}"
        train += f" --fail-at {FAIL_AT}" if job.fails else ""
        self.room.jobs[job.name] = job
        gpus = f"{self.rng.choice((1, 1, 2))}:{max(2, job.virtual)}"
        options = f"--name {job.name} --gpus {gpus} --virtual-workers {job.virtual} --checkpoint-every 10s"
        answer = self.types(f"elasticctl submit {options} -- {train}")
        job.id = answer.text if answer.code == 0 else ""

    def pick(self, whose: Sequence[str]) -> Job | None:
        """Return a random job of these owners, one of the latest; None if there is none."""
        known = [job for job in self.room.jobs.values() if job.owner in whose and job.id]
        return self.rng.choice(known[-4:]) if known else None

    def own(self) -> Job | None:
        return self.pick(USERS if self.name == OPERATOR else [self.name])

    def scale(self) -> None:
        if job := self.own():
            share = self.rng.choice(["auto", *map(str, range(1, max(2, job.virtual) + 1))])
            self.types(f"elasticctl scale {job.id} {share} --timeout 10s")

    def cancel(self) -> None:
        if job := self.own():
            job.perhaps_cancelled = True
            answer = self.types(f"elasticctl cancel {job.id}")
            job.cancelled |= answer.code == 0 and f"{job.id} cancelled" in answer.text
            job.perhaps_cancelled = job.cancelled or answer.code != 0

    def set_policy(self) -> None:
        self.types(f"elasticctl policy set {self.rng.choice(POLICIES)}")

    def trespass(self) -> None:
        """Attempt an act that is permitted only to the other user, or to an operator."""
        job = self.pick([user for user in USERS if user != self.name])
        lines = {"set policy": "policy set fifo", "remove server": f"servers remove {self.rng.choice(HOSTS)}"}
        if job is not None:
            lines |= {"cancel": f"cancel {job.id}", "scale": f"scale {job.id} 1", "read log": f"logs {job.id}"}
        act = self.rng.choice(list(lines))
        answer = self.types(f"elasticctl {lines[act]}")
        if answer.code == REFUSED:
            self.room.attempts[self.name, act] += 1
        elif answer.code == 0 and NOTHING_YET not in answer.text:
            self.room.recording.fault(f"{self.name} was let do this: {lines[act]}")


class Misfortune:
    """Faults, and their repair."""

    def __init__(self, room: Room, rng: random.Random) -> None:
        self.room = room
        self.rng = rng

    def strike(self) -> None:
        kinds = (self.switch_off, self.pull_cable, self.kill_agent, self.kill_controller, self.kill_worker)
        self.rng.choice(kinds)(self.rng.choice(HOSTS))

    def _dark(self) -> None:
        time.sleep(self.rng.uniform(*DARK_S))

    def _tell(self, kind: str, line: str) -> None:
        self.room.recording.counts[kind] += 1
        self.room.recording.tell(f"*** {line}")

    def switch_off(self, name: str) -> None:
        self.room.dark.add(name)
        self._tell("hosts switched off", f"{name} is switched off")
        self.room.lab[name].kill()
        self._dark()
        self.room.recording.tell(f"*** {name} boots anew")
        self.room.lab.add(name)
        self.room.furnish(name)
        self.room.dark.remove(name)
        self.room.up()

    def pull_cable(self, name: str) -> None:
        self.room.dark.add(name)
        self._tell("cables pulled", f"{name}'s cables are pulled")
        self.room.lab.unplug(name)
        self._dark()
        self.room.lab.plug(name)
        self.room.recording.tell(f"*** {name}'s cables are back")
        self.room.dark.remove(name)
        self.room.up()

    def kill_agent(self, name: str) -> None:
        self._kill(name, "agents killed", "agent", "elasticd[.]agent")
        self._dark()
        self.room.up()

    def kill_controller(self, _: str) -> None:
        self._kill(HOSTS[0], "controllers killed", "controller", "elasticd[.]controller")
        self._dark()
        self.room.up()

    def kill_worker(self, name: str) -> None:
        self._kill(name, "workers killed", "worker", "train_small[.]py")

    def _kill(self, name: str, kind: str, what: str, pattern: str) -> None:
        """Kill one process: the oldest that matches `pattern`."""
        done = self.room.lab[name].shell(f"pkill -KILL -o -f '{pattern}'", check=False)
        if done.returncode == 0:
            self._tell(kind, f"the {what} on {name} is killed")
