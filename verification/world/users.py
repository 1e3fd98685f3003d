"""Users: they submit, scale, cancel and change the policy, and repeat each request until it is answered, as `elasticctl` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticd.protocol.messages import (
    AdoptServer,
    Answer,
    Cancel,
    Envelope,
    Refused,
    Reply,
    Request,
    Scale,
    SetPolicy,
    Submit,
)
from elasticd.protocol.model import JobId

from .plan import POLICIES, JobPlan, Moment
from .process import Process

if TYPE_CHECKING:
    from .cluster import World

REPEAT_S = 2.0
ASK_AGAIN_S = 10.0  # after a refusal that lies with the cluster


class Users(Process):
    """All users together."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "users", "users")
        self._world = world
        self.answers_by_id: dict[str, Answer] = {}
        self.waiting: dict[str, Envelope] = {}
        self._adoptions = 0
        self.born()

    def deadline(self) -> float | None:
        return None

    def turn(self) -> None:
        pass

    # -- wishes

    def submit(self, plan: JobPlan) -> None:
        self.ask(f"submit-{plan.spec.name}", Submit(spec=plan.spec))

    def scale(self, number: int, who: int) -> None:
        """Fix the share of some job, or give it back to the policy."""
        job = self._some_job(who)
        if job is not None:
            share = (None, 1, 2, 3, 4, 6)[who // 7 % 6]
            self.ask(f"scale-{number}", Scale(job=job, share=share))

    def cancel(self, number: int, who: int, this: JobId | None = None) -> None:
        job = this or self._some_job(who)
        if job is not None:
            self._world.oracle.asked_to_cancel(job)
            self.ask(f"cancel-{number}", Cancel(job=job))

    def set_policy(self, number: int, who: int) -> None:
        policy = POLICIES[who % len(POLICIES)]
        self.ask(f"policy-{number}", SetPolicy(document={"policy": policy}, source="a user", user="user"))

    def adopt(self) -> None:
        """An operator takes over whatever has workers that belong to no job of this cluster."""
        if not self._world.controller.alive:
            return
        cluster = self._world.controller.machine.cluster
        unknown = [name for name, session in cluster.sessions.items() if session.unknown]
        for server in sorted({*cluster.guests, *unknown}):
            self._adoptions += 1
            self.ask(f"adopt-{server}-{self._adoptions}", AdoptServer(server=server))

    def _some_job(self, who: int) -> JobId | None:
        jobs = sorted(self._world.oracle.submitted().values())
        return jobs[who % len(jobs)] if jobs else None

    # -- asking

    def ask(self, name: str, request: Request) -> None:
        """Ask until there is an answer."""
        if self._world.story.on:
            self._world.story.say(f"users ask: {name}")
        self.waiting[name] = Envelope(id=name, request=request)
        self._world.moment(Moment.REQUEST)
        self._repeat(name)

    def _repeat(self, name: str) -> None:
        envelope = self.waiting.get(name)
        if envelope is None:
            return
        controller = self._world.controller
        self._world.network.send(self, controller, controller.from_client, b"users", envelope)
        self.later(REPEAT_S, self._repeat, name)

    def answered(self, client: bytes, reply: Reply) -> None:
        """The controller answers. What it promises must be in the store."""
        envelope = self.waiting.pop(reply.id, None)
        request = envelope.request if envelope is not None else None
        self._world.oracle.answered(request, reply, self._world.stored(reply))
        self.answers_by_id[reply.id] = reply.answer
        if isinstance(reply.answer, Refused):
            if self._world.story.on:
                self._world.story.say(f"{reply.id} is refused: {reply.answer.reason}")
            if envelope is not None and isinstance(envelope.request, Submit) and not reply.answer.bad_input:
                again = f"{reply.id}+"
                self.later(ASK_AGAIN_S, self.ask, again, envelope.request)
