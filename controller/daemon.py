"""Controller process: sockets, keys, the store and the clock around `turn.Turn`.

With a store of its own (SQLite) the controller reigns from its start to its end. Several controllers that share a store
(etcd) elect a leader (`election`). A standby refers agents to the leader, and refuses requests of clients with the
leader's address.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import secrets
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from .. import __version__
from ..protocol import terms
from ..protocol.codec import MAX_MESSAGE_BYTES, MAX_REQUEST_BYTES, Codec
from ..protocol.errors import ElasticError, OperatorError, PeerError
from ..protocol.messages import AgentHello, Envelope, GetControllers, Refused, Reply, StartWorker, ToControllerFromAgent
from ..protocol.model import JobId, ServerId
from ..protocol.principals import CLIENT_ROLES, Principal, Role
from ..protocol.rate_limit import SubjectRateLimiter
from ..protocol.times import BELIEVED_AGAIN_S, leadership
from ..runtime import locks, memory, readiness, transport
from ..runtime.clock import StepMeter, WallClock
from ..runtime.config import log_refusal, taken
from ..runtime.directories import check_way, private_directory
from ..runtime.keys import JobKeys, KeyDirectory, Pair, Principals
from ..runtime.listener import EndpointConfig, Listener, Peer
from ..runtime.logs import about
from ..runtime.loop import Loop
from . import agent_connections
from .agent_connections import AgentConnections
from .auditlog import AuditLog
from .config import RELOADED, Configuration, ControllerConfig
from .election.candidacy import Begin, Candidacy, End
from .events import (
    Action,
    AgentMessage,
    Audit,
    ClientRequest,
    Event,
    Fetch,
    NoticeDone,
    Outgoing,
    Reconfigured,
    Record,
    RecordsRefused,
    ReplyClient,
    SendAgent,
    StandDown,
    Warn,
)
from .machine import ControllerMachine
from .metrics import Watch, figures, standby_figures
from .notifying import Notifier
from .reign import Reign
from .requests.answers import changes as is_change
from .sealing import Seals
from .settings import Settings
from .shared_store import controllers_of, hearing_of, presence_of, shared_job_keys
from .store import Compacted, Deposed, SqliteStore, Store, StoreUnavailable
from .store.etcd import EtcdStore
from .turn import Build, Turn

if TYPE_CHECKING:
    from ..protocol.figures import Figure
    from ..runtime.metrics import Exporter

log = logging.getLogger(__name__)

STORE_FILE = "cluster.db"
LOCK_FILE = "controller.lock"
AUDIT_FILE = "audit.log"
COLLECT_INTERVAL_S = 3600.0  # between two collections of garbage, which take tenths of a second in a large cluster
LOOK_INTERVAL_S = 1.0  # between two checks of the list of known principals
REFUSED_INTERVAL_S = 2.0  # between two looks at the records of refused jobs

CLIENTS = EndpointConfig(
    name="clients",
    remote=CLIENT_ROLES,
    local=CLIENT_ROLES,
    frame_bytes=MAX_REQUEST_BYTES,
    waiting_out=64,  # a client sends one request at a time, and repeats it
    visitors=True,
)
AGENTS = EndpointConfig(
    name="agents",
    remote=(Role.SERVER,),
    local=(Role.OPERATOR,),  # on the controller's machine: the controller's user, or root
    frame_bytes=MAX_MESSAGE_BYTES,
    waiting_out=transport.QUEUE_MESSAGES,
    visitors=True,  # a root agent's unit lacks CAP_DAC_OVERRIDE; other users are identified, and refused
    repeated=agent_connections.is_repeated,
)


class ControllerDaemon:
    """Controller process: accepts messages of agents and clients, and applies them to the reign while it leads."""

    def __init__(self, configuration: Configuration) -> None:
        """Listen, open the store and recover from its records. Messages that arrive meanwhile wait.

        Raises OperatorError if the state directory, the keys, an address or the store cannot be used.
        """
        options = configuration.options
        state = _state_directory(options)
        self._lock = locks.hold(state / LOCK_FILE, f"{state}: another controller runs with this state directory")
        self._clock = WallClock()
        self._state = state
        self._audit = AuditLog(state / AUDIT_FILE)
        self._present = configuration
        self._watch = Watch()
        self._from_agent: Codec[ToControllerFromAgent] = Codec(ToControllerFromAgent)
        self._from_client: Codec[Envelope] = Codec(Envelope)
        self._context = transport.context(io_threads=2)  # one for the network, one for local peers
        self._loop = Loop(self._clock, self._on_turn, self._next_deadline)
        self._notifier = Notifier(options.notify, self._loop.wake)
        self._keys = KeyDirectory(options.keys)
        pair, principals = _keys(self._keys, (*options.clients_at, *options.agents_at))
        self._listener = Listener(self._context, self._loop, pair, principals, options.bounds, look=self._look_at_keys)
        self._loop.feed_only_if(self._listener.is_receiving)
        self._memory = memory.Keeper()
        self._lines = AgentConnections()
        self._rate_limiter = SubjectRateLimiter()
        clients = self._listener.listen(CLIENTS, options.clients_at, self._on_client)
        agents = self._listener.listen(AGENTS, options.agents_at, self._on_agent)
        self._reign: Reign | None = None  # None: this controller is a standby
        self._candidacy: Candidacy | None = None  # None: this is the only controller of the cluster
        self._seals: Seals | None = None  # seals of a shared store; None: a private store has none
        self._store: Store = self._open_store(options)
        self._look_at_s = self._refused_at_s = time.monotonic() + LOOK_INTERVAL_S
        self._collect_at_s = time.monotonic() + COLLECT_INTERVAL_S
        self._changes: list[
            ClientRequest
        ] = []  # requests of this turn that change something: handled last, so that others need not wait for a commit
        self._exporter = _exporter(options, self._loop.wake)
        log.info("listening for clients at %s, for agents at %s", ", ".join(clients), ", ".join(agents))

    def _open_store(self, options: ControllerConfig) -> Store:
        """Open the store. With SQLite, begin to reign at once; with etcd, stand for election."""
        if self._present.etcd is None or options.etcd is None:
            store = SqliteStore(self._state / STORE_FILE)
            steps = StepMeter()
            turn = Turn(store, self._build(0), self._clock.now(), self._watch)  # recovers while agents connect
            self._begin(Reign(turn, JobKeys.kept_in(self._state), steps))
            return store
        access, root = self._present.etcd, options.etcd.root_of(options.cluster)
        times = leadership(options.leader_lease_s)
        self._seals = seals = Seals(options.keys, options.state)
        shared = EtcdStore(access, root, seals=seals)
        seals.look(shared)
        elections = EtcdStore(replace(access, timeout_s=min(access.timeout_s, times.answer_s)), root)
        presence = presence_of(options, time.time())
        self._candidacy = Candidacy(shared, elections, presence, times, hearing_of(options), self._loop.wake)
        self._candidacy.start()
        return shared

    def _build(self, term: int) -> Build:
        """Return the function that builds the machine of a reign with `term`; 0: the next term of the store."""

        def build(now: float, records: Sequence[tuple[str, bytes]]) -> ControllerMachine:
            settings = _settings(self._present, secrets.token_hex(16), term)
            log.info("recovering from %d records", len(records))
            secret = secrets.token_hex(32)  # separate from the incarnation, which agents know: job uids are secrets
            return ControllerMachine(settings, self._present.scheduler, random.Random(secret), now, records)

        return build

    def run(self, again: Callable[[], Configuration] | None = None) -> None:
        """Serve until SIGTERM or SIGINT.

        At SIGHUP, read the list of keys and the configuration again; `again` returns the new configuration.
        """
        self._loop.stop_on_signals()
        self._loop.on_signal(signal.SIGHUP, lambda: self._on_hangup(again))
        readiness.notify("READY=1")
        self._tell_role()
        try:
            self._loop.run()
        finally:
            readiness.notify("STOPPING=1")
            if self._candidacy is not None:
                self._candidacy.close()
            if self._exporter is not None:
                self._exporter.close()
            self._notifier.close()
            self._loop.close()
            self._listener.close()
            self._context.term()
            self._store.close()
            self._audit.close()
            os.close(self._lock)

    def _on_hangup(self, again: Callable[[], Configuration] | None) -> None:
        self._look_at_keys()
        if again is not None:
            self._reload(again)

    def _reload(self, again: Callable[[], Configuration]) -> None:
        readiness.reloading()
        try:
            new = again()
            options = taken(self._present.options, new.options, RELOADED)
            options.begin_log()
        except ElasticError as error:
            log_refusal(error)
        else:
            if options.notify != self._present.options.notify:
                self._notifier.close()
                self._notifier = Notifier(options.notify, self._loop.wake)
            self._present = replace(new, options=options)
            if self._reign is not None:
                before = self._reign.machine.cluster.settings
                settings = _settings(self._present, before.incarnation, before.term)
                self._take(self._reign, Reconfigured(settings, new.scheduler))
        readiness.notify("READY=1")

    # -- reigning and standing by

    def _begin(self, reign: Reign) -> None:
        self._reign = reign
        self._lines = AgentConnections()
        log.info("leads with term %d, cluster=%s policy=%s", reign.term, self._present.options.cluster,
                 reign.machine.cluster.planning.policy.name)  # fmt: skip

    def _end_if_over(self, reign: Reign) -> None:
        """Drop the state and all unsent messages of a reign that is over, because another controller may reign."""
        if not reign.over or self._reign is not reign:
            return
        log.warning("term %d is over: %s; stands by", reign.term, reign.over)
        self._reign = None
        self._notifier.forget()
        self._changes.clear()
        if self._candidacy is not None:
            if reign.heard:
                self._candidacy.heard(reign.heard)
            self._candidacy.resign(reign.term, reign.over)
        self._tell_role()

    def _stand_for_election(self, candidacy: Candidacy) -> None:
        match candidacy.turn():
            case Begin(term, records):
                try:
                    assert isinstance(self._store, EtcdStore), "several controllers share etcd"
                    assert self._seals is not None, "etcd's records are sealed"
                    anew = self._seals.settle(self._store)
                    job_keys = shared_job_keys(self._store, self._seals, self._state)
                    known = None if anew else records
                    steps = StepMeter()  # a clock set under another leader does not concern this reign
                    turn = Turn(self._store, self._build(term), self._clock.now(), self._watch, known)
                except (Compacted, Deposed, StoreUnavailable) as error:
                    log.warning("term %d cannot begin: %s", term, error)
                    candidacy.resign(term, str(error))
                    return
                self._begin(Reign(turn, job_keys, steps, candidacy.leads))
                candidacy.state_loaded(term)
                self._tell_role()
            case End(reason):
                if self._reign is not None:
                    self._reign.end(reason)
                    self._end_if_over(self._reign)
            case None:
                pass

    def _tell_role(self) -> None:
        """Report the role of this controller to the service manager, which shows the role to operators."""
        text = f"leads with term {self._reign.term}" if self._reign is not None else "stands by"
        readiness.notify(f"STATUS={text}")

    def _next_deadline(self) -> float | None:
        found = [self._reign.turn.next_deadline()] if self._reign is not None else []
        if self._candidacy is not None and (wait_s := self._candidacy.next_deadline()) is not None:
            found.append(self._clock.now() + wait_s)
        return min((deadline for deadline in found if deadline is not None), default=None)

    # -- input

    def _on_agent(self, peer: Peer, who: Principal, frames: list[bytes]) -> None:
        try:
            if len(frames) != 2:
                raise PeerError(f"{len(frames)} parts, not a name and a message")
            server, agent = agent_connections.parse(frames[0])
            if who.role is Role.SERVER and who.name != server:
                raise PeerError(f"it speaks for {server}")
            message = self._from_agent.decode(frames[1])
        except PeerError as error:
            self._watch.refuses("agents")
            self._warn(f"agent {who}", f"dropped a message of {who}: {error}")
            return
        self._watch.came(type(message).__name__)
        if self._candidacy is not None:
            self._candidacy.heard_from(server)
        if self._reign is None:
            self._refer_agent(peer, message)
            return
        if self._doubts(self._reign, server, message):
            return
        if not self._lines.spoke(server, agent, peer):
            log.debug("dropped a message that has waited in a connection which its agent has replaced")
            return
        self._take(self._reign, AgentMessage(server, message, agent))

    def _doubts(self, reign: Reign, server: ServerId, message: ToControllerFromAgent) -> bool:
        """Return whether to drop a hello that reports a later reign: only some are believed (`term_reports`)."""
        if self._candidacy is None or not isinstance(message, AgentHello):
            return False
        if not reign.term < message.term <= reign.term + terms.MOST_AHEAD or self._candidacy.believes(server):
            return False
        text = (
            f"dropped a hello of {server}: its agent tells of term {message.term} and has told of a later reign before; this is "
            f"term {reign.term}. It is believed once in {BELIEVED_AGAIN_S / 60:.0f} minutes"
        )
        self._warn(f"later reign {server}", text)
        return True

    def _refer_agent(self, peer: Peer, message: ToControllerFromAgent) -> None:
        """Answer the agent as a standby, with the leader's addresses.

        A later term in a hello raises the term of this controller's next campaign.
        """
        assert self._candidacy is not None, "a controller with a store of its own always reigns"
        term = self._candidacy.term
        if isinstance(message, AgentHello) and term < message.term <= term + terms.MOST_AHEAD:
            self._candidacy.heard(message.term)
        answer = msgspec.msgpack.encode(self._candidacy.standby())
        self._listener.send(peer, *(terms.stamped(term, answer) if term else (answer,)))

    def _on_client(self, client: Peer, who: Principal, frames: list[bytes]) -> None:
        data = frames[-1] if frames else b""
        try:
            envelope = self._from_client.decode(data)
        except PeerError as error:
            self._watch.refuses("clients")
            self._warn(f"client {who}", f"refused a request of {who}: {error}")
            request = _readable_id(data)
            if request is not None:
                answer = Refused(reason=f"the request is not understood: {error}", bad_input=True)
                self._reply(client, Reply(id=request, answer=answer))
            return
        self._watch.came(type(envelope.request).__name__)
        reign, candidacy = self._reign, self._candidacy
        if candidacy is not None and isinstance(envelope.request, GetControllers):
            self._reply(client, Reply(id=envelope.id, answer=controllers_of(candidacy, self._clock.now())))
            return
        if reign is None:
            assert candidacy is not None, "a controller with a store of its own always reigns"
            self._reply(client, Reply(id=envelope.id, answer=candidacy.refusal()))
            return
        event = ClientRequest(client, envelope, who)
        if is_change(envelope.request):
            self._changes.append(event)
            return
        self._take(reign, event)
        self._send(reign, reign.told())

    def _take(self, reign: Reign, event: Event) -> None:
        reign.look_at_clock(self._clock.now())
        reign.take(self._clock.now(), event)

    # -- output

    def _on_turn(self) -> None:
        if self._candidacy is not None:
            self._stand_for_election(self._candidacy)
        if self._reign is not None:
            self._turn_of(self._reign)
        if self._exporter is not None and self._exporter.wanted:
            self._exporter.publish(self._figures())
        now_s = time.monotonic()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_INTERVAL_S
            self._look_at_keys()
            self._listener.pass_time()
            if not self._listener.waiting:
                self._memory.look(now_s)
        if now_s >= self._collect_at_s:
            gc.collect()
            self._collect_at_s = now_s + COLLECT_INTERVAL_S

    def _turn_of(self, reign: Reign) -> None:
        reign.look_at_clock(self._clock.now())
        if self._seals is not None:
            if refused := self._seals.news():
                log.error("%s", refused)
            self._look_at_refused(self._seals)
            if refused or reign.machine.cluster.refused_jobs != self._seals.refused_jobs:
                self._take(reign, RecordsRefused(refused, self._seals.refused_jobs))
        changes, self._changes = self._changes, []
        for change in changes:
            self._take(reign, change)
        for number in self._notifier.take_done():
            self._take(reign, NoticeDone(number))
        self._send(reign, reign.finish_ahead(self._clock.now()))
        self._send(reign, reign.finish(self._clock.now()))
        if reign.speaks() and not reign.turn.trouble:
            self._notifier.offer(reign.machine.cluster.notices.pending)
        self._end_if_over(reign)

    def _look_at_refused(self, seals: Seals) -> None:
        """Ask the store once in a while whether the record of a refused job is still there: an operator may have removed it."""
        now_s = time.monotonic()
        if seals.refused_jobs and now_s >= self._refused_at_s and isinstance(self._store, EtcdStore):
            self._refused_at_s = now_s + REFUSED_INTERVAL_S
            seals.look_again(self._store)

    def _figures(self) -> list[Figure]:
        candidacy, reign = self._candidacy, self._reign
        floods = self._listener.floods.figures(self._listener.waiting)
        if reign is not None:
            most = self._present.options.metrics_jobs
            return [*figures(reign.turn, self._watch, self._clock.now(), most), *floods]
        assert candidacy is not None, "a controller with a store of its own always reigns"
        return [*standby_figures(candidacy.term, not candidacy.trouble), *floods]

    def _look_at_keys(self) -> None:
        """Load the list of known principals again if it has changed.

        If the list cannot be read, the present principals stay, and the next change of the list is noticed.
        """
        if not self._keys.changed():
            return
        try:
            principals = self._keys.principals()
        except OperatorError as error:
            log.warning("the keys stay as they were: %s", error)
            return
        self._listener.update(principals)

    def _warn(self, subject: str, text: str) -> None:
        since = self._rate_limiter.admit(subject, time.monotonic())
        if since is not None:
            log.warning("%s%s", text, f" ({since} times more before)" if since else "")

    def _reply(self, client: Peer, reply: Reply) -> None:
        self._listener.send(client, _encode_reply(self._from_client, reply))

    def _send(self, reign: Reign, actions: list[Outgoing]) -> None:
        """Write the audit entries, then send the messages as long as this controller still leads.

        The audit entries are written in any case, because the records of their requests are durable.
        """
        self._audit.write([action for action in actions if isinstance(action, Audit)])
        for action in actions:
            if not reign.speaks():
                return
            self._carry_out(reign, action)

    def _carry_out(self, reign: Reign, action: Action) -> None:
        match action:
            case SendAgent(server, message, agent):
                if isinstance(message, StartWorker):
                    message = msgspec.structs.replace(message, key=reign.job_keys.of(message.job, message.uid))
                peer = self._lines.of(server, agent)
                stamped = terms.stamped(reign.term, msgspec.msgpack.encode(message))
                if peer is None or not self._listener.send(peer, *stamped):
                    log.debug("agent %s is not there for %s", server, type(message).__name__)
            case ReplyClient(client, reply):
                self._reply(client, reply)
            case Warn(text, server, job):
                generation = reign.generation(JobId(job)) if job else None
                log.warning("%s", text, extra=about(job=job, generation=generation, server=server))
            case Audit():
                pass  # written by `_send`, before the first message
            case Record() | Fetch() | StandDown():
                raise AssertionError("the turn sees to that itself")


def _exporter(options: ControllerConfig, wake: Callable[[], None]) -> Exporter | None:
    """Return the exporter of metrics, or None without an address.

    Only a controller with metrics imports the HTTP server.
    """
    if options.metrics_address is None:
        return None
    from ..runtime.metrics import Exporter, read_token

    return Exporter(options.metrics_address, wake, read_token(options.metrics_token_file))


def _settings(present: Configuration, incarnation: str, term: int) -> Settings:
    options = present.options
    return Settings(
        cluster=options.cluster,
        incarnation=incarnation,
        version=__version__,
        pid=os.getpid(),
        term=term,
        server_lease_s=options.server_lease_s,
        max_restarts=options.max_restarts,
        measuring=options.how_to_measure,
        profiles=present.profiles,
        keeping=options.keeping,
        open_jobs_per_user=options.open_jobs_per_user,
        user_priority=options.user_priority,
        operator_priority=options.operator_priority,
        notifies=options.notify.any,
        idle=options.idle_rules,
        reserve_after_s=options.reserve_after_s,
    )


def _encode_reply(codec: Codec[Envelope], reply: Reply) -> bytes:
    try:
        return codec.encode(reply)
    except PeerError as error:
        return codec.encode(Reply(id=reply.id, answer=Refused(reason=f"the answer is too large: {error}")))


class _Identified(msgspec.Struct):
    """Part of a malformed request that is decoded. The rest is skipped, as its bytes may encode millions of values."""

    id: str


_IDENTIFIED = msgspec.msgpack.Decoder(_Identified)


def _readable_id(data: bytes) -> str | None:
    """Return the id of a request that cannot be decoded, so that its client gets a refusal instead of a timeout.

    Returns None if there is no id, or the id has more than 256 characters.
    """
    try:
        request = _IDENTIFIED.decode(data).id
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return request if len(request) <= 256 else None


def _state_directory(options: ControllerConfig) -> Path:
    try:
        check_way(private_directory(options.state))
    except OperatorError as error:
        raise OperatorError(f"state_directory: {error}") from None
    return options.state


def _keys(directory: KeyDirectory, addresses: Sequence[str]) -> tuple[Pair | None, Principals]:
    """Return the controller's key pair, or None, and the known principals. Keys are optional without TCP addresses.

    Raises OperatorError if the keys cannot be read, or are missing although an address is TCP.
    """
    if not directory.exists and not any(address.startswith("tcp://") for address in addresses):
        return None, Principals()
    try:
        return directory.pair(), directory.principals()
    except OperatorError as error:
        raise OperatorError(f"TCP addresses need keys: {error}") from None
