"""The controller's shell: two sockets, the store's file and the clock around `turn.Turn` (cluster 1, 3)."""

from __future__ import annotations

import gc
import logging
import os
import random
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import zmq

from .. import __version__
from ..protocol.codec import Codec
from ..protocol.errors import OperatorError, PeerError
from ..protocol.messages import Envelope, Refused, Reply, ToControllerFromAgent
from ..protocol.model import ServerId
from ..runtime import locks, readiness, transport
from ..runtime.clock import WallClock
from ..runtime.loop import Loop
from ..scheduler.scheduler import Scheduler
from .auditlog import AuditLog
from .cluster import Settings
from .config import ControllerConfig
from .events import Action, AgentMessage, Audit, ClientRequest, Fetch, Outgoing, Record, ReplyClient, SendAgent, Warn
from .jobs.throughput import Profiles
from .machine import ControllerMachine
from .requests.answers import changes as is_change
from .store import SqliteStore
from .turn import Turn

log = logging.getLogger(__name__)

STORE_FILE = "cluster.db"
LOCK_FILE = "controller.lock"
AUDIT_FILE = "audit.log"
COLLECT_INTERVAL_S = (
    3600.0  # between two looks for unreachable cycles: in a large cluster each takes tenths of a second
)


class ControllerDaemon:
    """One controller process."""

    def __init__(self, options: ControllerConfig, configured: Scheduler, profiles: Profiles) -> None:
        """Opens the store, recovers, listens. Raises OperatorError if one of these cannot be done."""
        state = _state_directory(options)
        self._lock = locks.hold(state / LOCK_FILE, f"{state}: another controller runs with this state directory")
        self._clock = WallClock()
        self._store = SqliteStore(state / STORE_FILE)
        self._audit = AuditLog(state / AUDIT_FILE)

        def build(now: float, records: Sequence[tuple[str, bytes]]) -> ControllerMachine:
            settings = Settings(
                cluster=options.cluster,
                incarnation=secrets.token_hex(16),
                version=__version__,
                pid=os.getpid(),
                server_lease_s=options.server_lease_s,
                max_restarts=options.max_restarts,
                measuring=options.how_to_measure,
                profiles=profiles,
                keeping=options.keeping,
                open_jobs_per_user=options.open_jobs_per_user,
            )
            log.info("recovering from %d records", len(records))
            secret = secrets.token_hex(32)  # not the incarnation, which each agent is told: job uids are secrets
            return ControllerMachine(settings, configured, random.Random(secret), now, records)

        self._turn = Turn(self._store, build, self._clock.now())
        self._from_agent: Codec[ToControllerFromAgent] = Codec(ToControllerFromAgent)
        self._from_client: Codec[Envelope] = Codec(Envelope)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._clients = transport.router(self._context)
        self._agents = transport.router(self._context)
        clients = transport.bind(self._clients, options.listen_clients)
        agents = transport.bind(self._agents, options.listen_agents)
        self._collect_at_s = time.monotonic() + COLLECT_INTERVAL_S
        self._changes: list[
            ClientRequest
        ] = []  # taken in at the end of a turn: who only looks need not wait for a commit
        self._loop = Loop(self._clock, self._on_turn, self._turn.next_deadline)
        self._loop.add_socket(self._clients, self._on_client)
        self._loop.add_socket(self._agents, self._on_agent)
        log.info("cluster=%s policy=%s", options.cluster, self._turn.machine.cluster.policy.name)
        log.info("listening for clients at %s, for agents at %s", clients, agents)

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        self._loop.stop_on_signals()
        readiness.notify("READY=1")
        try:
            self._loop.run()
        finally:
            readiness.notify("STOPPING=1")
            self._loop.close()
            self._clients.close()
            self._agents.close()
            self._context.term()
            self._store.close()
            self._audit.close()
            os.close(self._lock)

    # -- input

    def _on_agent(self, frames: list[bytes]) -> None:
        identity, data = frames[0], frames[-1]
        if identity.startswith(b"\0"):
            log.debug("dropped a message that has waited in a connection which its agent has replaced")
            return
        try:
            message = self._from_agent.decode(data)
            server, _, agent = identity.decode().partition("#")
        except (PeerError, UnicodeDecodeError) as error:
            log.warning("dropped a message of agent %r: %s", identity[:64], error)
            return
        self._turn.take(self._clock.now(), AgentMessage(ServerId(server), message, agent))

    def _on_client(self, frames: list[bytes]) -> None:
        client, data = frames[0], frames[-1]
        try:
            envelope = self._from_client.decode(data)
        except PeerError as error:
            log.warning("refused a request: %s", error)
            request = _readable_id(data)
            if request is not None:
                answer = Refused(reason=f"the request is not understood: {error}", bad_input=True)
                self._turn.reply(ReplyClient(client, Reply(id=request, answer=answer)))
            return
        event = ClientRequest(client, envelope)
        if is_change(envelope.request):
            self._changes.append(event)
            return
        self._turn.take(self._clock.now(), event)
        self._send(self._turn.told())

    # -- output

    def _on_turn(self) -> None:
        changes, self._changes = self._changes, []
        for change in changes:
            self._turn.take(self._clock.now(), change)
        self._send(self._turn.finish_ahead(self._clock.now()))
        self._send(self._turn.finish(self._clock.now()))
        if time.monotonic() >= self._collect_at_s:
            gc.collect()
            self._collect_at_s = time.monotonic() + COLLECT_INTERVAL_S

    def _send(self, actions: list[Outgoing]) -> None:
        self._audit.write([action for action in actions if isinstance(action, Audit)])
        for action in actions:
            self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        match action:
            case SendAgent(server, message, agent):
                data = msgspec.msgpack.encode(message)
                if not transport.send(self._agents, (f"{server}#{agent}" if agent else server).encode(), data):
                    log.debug("agent %s is not there for %s", server, type(message).__name__)
            case ReplyClient(client, reply):
                transport.send(self._clients, client, _encode_reply(self._from_client, reply))
            case Warn(text):
                log.warning("%s", text)
            case Audit():
                pass  # written before the first answer of the turn
            case Record() | Fetch():
                raise AssertionError("the turn commits and reads records itself")


def _encode_reply(codec: Codec[Envelope], reply: Reply) -> bytes:
    try:
        return codec.encode(reply)
    except PeerError as error:
        return codec.encode(Reply(id=reply.id, answer=Refused(reason=f"the answer is too large: {error}")))


def _readable_id(data: bytes) -> str | None:
    """The id of a request that is not one of this version, so that its sender need not wait for the timeout."""
    try:
        found = msgspec.msgpack.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    request = found.get("id") if isinstance(found, dict) else None
    return request if isinstance(request, str) and len(request) <= 256 else None


def _state_directory(options: ControllerConfig) -> Path:
    try:
        options.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise OperatorError(f"state_directory: {options.state} cannot be made: {error.strerror}") from None
    return options.state
