"""Users, an operator and their permissions: an independent statement of the access rules, to check the product's.

Each job belongs to one principal, by its name and the history's seed. Histories written by hand have only the administrator.
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
SAID_USER = "root"  # the user name that each client claims
SECRETS = {"TOKEN": "secret"}  # in the environment of each job
NOT_OTHERS = "nobody does what he may not"
OPERATOR_ACTS = 3  # one of so many acts on jobs is the operator's


def is_intruders(request: str) -> bool:
    """Return whether this is the id of an intruder's request."""
    return request.startswith("intruder-")


def user(name: str) -> Principal:
    return Principal(role=Role.USER, name=name, account=f"account-of-{name}")


class People:
    """The principals of one history."""

    def __init__(self, seed: int, users: Sequence[str]) -> None:
        """`users`: their names; without any, only the administrator exists."""
        self._seed = seed
        self.users = tuple(map(user, users))
        self.operator = OPERATOR if users else LOCAL_OPERATOR

    def owner(self, name: str) -> Principal:
        """Return the owner of the jobs of this name."""
        return random.Random(f"{self._seed}/owner/{name}").choice((*self.users, self.operator))

    def actor(self, job: str, number: int) -> Principal:
        """Return the principal that acts on a job: its owner, or the operator."""
        return self.operator if number % OPERATOR_ACTS == 0 else self.owner(job.rpartition("-")[0])

    def may(self, who: Principal, request: Request) -> bool:
        """Return whether this principal has the permission for the request."""
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
