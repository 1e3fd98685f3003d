"""A newcomer whose only holder dies: `python orphan_ranks.py WHEN ADDRESS DIRECTORY`, with a timetable of `training_ranks`.

WHEN: the holder is killed "before" it sends its state, or when it has "begun" to. The newcomer then has to begin alone. It writes
its final state to DIRECTORY; its exit code becomes this process's.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import training_cases
from training_ranks import VIRTUAL_WORKERS, Rehearsal, Timetable, digest, environment, fork

from elasticd.protocol.model import Determinism, GpuAddress, Member, Roster, ServerId, WorkerId
from elasticd.worker import warm
from elasticd.worker.membership import machine as m
from elasticd.worker.run import Run
from elasticd.worker.state.replication import Replication

ENTRIES = [(0, [0]), (5, [0, 1])]


class Alone(Timetable):
    """After the loss no other worker is left."""

    def failed(self, reason: str) -> list[m.Action]:
        member = Member(worker=WorkerId("w.1"), gpu=GpuAddress(server=ServerId("s"), index=1))
        roster = Roster(generation=3, members=(member,), leader=member.worker)
        return [m.BuildGroup(roster, 1, ""), m.Switch(roster, 1, (member.worker,), recovery=True)]


def die_giving(when: str) -> None:
    give = Replication.give

    def dying(replication: Replication, *arguments: Any, **named: Any) -> Any:
        if when == "begun":
            give(replication, *arguments, **named)
            replication.sent()
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(Replication, "give", dying)  # noqa: B010


def train(me: int, when: str, address: str, directory: Path) -> None:
    if me == 0:
        die_giving(when)
    place = environment(me, Determinism.ELASTIC)
    run = Run(Rehearsal(Alone(me, ENTRIES, meeting=directory), address, place), place, VIRTUAL_WORKERS, seed=3)
    state = training_cases.plain(run)
    (directory / f"{me}.json").write_text(json.dumps(digest(state), sort_keys=True))


def main(when: str, address: str, directory: Path) -> int:
    torch.set_num_threads(1)
    warm.prepare()
    children = [fork(partial(train, me, when, address, directory)) for me in (0, 1)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes[0] == -signal.SIGKILL
    return codes[1]


if __name__ == "__main__":
    code = main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    sys.exit(128 - code if code < 0 else code)
