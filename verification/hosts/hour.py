"""python -m verification.hosts.hour [--minutes 60] [--seed 1] [--out out/hour]

A recorded hour in a lab: three hosts with two CPU slots each; two users and an operator with their own keys and accounts.

The users submit, scale and cancel jobs, and attempt what they are not permitted to do; the operator changes policies and acts on
jobs of both. Meanwhile hosts are switched off and boot again with empty disks, cables are pulled, and daemons and workers are
killed, one fault at a time. The first host's cluster directory, /home and /data outlast their hosts: they stand for its disk and
for a file server.

The seed decides the users' actions and the faults, but not their timing. So a seed names an hour, and does not reproduce it.

At the end faults stop, all jobs end, and these are checked: each job has finished, unless it was made to fail or cancelled by a
permitted person; its result equals that of `python train_small.py` bit for bit; no process is left; each refused attempt is in
the audit log, and no user has changed a job of the other; no program has printed a traceback.

Exit code 0: all checks pass. 1: some fail, as listed on the page. 2: this machine does not permit namespaces.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from .lab import Lab, NotPermitted
from .people import Misfortune, Person
from .room import DISK, HOSTS, OPERATOR, USERS, Recording, Room
from .verdict import judge

QUIET_S = (5.0, 40.0)  # between two faults
LOOKS = 6  # views of the cluster in the page
OVER_WITHIN_S = 600.0
PAGE = """# {minutes:g} minutes of three hosts, two users and an operator

`python -m verification.hosts.hour --minutes {minutes:g} --seed {seed}`; {verdict}.

| what | how much |
| --- | --- |
{figures}

{faults}## What happened

Each line has its time in seconds. `***` is what broke; of what a command has said the last line is shown.

```console
{timeline}
```
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make hosts-hour", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--out", type=Path, default=Path("out/hour"), help="where hour.md is written")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    recording, figures = Recording(), dict[str, str]()
    with tempfile.TemporaryDirectory(prefix="elasticctl-hour-") as scratch:
        places = {Path(scratch) / name: f"/{name}" for name in ("home", "data", DISK.strip("/"))}
        for place, mode in zip(places, (0o755, 0o1777, 0o700), strict=True):
            place.mkdir()
            place.chmod(mode)
        _, data, disk = places
        try:
            with Lab(HOSTS, places) as lab:
                room = Room(lab, recording)
                room.open()
                live(room, options.minutes * 60, options.seed)
                wait_for_the_end(room)
                figures = judge(room, data, disk / "cluster" / "controller" / "audit.log")
                close(room)
        except NotPermitted as reason:
            print(reason, file=sys.stderr)
            return 2
        except Exception:  # outermost frame: the recording must be written
            recording.fault(traceback.format_exc())
    (options.out / "hour.md").write_text(page(recording, figures, options.minutes, options.seed))
    print(f"{options.out / 'hour.md'}: {len(recording.faults)} faults", *recording.faults, sep="\n")
    return int(bool(recording.faults))


def live(room: Room, lasts_s: float, seed: str) -> None:
    """Let people act and faults strike for `lasts_s` seconds; then repair everything and stop the people."""
    stop, rng = threading.Event(), random.Random(f"{seed}/misfortune")
    people = [Person(room, name, seed, stop) for name in (*USERS, OPERATOR)]
    misfortune, began = Misfortune(room, rng), time.monotonic()
    for person in people:
        person.start()
    next_look_s = lasts_s / LOOKS
    while (passed_s := time.monotonic() - began) < lasts_s:
        time.sleep(min(rng.uniform(*QUIET_S), lasts_s / 8))
        misfortune.strike()
        if passed_s >= next_look_s:
            next_look_s += lasts_s / LOOKS
            room.look()
    stop.set()
    for person in people:
        person.join()
    room.up()


def wait_for_the_end(room: Room) -> None:
    """Wait until all jobs have ended."""
    room.recording.tell("nothing breaks any more; the jobs that are left come to their end")
    deadline = time.monotonic() + OVER_WITHIN_S
    while (answer := room.asks("status")) is None or any(job["finished_s"] is None for job in answer["jobs"]):
        if time.monotonic() > deadline:
            room.recording.fault(f"jobs do not end within {OVER_WITHIN_S:.0f} s:\n{room.look()}")
            return
        time.sleep(2.0)
    room.look()


def close(room: Room) -> None:
    """Stop the cluster, and check that no process is left."""
    if room.types("root", "elasticctl down").code != 0:
        room.recording.fault("the cluster is not stopped")
    for host in room.lab.hosts.values():
        if left := host.shell("pgrep -af elasticd", check=False).stdout.strip():
            room.recording.fault(f"daemons are left on {host.name}: {left}")


def page(recording: Recording, figures: dict[str, str], minutes: float, seed: str) -> str:
    faults = "".join(f"* {fault}\n" for fault in recording.faults)
    return PAGE.format(
        minutes=minutes,
        seed=seed,
        verdict=f"{len(recording.faults)} faults" if faults else "all was as it should be",
        figures="\n".join(f"| {what} | {much} |" for what, much in figures.items()),
        faults=f"## What was not as it should be\n\n{faults}\n" if faults else "",
        timeline="\n".join(recording.lines),
    )


if __name__ == "__main__":
    sys.exit(main())
