"""Who there is: users, an operator, and who may do what, written once more, so that the product's own rule is not its judge.

Each job belongs to one of them, by its name and the history's seed. Histories written by hand have only whoever runs the cluster.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from elasticd.protocol.messages import (
    AdoptServer,
    Cancel,
    Checkpoint,
    CordonServer,
    GetLog,
    Pause,
    Profile,
    RemoveServer,
    Request,
    Requeue,
    Resume,
    Scale,
    SetPolicy,
    UncordonServer,
)
from elasticd.protocol.principals import LOCAL_OPERATOR, Principal, Role

USERS = ("alice", "bob", "carol")
OPERATOR = Principal(role=Role.OPERATOR, name="olga", account="olga")
SAID_USER = "root"  # who each client says that its user is
SECRETS = {"TOKEN": "secret"}  # in the environment of each job
OPERATOR_ACTS = 3  # every so many times it is the operator who acts on a job


def user(name: str) -> Principal:
    return Principal(role=Role.USER, name=name, account=f"account-of-{name}")


class People:
    """The principals of one history."""

    def __init__(self, seed: int, users: Sequence[str]) -> None:
        """`users`: their names; without any there is only whoever runs the cluster."""
        self._seed = seed
        self.users = tuple(map(user, users))
        self.operator = OPERATOR if users else LOCAL_OPERATOR

    def owner(self, name: str) -> Principal:
        """Of the jobs of this name."""
        return random.Random(f"{self._seed}/owner/{name}").choice((*self.users, self.operator))

    def actor(self, job: str, number: int) -> Principal:
        """Who acts on a job: its owner, or the operator."""
        return self.operator if number % OPERATOR_ACTS == 0 else self.owner(job.rpartition("-")[0])

    def may(self, who: Principal, request: Request) -> bool:
        """Is that allowed?"""
        if who.role is Role.OPERATOR:
            return True
        if who.role is not Role.USER:
            return False
        match request:
            case (
                Scale(job=job)
                | Profile(job=job)
                | Cancel(job=job)
                | Pause(job=job)
                | Resume(job=job)
                | Requeue(job=job)
                | Checkpoint(job=job)
                | GetLog(job=job)
            ):
                return self.owner(job.rpartition("-")[0]) == who
            case AdoptServer() | RemoveServer() | CordonServer() | UncordonServer():
                return False
            case SetPolicy(dry_run=dry_run):
                return dry_run
            case _:
                return True
