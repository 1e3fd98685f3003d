"""Users and operators: they submit, scale, cancel and change the policy within their permissions (`people`). They repeat each
request until it is answered, as `elasticctl` does.
"""

from __future__ import annotations

from dataclasses import replace as replace_in

from msgspec.structs import replace

from elasticd.controller.events import ClientRequest
from elasticd.protocol.messages import (
    AdoptServer,
    Answer,
    Cancel,
    Checkpoint,
    CordonServer,
    Envelope,
    LendGpus,
    Pause,
    Refused,
    RemoveServer,
    Reply,
    Request,
    Requeue,
    Resume,
    Scale,
    ServerRemoved,
    SetPolicy,
    Submit,
    UncordonServer,
)
from elasticd.protocol.model import CordonKind, GpuAddress, JobId, ResumeFrom, ServerId
from elasticd.protocol.principals import Principal

from .agent import Agent
from .cordons import Cordons
from .intruders import INTRUDER, Intruders
from .people import SAID_USER, SECRETS
from .plan import POLICIES, JobPlan, Moment
from .process import Process
from .testbed import Testbed
from .violation import Violation

REPEAT_S = 2.0
SAME_OWNER = 64  # names to try for one with the same owner
GOES_ON_AFTER_S = 40.0  # after a cancellation, in which the job may have saved its state
AGAIN = b"again"  # a client that repeats an answered request
AGAIN_AFTER_S = (0.5, 1.0, 1.5, 2.5, 4.0, 7.0, 12.0)
ASK_AGAIN_S = 10.0  # after a refusal for a reason of the cluster


class Users(Process):
    """All users together."""

    def __init__(self, world: Testbed, cordons: Cordons, intruders: Intruders) -> None:
        super().__init__(world, "users", "users")
        self._world, self._cordons, self._intruders = world, cordons, intruders
        self.answers_by_id: dict[str, Answer] = {}
        self.waiting: dict[str, tuple[Envelope, Principal]] = {}
        self._asked: dict[str, str] = {}  # by request id: the controller's key of the answered request
        self._adoptions = 0
        self._removals: dict[str, tuple[Agent, float]] = {}
        self._pauses: dict[str, tuple[JobId, float]] = {}  # by request: the job, and for how long
        self.born()

    def deadline(self) -> float | None:
        return None

    def turn(self) -> None:
        pass

    # -- requests

    def submit(self, plan: JobPlan) -> None:
        owner, spec = self._world.people.owner(plan.spec.name), plan.spec
        if self._world.people.users:
            spec = replace(spec, user=SAID_USER, env=SECRETS)
        self.ask(f"submit-{spec.name}", Submit(spec=spec), owner)

    def scale(self, number: int, who: int) -> None:
        """Fix the share of some job, or return it to the policy."""
        job = self._some_job(who)
        if job is not None:
            share = (None, 1, 2, 3, 4, 6)[who // 7 % 6]
            self.ask(f"scale-{number}", Scale(job=job, share=share), self._world.people.actor(job, number))

    def cancel(self, number: int, who: int, this: JobId | None = None, save: bool = False) -> None:
        job = this or self._some_job(who)
        if job is not None:
            self._world.oracle.asked_to_cancel(job)
            self.ask(f"cancel-{number}", Cancel(job=job, save=save), self._world.people.actor(job, number))

    def pause(self, number: int, who: int, for_s: float, hold: bool) -> None:
        """Pause or hold some job for `for_s`; then an operator releases it."""
        job = self._some_job(who)
        if job is not None:
            self._pauses[f"pause-{number}"] = job, for_s
            self.ask(f"pause-{number}", Pause(job=job, hold=hold), self._world.people.actor(job, number))

    def requeue(self, number: int, who: int, checkpoint: bool) -> None:
        """Requeue some job with its state saved; `checkpoint`: save the state and train on."""
        job = self._some_job(who)
        if job is not None:
            request = Checkpoint(job=job) if checkpoint else Requeue(job=job)
            self.ask(f"requeue-{number}", request, self._world.people.actor(job, number))

    def resubmit(self, number: int, who: int, again: bool = True) -> None:
        """Submit a job that continues a cancelled one from its saved state. Without such a job, cancel one first."""
        oracle, people = self._world.oracle, self._world.people
        over = [job for job in sorted(oracle.submitted().values()) if oracle.can_be_gone_on_from(job)]
        if not over:
            if again:
                self.cancel(number, who, save=True)
                self._world.after(GOES_ON_AFTER_S, self.resubmit, number, who, False)
            return
        source = over[who % len(over)]
        plan = oracle.job(source).plan
        names = (f"{plan.spec.name}r{number}x{tried}" for tried in range(SAME_OWNER))
        name = next((name for name in names if people.owner(name) == people.owner(plan.spec.name)), None)
        if name is not None:
            goes_on = replace_in(plan, spec=replace(plan.spec, name=name, resume=ResumeFrom(job=source)))
            self._world.add_job(goes_on)
            self.submit(goes_on)

    def _paused(self, name: str) -> None:
        job, for_s = self._pauses[name]
        self._world.after(for_s, self.ask, f"resume-{name}", Resume(job=job))

    def set_policy(self, number: int, who: int) -> None:
        policy = POLICIES[who % len(POLICIES)]
        self.ask(f"policy-{number}", SetPolicy(document={"policy": policy}, source="a user", user="user"))

    def cordon(self, number: int, gpu: GpuAddress, who: int, for_s: float) -> None:
        """Cordon a GPU, or its whole server, as an operator who lifts that after `for_s`, whatever is wrong there then."""
        index = gpu.index if who % 4 else None
        self.ask(f"cordon-{number}", CordonServer(server=gpu.server, gpu=index, reason="it is loud"))
        self._world.after(for_s, self.ask, f"uncordon-{number}", UncordonServer(server=gpu.server, gpu=index))

    def drain(self, number: int, gpu: GpuAddress, who: int, for_s: float) -> None:
        """Drain a server, or one of its GPUs, as an operator, for `for_s`."""
        index = gpu.index if who // 8 % 4 == 3 else None
        kind = CordonKind.DRAIN_BY_PREEMPTING if who // 32 % 4 == 3 else CordonKind.DRAIN
        self.ask(f"drain-{number}", CordonServer(server=gpu.server, gpu=index, reason="a new disk", kind=kind))
        back = UncordonServer(server=gpu.server, gpu=index, trust=False)
        self._world.after(for_s, self.ask, f"undrain-{number}", back)

    def lend(self, number: int, who: int, for_s: float) -> None:
        """Lend some GPUs, as an operator, for `for_s`, whatever was promised; the request may be refused."""
        self.ask(f"lend-{number}", LendGpus(gpus=1 + who % 4, for_s=for_s, reason="for serving", force=True))

    def remove(self, number: int, agent: Agent, for_s: float) -> None:
        """Remove an idle server, as an operator; its agent is restarted after `for_s`."""
        self._removals[f"remove-{number}"] = agent, for_s
        self.ask(f"remove-{number}", RemoveServer(server=agent.server.server))

    def _is_removed(self, server: ServerId, answer: Answer) -> bool:
        """Return whether this answer means that the server was removed.

        A request that was carried out, and is answered only after a restart of the controller, is refused: the server is unknown.
        """
        return isinstance(answer, ServerRemoved) or (
            isinstance(answer, Refused)
            and answer.bad_input
            and server not in self._world.controller.machine.cluster.servers.sessions
        )

    def _removed(self, name: str) -> None:
        agent, for_s = self._removals[name]
        self._world.removed.add(agent.name)
        self._world.after(for_s, self._start_again, agent)

    def _start_again(self, agent: Agent) -> None:
        self._world.removed.discard(agent.name)
        self._world.oracle.hit(agent.name)
        agent.die()
        agent.boot()

    def adopt(self) -> None:
        """Adopt, as an operator, each server whose workers belong to no job of this cluster."""
        if not self._world.controller.alive:
            return
        cluster = self._world.controller.machine.cluster
        unknown = [name for name, session in cluster.servers.sessions.items() if session.unknown]
        for server in sorted({*cluster.servers.foreign, *unknown}):
            self._adoptions += 1
            self.ask(f"adopt-{server}-{self._adoptions}", AdoptServer(server=server))

    def _some_job(self, who: int) -> JobId | None:
        jobs = sorted(self._world.oracle.submitted().values())
        return jobs[who % len(jobs)] if jobs else None

    # -- sending

    def ask(self, name: str, request: Request, who: Principal | None = None) -> None:
        """Repeat the request until it is answered. `who`: default: the operator."""
        who = who or self._world.people.operator
        if self._world.story.on:
            self._world.story.say(f"users ask: {name}" + (f", {who}" if self._world.people.users else ""))
        self.waiting[name] = Envelope(id=name, request=request), who
        self._cordons.asked(name, request)
        self._world.moment(Moment.REQUEST)
        self._repeat(name)
        self._intruders.watch(name, request, who)

    def _repeat(self, name: str) -> None:
        if name not in self.waiting:
            return
        envelope, who = self.waiting[name]
        controller = self._world.controller
        self._world.network.send(self, controller, controller.from_client, b"users", envelope, who)
        self.later(REPEAT_S, self._repeat, name)

    def _again(self, envelope: Envelope, who: Principal) -> None:
        """Repeat an answered request, as a client that has missed the answer does."""
        controller = self._world.controller
        self._world.network.send(self, controller, controller.from_client, AGAIN, envelope, who)

    def answered(self, client: bytes, reply: Reply) -> None:
        """Check an answer of the controller: everything that it promises must be in the store."""
        if client == INTRUDER:
            self._intruders.answered(reply)
            return
        if isinstance(reply.answer, Refused) and reply.answer.in_doubt:
            return  # the answer follows
        envelope, who = self.waiting.pop(reply.id, (None, None))
        request = envelope.request if envelope is not None else None
        if client != AGAIN and envelope is not None and who is not None:
            self._asked[reply.id] = ClientRequest(client, envelope, who).name
        if client != AGAIN and isinstance(request, Submit) and self._world.operations is not None:
            for after_s in AGAIN_AFTER_S:
                self.later(after_s, self._again, envelope, who)
        self._world.oracle.answered(request, reply, self._world.stored(reply), self._asked.get(reply.id, ""))
        if client == AGAIN:
            return
        self._cordons.answered(reply.id, request, reply.answer)
        self.answers_by_id[reply.id] = reply.answer
        if isinstance(request, Pause):
            self._paused(reply.id)
        if isinstance(request, RemoveServer) and self._is_removed(request.server, reply.answer):
            self._removed(reply.id)
        if isinstance(reply.answer, Refused):
            if reply.answer.not_allowed:
                raise Violation("who may do something is not refused", f"{reply.id} of {who}: {reply.answer.reason}")
            if self._world.story.on:
                self._world.story.say(f"{reply.id} is refused: {reply.answer.reason}")
            if isinstance(request, Resume) and not self._world.oracle.is_over(JobId(request.job)):
                self.later(ASK_AGAIN_S, self.ask, f"{reply.id}+", request, who)  # nothing could be recorded
            if envelope is not None and isinstance(envelope.request, Submit) and not reply.answer.bad_input:
                again = f"{reply.id}+"
                self.later(ASK_AGAIN_S, self.ask, again, envelope.request, who)
