"""Servers by name: sessions with their agents, GPUs that take no new work, and the operators' decisions about them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice

from msgspec import structs

from ...protocol.messages import Acknowledged, HelloRefused, ToAgentFromController
from ...protocol.model import CordonKind, GpuAddress, JobId, Server, ServerId, Severity, WorkerId
from ...protocol.rate_limit import RateLimiter
from ...protocol.times import FIRST_SERVER_BACK_OFF_S, LONGEST_SERVER_BACK_OFF_S
from ...scheduler.kinds import Demand, Stock, most_gpus
from ..events import SendAgent
from ..records import (
    ADOPTED,
    OVERRULED,
    REMOVED,
    SLOW,
    AdoptionRecord,
    Cordon,
    OverruleRecord,
    RemovalRecord,
    ServerRecord,
    SlowFinding,
    SlowRecord,
    server_key,
)
from ..sessions import ForeignServer, Forgeries, Health, Session
from ..taints import NOTHING_OVERRULED, Taint, nothing_sentence, taints, trusted_codes
from .effects import Effects

MORE_THAN_ANY_SESSION = 1 << 62  # more messages than any session sends to an agent
KEPT_REMOVALS = 1000  # removed servers with agents that ran at the removal
KEPT_DEMANDS = 1000  # cached results of `most_gpus`
KEPT_REFUSED = 1000  # agents whose refusal is remembered; the refusal of a forgotten one is reported again
KEPT_MET = 4096  # noted workers of a server
TOLD_AT_ONCE, TELL_INTERVAL_S = 20, 30.0  # rate limit for events of one server: burst, then one per interval (seconds)
_NO_TAINTS: dict[int, Taint] = {}


class Servers:
    """Known servers. `request`: called after each change that can alter a scheduling decision."""

    def __init__(self, incarnation: str, effects: Effects, request: Callable[[], None]) -> None:
        """Begin without servers. `incarnation`: random word of this controller's start."""
        self._incarnation = incarnation
        self.sessions: dict[ServerId, Session] = {}
        self.known_gpus = 0  # GPUs of all known servers, absent ones included
        self.foreign: dict[ServerId, ForeignServer] = {}
        self.adopted: dict[ServerId, str] = {}  # servers to be taken over, with the identities of their agents
        self.removed: dict[ServerId, RemovalRecord] = {}  # removed by operators while their agents ran, oldest first
        self.refused: OrderedDict[tuple[ServerId, str], None] = OrderedDict()  # refused agents reported to the operator
        # The workers of each server at its first hello to this controller, with the uids of their jobs: only these
        # may be ahead of the store (`forgery`).
        self.met: dict[ServerId, dict[WorkerId, str]] = {}
        self.forged: dict[ServerId, Forgeries] = {}
        self.health: dict[ServerId, Health] = {}  # health of servers on which a worker failed to start
        self.gpu_health: dict[GpuAddress, Health] = {}  # health of GPUs on which scripts fail at their start
        self.overruled: dict[ServerId, OverruleRecord] = {}  # operators' decisions about troubles and cordons
        # GPUs that take no new work; servers without such GPUs are absent (`taints`).
        self.tainted: dict[ServerId, dict[int, Taint]] = {}
        self.slow: dict[ServerId, tuple[SlowFinding, ...]] = {}  # what jobs have found of slow GPUs (`slow_findings`)
        self.offers_nothing: dict[ServerId, str] = {}  # servers without a GPU, and the reasons that their agents give
        self.told_troubles: dict[ServerId, RateLimiter] = {}
        self.awaited: set[ServerId] = set()  # servers in the store that have sent no hello since the start
        # Servers with a lease, and awaited servers; the longest silent server is first.
        self.leases: OrderedDict[ServerId, None] = OrderedDict()
        self._most_gpus: dict[Demand, int] = {}  # largest share by demand; emptied when the known servers change
        self._effects = effects
        self._request = request

    def what_if(self, effects: Effects, request: Callable[[], None]) -> Servers:
        """Return a copy for a trial decision. Sessions and health records themselves are shared, and stay unchanged."""
        found = Servers(self._incarnation, effects, request)
        found.known_gpus, found.awaited = self.known_gpus, set(self.awaited)
        found.sessions, found.overruled = dict(self.sessions), dict(self.overruled)
        found.health, found.gpu_health = dict(self.health), dict(self.gpu_health)
        found.tainted, found.offers_nothing = dict(self.tainted), dict(self.offers_nothing)
        return found

    # -- sessions

    def recover(self, known: ServerRecord, now: float) -> None:
        """Add a server of the store, which is awaited until its agent says hello or its lease expires."""
        name = known.server.server
        self.put_session(Session(known.server, alive=False, last_heard_s=now, agent=known.agent))
        self.awaited.add(name)
        self.leases[name] = None

    def put_session(self, session: Session) -> None:
        """Add the session of a new server, or replace the session of a known one."""
        name = session.server.server
        before = self.sessions.get(name)
        self.sessions[name] = session
        if before is None or before.server.gpus != session.server.gpus:
            self._most_gpus.clear()
        self.known_gpus += len(session.server.gpus) - (len(before.server.gpus) if before is not None else 0)
        if before is None or not before.alive or before.server != session.server:
            self._request()

    def greet(self, server: ServerId) -> bool:
        """Await no hello of `server`, as it has come; return whether it was awaited."""
        expected = server in self.awaited
        self.awaited.discard(server)
        return expected

    def heard_of(self, now: float, session: Session) -> None:
        """Renew the lease of the session's server at `now`."""
        session.heard(now)
        name = session.server.server
        self.leases[name] = None
        self.leases.move_to_end(name)

    def lose(self, session: Session) -> None:
        """Mark a server as lost, since its lease has expired."""
        name = session.server.server
        session.lost()
        self.awaited.discard(name)
        self.leases.pop(name, None)
        self._request()

    def forget(self, server: ServerId) -> None:
        """Forget a server that has no workers, because it is gone or was removed."""
        self.awaited.discard(server)
        self.leases.pop(server, None)
        session = self.sessions.pop(server)
        self.known_gpus -= len(session.server.gpus)
        self._most_gpus.clear()
        self.health.pop(server, None)
        for gpu in [gpu for gpu in self.gpu_health if gpu.server == server]:
            del self.gpu_health[gpu]
        self.tainted.pop(server, None)
        self.offers_nothing.pop(server, None)
        self.told_troubles.pop(server, None)
        self.record_overruled(server, NOTHING_OVERRULED)
        self.record_slow(server, ())
        self.forged.pop(server, None)
        self.record_adoption(server, None)
        self._effects.delete(server_key(server))
        if session.alive:
            self._request()

    def leave_out(self, before: float, now: float) -> bool:
        """Leave the time from `before` to `now`, in which the controller was absent, out of all leases and back-offs.

        Returns whether any server has a lease.
        """
        waits = False
        for name, session in self.sessions.items():
            if session.alive or name in self.awaited:
                session.heard(now)  # all sessions, so the order by silence stays as it is
                waits = True
        for foreign in self.foreign.values():
            foreign.heard(foreign.last_heard_s + now - before)
        for health in (*self.health.values(), *self.gpu_health.values()):
            health.leave_out(now - before)
        return waits

    # -- agents that are no members: those of other clusters, refused ones, and forgers

    def put_foreign(self, foreign: ForeignServer) -> ForeignServer | None:
        """Note a server of another cluster; return its state at its earlier hello, if there was one."""
        before = self.foreign.get(foreign.server.server)
        self.foreign[foreign.server.server] = foreign
        return before

    def drop_foreign(self, server: ServerId) -> None:
        """Forget that `server` belonged to another cluster, as it joins this one."""
        self.foreign.pop(server, None)

    def refuse(self, server: ServerId, agent: str) -> bool:
        """Note a refused agent; return whether its refusal has to be reported: it is not remembered yet."""
        if (server, agent) in self.refused:
            return False
        self.refused[server, agent] = None
        if len(self.refused) > KEPT_REFUSED:
            self.refused.popitem(last=False)
        return True

    def admit(self, server: ServerId, agent: str) -> None:
        """Forget the refusal of an agent, so that a later one is reported again."""
        self.refused.pop((server, agent), None)

    def meet(self, server: ServerId, workers: Mapping[WorkerId, str]) -> None:
        """Note the workers in the first hello of `server` to this controller, with the uids of their jobs."""
        if server not in self.met:
            self.met[server] = dict(islice(workers.items(), KEPT_MET))

    def refuse_report(self, server: ServerId, what: str) -> Forgeries:
        """Count a refused report of the agent of `server` about `what`; return all of them."""
        found = self.forged.setdefault(server, Forgeries())
        found.refused(what)
        return found

    # -- records

    def recover_adoption(self, server: ServerId, agent: str) -> None:
        """Take in from the store that `server` with this agent is to be taken over."""
        self.adopted[server] = agent

    def recover_overruled(self, server: ServerId, record: OverruleRecord | None) -> None:
        """Take in the store's record of the operators' decisions about `server`; the caller updates its taints."""
        self.overruled.pop(server, None)
        if record is not None:
            self.overruled[server] = record

    def recover_slow(self, server: ServerId, record: SlowRecord | None) -> None:
        """Take in the store's record of what jobs have found of slow GPUs of `server`."""
        self.slow.pop(server, None)
        if record is not None:
            self.slow[server] = record.findings

    def recover_removals(self, removals: Mapping[ServerId, RemovalRecord]) -> None:
        """Take in from the store which servers operators have removed while their agents ran."""
        self.removed = dict(sorted(removals.items(), key=lambda one: one[1].since_s))

    def record(self, session: Session) -> None:
        """Record a server with the identity of its agent."""
        record = ServerRecord(server=session.server, agent=session.agent)
        self._effects.put(server_key(session.server.server), record)

    def record_adoption(self, server: ServerId, agent: str | None) -> None:
        """Record that `server` with this agent is to be taken over. None: the takeover is complete or void."""
        if agent is not None:
            self.adopted[server] = agent
            self._effects.put(ADOPTED + server, AdoptionRecord(agent=agent))
        elif self.adopted.pop(server, None) is not None:
            self._effects.delete(ADOPTED + server)

    def record_overruled(self, server: ServerId, record: OverruleRecord) -> None:
        """Record the operators' decisions about `server`, in place of earlier ones."""
        if record != NOTHING_OVERRULED:
            self.overruled[server] = record
            self._effects.put(OVERRULED + server, record)
        elif self.overruled.pop(server, None) is not None:
            self._effects.delete(OVERRULED + server)

    def record_slow(self, server: ServerId, findings: tuple[SlowFinding, ...]) -> None:
        """Record what jobs have found of slow GPUs of `server`, in place of earlier findings."""
        if findings:
            self.slow[server] = findings
            self._effects.put(SLOW + server, SlowRecord(findings=findings))
        elif self.slow.pop(server, None) is not None:
            self._effects.delete(SLOW + server)

    def record_removal(self, server: ServerId, record: RemovalRecord | None) -> None:
        """Record that the agent that runs on `server` is not admitted any more. None: an agent of that name may be."""
        if record is None:
            if self.removed.pop(server, None) is not None:
                self._effects.delete(REMOVED + server)
            return
        self.removed.pop(server, None)
        self.removed[server] = record
        self._effects.put(REMOVED + server, record)
        if len(self.removed) > KEPT_REMOVALS:
            self.record_removal(next(iter(self.removed)), None)

    # -- GPUs

    def stocks(self) -> list[Stock]:
        """Return the stock of each known server, absent servers included."""
        return [session.whole.stock for _, session in sorted(self.sessions.items())]

    def most_gpus(self, demand: Demand) -> int:
        """Return the largest share that a job with this demand could have, alone on all known servers."""
        if demand not in self._most_gpus:
            if len(self._most_gpus) >= KEPT_DEMANDS:
                self._most_gpus.clear()
            self._most_gpus[demand] = most_gpus(demand, self.stocks())
        return self._most_gpus[demand]

    @property
    def present_gpus(self) -> int:
        """Number of GPUs of all servers with a live session."""
        return sum([len(session.server.gpus) for session in self.sessions.values() if session.alive])

    def gpu_name(self, gpu: GpuAddress) -> str:
        """Return the product name of `gpu`, or "" if it is not known."""
        session = self.sessions.get(gpu.server)
        gpus = session.server.gpus if session is not None else ()
        return next((each.name for each in gpus if each.index == gpu.index), "")

    def fit(self, server: ServerId) -> bool:
        """Return whether workers may be started on `server`: not for a while after a failed start."""
        health = self.health.get(server)
        return health is None or health.until_s is None

    def taint(self, gpu: GpuAddress) -> Taint | None:
        """Return why `gpu` takes no new work. None: the GPU does, unless its server is unfit (`fit`)."""
        return self.tainted.get(gpu.server, _NO_TAINTS).get(gpu.index)

    def usable(self, gpu: GpuAddress) -> bool:
        """Return whether the state of `gpu` and of its server allows a worker to start there."""
        session = self.sessions.get(gpu.server)
        return session is not None and session.alive and self.fit(gpu.server) and self.taint(gpu) is None

    def vacant(self, gpu: GpuAddress) -> bool:
        """Return whether `gpu` is usable and certainly has no process without a job (`sessions.Orphan`)."""
        if not self.usable(gpu):
            return False
        session = self.sessions[gpu.server]
        if any(gpu in orphan.gpus for orphan in session.orphans.values()):
            return False
        return not any(gpu.index in local.all_gpus for local in session.unknown.values())

    def update_taints(self, server: ServerId) -> tuple[dict[int, Taint], dict[int, Taint]]:
        """Determine the taints of the GPUs of `server` again.

        Returns the changed ones by GPU index: before, and after.
        """
        before, session = self.tainted.pop(server, {}), self.sessions.get(server)
        self.offers_nothing.pop(server, None)
        found: dict[int, Taint] = {}
        if session is not None:
            if why := nothing_sentence(session.server, session.troubles):
                self.offers_nothing[server] = why
            failing = {
                gpu.index: health.reason
                for gpu, health in self.gpu_health.items()
                if gpu.server == server and health.until_s is not None
            }
            found = taints(session.server, session.troubles, self.overruled.get(server, NOTHING_OVERRULED), failing)
            if found:
                self.tainted[server] = found
        changed = sorted(gpu for gpu in {*before, *found} if _causes(before.get(gpu)) != _causes(found.get(gpu)))
        if changed:
            self._request()
        return {gpu: before[gpu] for gpu in changed if gpu in before}, {
            gpu: found[gpu] for gpu in changed if gpu in found
        }

    def trusted(self, gpu: GpuAddress) -> tuple[str, ...]:
        """Return the codes of the troubles of `gpu` and its server that an operator has overruled."""
        session, overruled = self.sessions.get(gpu.server), self.overruled.get(gpu.server)
        return trusted_codes(session.troubles, overruled, gpu.index) if session is not None and overruled else ()

    def left_at_once(self) -> frozenset[GpuAddress]:
        """Return the GPUs that jobs vacate at once, by preemption if need be, for a borrower or an operator's drain."""
        return frozenset(
            GpuAddress(server=server, index=index)
            for server, found in self.tainted.items()
            for index, taint in found.items()
            if taint.drain is CordonKind.DRAIN_BY_PREEMPTING
        )

    # -- failed starts

    def start_failed(self, place: ServerId | GpuAddress, reason: str) -> Health:
        """Note why a start on a server or GPU failed. Returns its health record; the caller may back off."""
        health = self._health_of(place)
        health.start_failed(reason)
        return health

    def doubt(self, place: ServerId | GpuAddress, job: JobId, kind: str, owner: str) -> Health:
        """Count a failure of a job's script at its start on a server or GPU; return the health record of that."""
        health = self._health_of(place)
        health.doubt(job, kind, owner)
        return health

    def _health_of(self, place: ServerId | GpuAddress) -> Health:
        if isinstance(place, GpuAddress):
            return self.gpu_health.setdefault(place, Health())
        return self.health.setdefault(place, Health())

    def back_off(self, now: float, health: Health, suspected: bool, first_s: float = FIRST_SERVER_BACK_OFF_S) -> None:
        """Begin a back-off: `first_s` seconds at first, and longer after each further failure in a row."""
        back_off_s = min(LONGEST_SERVER_BACK_OFF_S, first_s * 2.0 ** min(health.failures, 30))
        health.back_off(now + back_off_s, suspected)
        self._request()

    def clear(self, server: ServerId) -> None:
        """Forget the failed starts on `server`."""
        if self.health.pop(server, None) is not None:
            self._request()

    def clear_gpu(self, gpu: GpuAddress) -> bool:
        """Forget the failed starts on `gpu`; return whether there were any. The caller updates the taints of its server."""
        return self.gpu_health.pop(gpu, None) is not None

    def end_back_offs(self, now: float) -> list[ServerId]:
        """End the back-offs that have expired. Returns the servers of single GPUs that may be tried again: the caller
        updates their taints."""
        for health in self.health.values():
            if health.end_back_off(now):
                self._request()
        return [gpu.server for gpu, health in self.gpu_health.items() if health.end_back_off(now)]

    def may_tell(self, now: float, server: ServerId) -> bool:
        """Return whether an event about the GPUs of `server` may be reported now, by the rate limit on such events."""
        return self.told_troubles.setdefault(server, RateLimiter(TOLD_AT_ONCE, TELL_INTERVAL_S)).allow(now)

    # -- suppositions, in a copy for a trial decision

    def suppose_cordons(self, server: ServerId, cordons: tuple[Cordon, ...]) -> None:
        """Suppose that only these cordons of `server` stand."""
        self.overruled[server] = structs.replace(self.overruled[server], cordons=cordons)
        self.update_taints(server)

    def suppose_mended(self, server: ServerId, gpu: int | None) -> None:
        """Suppose that a GPU, or the server as a whole (None), has no faults and no failed starts."""
        session = self.sessions[server]
        kept = tuple(trouble for trouble in session.troubles if trouble.gpu != gpu)
        self.sessions[server] = replace(session, troubles=kept)
        if gpu is None:
            self.health.pop(server, None)
        else:
            self.clear_gpu(GpuAddress(server=server, index=gpu))
        self.update_taints(server)

    def suppose_back(self, server: ServerId) -> None:
        """Suppose that a lost server is connected, with no processes on it."""
        self.sessions[server] = replace(self.sessions[server], alive=True, unknown={}, orphans={})
        self.update_taints(server)

    def suppose_server(self, now: float, server: Server) -> None:
        """Suppose a further server."""
        self.sessions[server.server] = Session(server=server, alive=True, last_heard_s=now)

    # -- messages to agents

    def send(self, server: ServerId, message: ToAgentFromController) -> None:
        """Send `message` to the agent of `server` if its session is alive; otherwise the next hello resynchronizes it."""
        session = self.sessions.get(server)
        if session is None or not session.alive:
            return
        if not isinstance(message, Acknowledged):
            session.sends()
        self._effects.act(SendAgent(server, message, session.agent))

    def send_foreign(self, foreign: ForeignServer, message: ToAgentFromController) -> None:
        """Send `message` to the agent of a server that belongs to another cluster."""
        if not isinstance(message, Acknowledged):
            foreign.sends()
        self._effects.act(SendAgent(foreign.server.server, message, foreign.agent))

    def refuse_agent(self, server: ServerId, agent: str, reason: str) -> None:
        """Refuse the hello of an agent."""
        self._effects.act(SendAgent(server, HelloRefused(reason=reason), agent))

    def ask_for_hello(self, server: ServerId, agent: str) -> None:
        """Make an agent without a session here say hello.

        The acknowledgement counts more sent messages than any agent can have received, so the agent finds some missing.
        """
        again = Acknowledged(incarnation=self._incarnation, sent=MORE_THAN_ANY_SESSION)
        self._effects.act(SendAgent(server, again, agent))


def _causes(taint: Taint | None) -> tuple[Severity, tuple[str, ...]] | None:
    return (taint.severity, taint.causes) if taint is not None else None
