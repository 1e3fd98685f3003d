"""Requests of clients: remembered answers, requests that wait for an answer, and the audit log."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...protocol.messages import Answer, Reply, Submitted
from ...protocol.model import JobSpec, ServerId
from ...protocol.principals import Principal
from ...protocol.rate_limit import RateLimiter
from ..answer_cache import AnswerCache
from ..events import Audit, ClientRequest, ReplyClient
from ..jobs.job import Job
from ..records import RequestRecord, request_key
from .effects import Effects

KEPT_PRINCIPALS = 1000  # most principals whose refused requests are counted
ATTEMPTS_AT_ONCE, ATTEMPT_INTERVAL_S = 20, 10.0  # audited refusals of one principal: a burst, then one per interval


@dataclass
class PendingLog:
    """A client's request for a piece of a log, or for the output of a command, which the agent of `server` has yet to answer."""

    asked: ClientRequest
    server: ServerId
    deadline_s: float
    due: str = "the log"


@dataclass(frozen=True)
class Undecided:
    """A client's request that set a share, and waits for the decision that names the job's generation."""

    asked: ClientRequest
    job: Job
    after: int  # number of decisions made before the request


@dataclass
class Attempts:
    """Refused requests of one principal, counted so that the audit log is not flooded."""

    limiter: RateLimiter = field(default_factory=lambda: RateLimiter(ATTEMPTS_AT_ONCE, ATTEMPT_INTERVAL_S))
    last: str = ""  # id of the last request


class Clients:
    """Requests by name (`ClientRequest.name`): answered ones that changed something, and unanswered ones."""

    def __init__(self, effects: Effects) -> None:
        self.answers = AnswerCache()
        self.pending_logs: dict[str, PendingLog] = {}  # in the order of their deadlines
        # Submissions with deadlines, which are admitted together.
        self.newcomers: dict[str, tuple[ClientRequest, JobSpec]] = {}
        self.undecided: dict[str, Undecided] = {}  # empty unless there are very many jobs
        self.attempts: OrderedDict[str, Attempts] = OrderedDict()  # by principal
        self._effects = effects

    def answer(self, asked: ClientRequest, answer: Answer) -> None:
        """Send the answer to a request."""
        self._effects.act(ReplyClient(asked.client, Reply(id=asked.envelope.id, answer=answer)))

    # -- requests that wait for an answer

    def wait_for_agent(self, asked: ClientRequest, server: ServerId, deadline_s: float, due: str) -> None:
        """Let a request wait for the agent of `server`. `deadline_s`: no earlier than that of any request that waits."""
        self.pending_logs.pop(asked.name, None)  # a repeated request moves to the end
        self.pending_logs[asked.name] = PendingLog(asked, server, deadline_s, due)

    def agent_has_answered(self, request: str) -> None:
        """Let the request of this name wait for its agent no longer."""
        del self.pending_logs[request]

    def take_late(self, now: float) -> Iterator[PendingLog]:
        """Yield the requests of which the agent has not answered in time; they wait no longer."""
        while self.pending_logs and now >= (first := next(iter(self.pending_logs.values()))).deadline_s:
            del self.pending_logs[first.asked.name]
            yield first

    def postpone(self, by_s: float) -> bool:
        """Give agents `by_s` seconds more to answer; return whether any request waits."""
        for pending in self.pending_logs.values():
            pending.deadline_s += by_s
        return bool(self.pending_logs)

    def wait_for_admission(self, asked: ClientRequest, spec: JobSpec) -> None:
        """Let the submission of a job with a deadline wait for the others of this turn."""
        self.newcomers[asked.name] = asked, spec

    def take_newcomers(self) -> list[tuple[ClientRequest, JobSpec]]:
        """Return the submissions that wait for admission; they wait no longer."""
        waiting, self.newcomers = list(self.newcomers.values()), {}
        return waiting

    def wait_for_decision(self, asked: ClientRequest, job: Job, after: int) -> None:
        """Let a request that has set a share of `job` wait for the decision that follows the first `after` ones."""
        self.undecided[asked.name] = Undecided(asked, job, after)

    def take_decided(self, decisions: int) -> list[Undecided]:
        """Return the requests that waited for one of the first `decisions` decisions; they wait no longer."""
        decided = [waiting for waiting in self.undecided.values() if waiting.after != decisions]
        for waiting in decided:
            del self.undecided[waiting.asked.name]
        return decided

    # -- answers and the audit log

    def remember(self, request: str, answer: Answer, recorded: bool = False) -> None:
        """Keep the answer to the request of this name, which changed something, so that a repetition gets the same answer.

        Answers to submissions are stored as well, because a job may be over and archived before its submission is repeated.
        `recorded`: the store holds the answer already.
        """
        if isinstance(answer, Submitted) and not recorded:
            self._effects.put(request_key(request), RequestRecord(job=answer.job))
        for oldest, forgotten in self.answers.put(request, answer):
            if isinstance(forgotten, Submitted):
                self._effects.delete(request_key(oldest))

    def audit(self, now: float, asked: ClientRequest, act: str, of: str, text: str) -> None:
        """Write into the audit log that the principal of `asked` has done `act` to `of`."""
        self._effects.act(Audit(now, str(asked.who), act, of, True, text, asked.envelope.id))

    def audit_refusal(self, now: float, who: Principal, act: str, of: str, text: str, request: str = "") -> None:
        """Write into the audit log that `who` was refused `act` on `of`.

        Of many refusals only some are written, each with the number left out since the last line. A client repeats a request
        until an answer arrives; the repetitions count as one attempt.
        """
        name = str(who)
        attempts = self.attempts.pop(name, None) or Attempts()
        self.attempts[name] = attempts
        if len(self.attempts) > KEPT_PRINCIPALS:
            self.attempts.popitem(last=False)
        if request and request == attempts.last:
            return
        attempts.last = request
        before = attempts.limiter.suppressed
        if attempts.limiter.allow(now):
            also = f" ({before} more attempts since the last line)" if before else ""
            self._effects.act(Audit(now, name, act, of, False, text + also, request))
