"""Unauthorized requests of users and servers; none may succeed.

After some requests of users, an intruder tries something similar with another user's job or with the cluster, reads data of
others, or repeats the id of that request. He uses a separate connection, and does not retry.
"""

from __future__ import annotations

import itertools
import random

from elasticd.protocol.messages import (
    AdoptServer,
    Cancel,
    CordonServer,
    Envelope,
    GetEnded,
    GetJob,
    GetJobs,
    GetLog,
    JobFound,
    Jobs,
    Ping,
    Pong,
    Profile,
    Refused,
    RemoveServer,
    Reply,
    Request,
    Scale,
    SetPolicy,
    UncordonServer,
)
from elasticd.protocol.model import CordonKind, JobId, WorkerId
from elasticd.protocol.principals import Principal, Role

from .people import NOT_OTHERS
from .process import Process
from .testbed import Testbed
from .violation import Violation

TRIES = 0.5  # probability that a user's request provokes an intruder
INTRUDER = b"intruder"


class Intruders(Process):
    """All intruders together."""

    def __init__(self, world: Testbed) -> None:
        super().__init__(world, "intruders", "users")
        self._world = world
        self._waiting: dict[str, tuple[Principal, Request]] = {}
        self._numbers = itertools.count()
        self.born()

    def deadline(self) -> float | None:
        return None

    def turn(self) -> None:
        pass

    def watch(self, name: str, request: Request, by: Principal) -> None:
        """Try, upon some requests of users, to reuse the id, to see other users' data, or to do something forbidden."""
        people, chance = self._world.people, random.Random(f"{self._world.seed}/intruder/{name}")
        if not people.users or chance.random() >= TRIES:
            return
        who = chance.choice((*people.users, *people.users, Principal(role=Role.SERVER, name="s0")))
        idea = chance.randrange(3)
        if idea == 0 and who != by:
            self._ask(who, Ping(), name)
        elif idea == 1:
            self._ask(who, self._look(chance))
        elif not people.may(who, wanted := self._want(chance, request)):
            self._ask(who, wanted)

    def _want(self, chance: random.Random, request: Request) -> Request:
        job = self._some_job(chance)
        if isinstance(request, CordonServer | UncordonServer | RemoveServer):
            drain = CordonServer(server=request.server, kind=CordonKind.DRAIN_BY_PREEMPTING)
            return chance.choice((drain, UncordonServer(server=request.server), RemoveServer(server=request.server)))
        if isinstance(request, SetPolicy | AdoptServer) or job is None:
            server = chance.choice(self._world.agents).server.server
            policy = SetPolicy(document={"policy": "fifo"}, source="an intruder")
            return chance.choice((policy, AdoptServer(server=server), RemoveServer(server=server)))
        log = GetLog(job=job, worker=WorkerId(f"{job}.0"), offset=0)
        return chance.choice((Cancel(job=job), Cancel(job=job), Scale(job=job, share=1), Profile(job=job), log))

    def _look(self, chance: random.Random) -> Request:
        job = self._some_job(chance)
        return chance.choice((GetJobs(final_too=True), GetEnded(), GetJob(job=job) if job is not None else GetJobs()))

    def _some_job(self, chance: random.Random) -> JobId | None:
        jobs = sorted(self._world.oracle.submitted().values())
        return chance.choice(jobs) if jobs else None

    def _ask(self, who: Principal, request: Request, name: str = "") -> None:
        """`name`: the id of another user's request."""
        name = name or f"intruder-{next(self._numbers)}"
        if self._world.story.on:
            self._world.story.say(f"{who} asks: {type(request).__name__} ({name})")
        self._waiting[name] = who, request
        controller = self._world.controller
        self._world.network.send(
            self, controller, controller.from_client, INTRUDER, Envelope(id=name, request=request), who
        )

    def answered(self, reply: Reply) -> None:
        """Raises Violation if an intruder's request succeeded."""
        found = self._waiting.get(reply.id)
        if found is None:
            return
        who, request = found
        answer, text = reply.answer, f"{who} asks for {request}, and is answered {reply.answer}"[:300]
        if isinstance(answer, Refused):
            return
        if not self._world.people.may(who, request):
            raise Violation(NOT_OTHERS, text)
        if isinstance(request, Ping) and not isinstance(answer, Pong):
            raise Violation("an answer is for who has asked", text)
        views = answer.jobs if isinstance(answer, Jobs) else (answer.job,) if isinstance(answer, JobFound) else ()
        for view in views:
            if view.spec.env and not self._world.people.may(who, Cancel(job=view.job)):
                raise Violation(
                    "secrets are shown to who may act on the job", f"{who} sees {view.spec.env} of {view.job}"
                )
