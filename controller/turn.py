"""One turn of the controller without sockets: handle all events, let time pass, commit once, then return the messages to send.

Theory of operation
-------------------
All records of one turn form one transaction, committed before the first message of the turn is sent. So a submission costs a
share of one fsync, and no message is sent that a crash could make untrue. If the store limits a transaction, the turn is
recorded in batches of whole events, and a message is sent only after its own batch is durable (`write_batch`).

A commit may fail: the disk is full, the database is locked, the device fails. Then the machine's state is ahead of the store,
and the machine is dropped with all messages that it was about to send. Agents and workers go on by themselves, as they do
without a controller. Requests are refused with the reason, so that no client takes them for recorded; read-only requests are
answered from memory (`read_only`). Once a second the store is probed. As soon as it can be written, a new machine recovers from
the store, as after a crash.

Some failures leave open whether the commit has taken place. The requests of such a turn are neither granted nor refused: their
clients are told the reason (`Refused.in_doubt`), and wait. The requests are put to the new machine, which finds a submission
that is in the store, and answers it as submitted. The audit log gets such requests at once, and perhaps a second time. A
request stays in doubt until an answer that rests on records is sent: even if the next commit certainly fails, the request may
be recorded already, and is not refused. Nor is a request refused that was answered before the store failed, and that its
client repeats because the answer was lost.

The clock may be set in a turn that cannot be recorded. The new machine then begins at the clock by which the records were
written, and receives the setting of the clock as an event, as a running machine does: no time limit expires and no time is
counted for the leap. Whether a commit of unknown outcome has recorded the setting already is read from the store, so that the
setting counts once.

One of several controllers may learn from an agent that another one reigns (`StandDown`). Then nothing of the turn is recorded
or sent, and no more events are handled. The caller has to find out which controller reigns, and needs a new `Turn` to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from msgspec.structs import replace as replace_in

from ..protocol.messages import Refused, Reply
from ..protocol.texts import span
from ..protocol.times import STORE_RETRY_S
from . import read_only
from .events import (
    Action,
    AgentMessage,
    Audit,
    ClientRequest,
    ClockSet,
    ControllerTick,
    Event,
    Fetch,
    Fetched,
    Outgoing,
    Record,
    ReplyClient,
    StandDown,
    StoreReturned,
    Warn,
)
from .jobs.archive import PREFIX as ARCHIVE
from .machine import ControllerMachine
from .requests.answers import changes
from .store.interface import AFTER_ALL, Delete, Put, Store, StoreUnavailable
from .write_batch import WriteBatch, changes_of

MOST_DOUBTED = 10_000  # requests in doubt; beyond this the oldest may be refused although they are recorded

# Makes a machine with a new incarnation from the time and all records of the store; archived records come with empty values.
Build: TypeAlias = Callable[[float, Sequence[tuple[str, bytes]]], ControllerMachine]


class Watch(Protocol):
    """Receiver of the durations of decisions and commits (`metrics`)."""

    def now(self) -> float:
        """Return the time of a monotonic clock (seconds)."""

    def decided(self, seconds: float) -> None:
        """Take in that the handling of an event with a scheduling decision took `seconds`."""

    def committed(self, seconds: float, records: int) -> None:
        """Take in that a commit of `records` records took `seconds`."""


@dataclass(frozen=True)
class _Away:
    """State while the store cannot be written."""

    since_s: float  # Unix time
    reason: str
    size: int  # bytes of the failed commit, which the probe tries to write
    probe_s: float  # next attempt (Unix time)
    memory: bool = False  # the last machine's state equals the recorded one, as far as read-only requests show it

    def by_clock_set(self, by_s: float) -> _Away:
        """Return the same times by a clock that was set forward by `by_s` seconds (back: less than 0)."""
        return replace(self, since_s=self.since_s + by_s, probe_s=self.probe_s + by_s)


@dataclass(frozen=True)
class _ClockInDoubt:
    """The setting of a clock by so many seconds, which a commit of these writes has recorded, if it took place."""

    writes: tuple[Put | Delete, ...]
    set_s: float


class Turn:
    """The controller without its sockets: `take` all events, then `finish` the turn, and send the messages returned."""

    def __init__(
        self,
        store: Store,
        build: Build,
        now: float,
        watch: Watch | None = None,
        records: Sequence[tuple[str, bytes]] | None = None,
    ) -> None:
        """Recover from the store, or from all its `records` if the caller has them already.

        Raises StoreUnavailable if the store cannot be read, and the errors of `build`. If several controllers share the store,
        every method that commits raises Deposed once another controller reigns: then nothing of the turn is recorded or sent,
        and the turn must not be used any more.
        """
        self._store = store
        self._build = build
        self._watch = watch
        self._turned_s = now
        self._set_s = 0.0  # seconds by which the clock was set since the last commit
        self._clock_in_doubt: _ClockInDoubt | None = None
        self._away: _Away | None = None
        self._stands_down: StandDown | None = None
        self._durable: list[Outgoing] = []  # messages that may be sent: the records under them are durable
        self._outbox: list[Outgoing] = []  # messages that wait for the commit of the batch
        self._batch = WriteBatch(store.limits)
        self._asked: list[ClientRequest] = []  # requests of this batch
        self._answered_before: dict[str, bool] = {}  # by name of these: whether it repeats an answered request
        self._unsettled: dict[str, ClientRequest] = {}  # by name: requests that the next machine has to handle
        # Unanswered requests that may be recorded: by name, the client and the id that an answer goes to.
        self._doubted: dict[str, tuple[bytes, str]] = {}
        self._known: frozenset[str] = (
            frozenset()
        )  # while the store is away: requests that were answered before, by name
        self._machine = self._recovered(now) if records is None else build(now, records)

    @property
    def machine(self) -> ControllerMachine:
        """The present machine; while the store cannot be written, the last one, which handles no more events."""
        return self._machine

    @property
    def trouble(self) -> str:
        """Why the store cannot be written; "" if it can."""
        return self._away.reason if self._away is not None else ""

    @property
    def clock_recorded(self) -> bool:
        """Whether the times in the store are by the present clock. False: the clock was set since, or may have been."""
        return self._set_s == 0 and self._clock_in_doubt is None

    @property
    def stands_down(self) -> StandDown | None:
        """Why this turn has ended for good: another controller may reign. None: the turn goes on."""
        return self._stands_down

    def next_deadline(self) -> float | None:
        """Return when `finish` must be called at the latest, even without events (Unix time, s); None: no deadline."""
        if self._stands_down is not None:
            return None
        return self._machine.next_deadline() if self._away is None else self._away.probe_s

    def take(self, now: float, event: Event) -> None:
        """Handle an event. If the event's records do not fit into the current batch, the batch is committed first."""
        if self._stands_down is not None:
            if isinstance(event, ClientRequest):
                self._refer(event, self._stands_down)
            return
        if isinstance(event, ClockSet) and self._away is not None:
            self._away = self._away.by_clock_set(event.by_s)
        answered = (
            isinstance(event, ClientRequest) and self._machine.cluster.clients.answers.get(event.name) is not None
        )
        actions = self._handle(now, event) if self._away is None else []
        for action in actions:
            if isinstance(action, StandDown):
                self._stand_down(action)
                return
        changed = changes_of(actions)
        if not self._batch.fits(changed):
            self._commit(now)
            if self._away is not None:
                self._away = replace(self._away, memory=False)  # the machine now has an unrecorded change
                if isinstance(event, ClientRequest) and not answered:
                    self._known -= {event.name}  # the answer is dropped with the machine
        if isinstance(event, ClockSet):
            self._set_s += event.by_s
        if self._away is not None:  # the effects of this event are dropped with the machine
            if isinstance(event, ClientRequest):
                self._refuse(event, self._away, now)
            elif self._away.memory:  # a piece of a log; agents repeat all other messages that matter
                self._outbox += read_only.answers(self._machine, event, self._read)
            return
        if isinstance(event, ClientRequest):
            self._asked.append(event)
            self._answered_before.setdefault(event.name, answered)
            if event.name in self._doubted:
                self._doubt(event)
        self._batch.add(changed)
        self._outbox += [action for action in actions if not isinstance(action, Record | Fetch | StandDown)]
        for action in actions:
            if isinstance(action, Fetch):
                self._fetch(now, action)

    def _stand_down(self, why: StandDown) -> None:
        self._stands_down = why
        self._batch.take_all()  # drop the uncommitted records
        text = f"server {why.told_by} has heard of term {why.term}, and this is term {self._machine.term}: stands down"
        self._outbox = [Warn(text, why.told_by)]
        asked, self._asked = self._asked, []
        for event in (*self._unsettled.values(), *asked):
            self._refer(event, why)
        self._unsettled.clear()

    def _refer(self, event: ClientRequest, why: StandDown) -> None:
        reason = f"this controller stands down: an agent has heard of term {why.term}"
        answer = Refused(reason=reason, standby=True)
        self._outbox.append(ReplyClient(event.client, Reply(id=event.envelope.id, answer=answer)))

    def _handle(self, now: float, event: Event) -> list[Action]:
        machine, watch = self._machine, self._watch
        if watch is None:
            return machine.handle(now, event)
        before, began_s = machine.cluster.planning.decisions, watch.now()
        actions = machine.handle(now, event)
        if machine.cluster.planning.decisions != before:
            watch.decided(watch.now() - began_s)
        return actions

    def reply(self, action: ReplyClient) -> None:
        """Send an answer at the end of the turn, to a message that could not be decoded as a request."""
        self._outbox.append(action)

    def told(self) -> list[Outgoing]:
        """Return the messages that may be sent at once: durable ones, and all others if the turn has recorded nothing."""
        return self._sendable()

    def finish_ahead(self, now: float) -> list[Outgoing]:
        """Commit the events so far if a long decision comes next, and return the messages to send; otherwise none."""
        goes_on = self._away is None and self._stands_down is None
        if goes_on and self._machine.decides_among_many(now):
            self._commit(now)
            return self.told()
        return []

    def finish(self, now: float) -> list[Outgoing]:
        """Let time pass if a deadline is due, commit, and return the messages to send."""
        if self._stands_down is not None:
            return self.told()
        if self._away is not None and (now >= self._away.probe_s or now < self._turned_s):
            self._return(now, self._away)
        if self._away is None:
            deadline = self._machine.next_deadline()
            if now < self._turned_s or (deadline is not None and deadline <= now):
                self.take(now, ControllerTick())
            self._commit(now)
        self._turned_s = now
        return self._sendable()

    def _sendable(self) -> list[Outgoing]:
        sendable, self._durable = self._durable, []
        if not self._batch:
            sendable += self._outbox
            self._outbox = []
        if self._doubted:
            answered = {
                (action.client, action.reply.id)
                for action in sendable
                if isinstance(action, ReplyClient) and not _is_doubt(action.reply)
            }
            self._doubted = {name: at for name, at in self._doubted.items() if at not in answered}
        return sendable

    # -- the store

    def _recovered(self, now: float) -> ControllerMachine:
        """Build a machine from all records and the archive's keys; archived records are read only when a request needs them."""
        before, after = ARCHIVE, ARCHIVE + AFTER_ALL
        found = [*self._store.between("", before).records, *self._store.between(after, AFTER_ALL).records]
        archived = [(key, b"") for key in self._store.keys(ARCHIVE)]
        return self._build(now, [*((record.key, record.value) for record in found), *archived])

    def _fetch(self, now: float, fetch: Fetch) -> None:
        """Read the records that a request needs; records of the uncommitted batch count as written."""
        try:
            found = tuple((key, self._read(key)) for key in fetch.keys)
        except StoreUnavailable as error:
            if isinstance(fetch.request, AgentMessage):
                return  # the agent asks again
            if fetch.request.name in self._doubted:
                self._tell_doubt(fetch.request, str(error))  # the client repeats the request
                return
            reason = f"the store cannot be read: {error}"
            reply = Reply(id=fetch.request.envelope.id, answer=Refused(reason=reason))
            self._outbox.append(ReplyClient(fetch.request.client, reply))
            return
        self.take(now, Fetched(fetch.request, found))

    def _read(self, key: str) -> bytes | None:
        write = self._batch.writes.get(key)
        if write is not None:
            return write.value if isinstance(write, Put) else None
        record = self._store.get(key)
        return record.value if record is not None else None

    def _commit(self, now: float) -> None:
        """Commit the batch in one transaction, with the last of several values for one key."""
        writes = self._batch.take_all()
        asked, self._asked = self._asked, []
        answered = frozenset(name for name, before in self._answered_before.items() if before)
        self._answered_before.clear()
        if not writes:
            return
        began_s = self._watch.now() if self._watch is not None else 0.0
        try:
            if self._store.commit((), writes) is None:
                raise AssertionError("a commit without conditions was refused")
            self._set_s = 0.0
            self._durable += self._outbox
            self._outbox = []
            if self._watch is not None:
                self._watch.committed(self._watch.now() - began_s, len(writes))
        except StoreUnavailable as error:
            self._leave(now, error, writes, asked, answered)

    def _leave(
        self,
        now: float,
        error: StoreUnavailable,
        writes: tuple[Put | Delete, ...],
        asked: Sequence[ClientRequest],
        answered: frozenset[str],
    ) -> None:
        """Drop the messages of a failed batch. Its requests are refused, or kept until their outcome is known.

        `answered`: names of its requests that were answered before, and are in the store.
        """
        if error.outcome_unknown and self._set_s != 0:
            self._clock_in_doubt, self._set_s = _ClockInDoubt(writes, self._set_s), 0.0
        size = sum(len(write.key) + len(write.value) for write in writes if isinstance(write, Put))
        memory = read_only.as_recorded(self._machine.cluster, self._store, writes)
        self._away = away = _Away(now, str(error), size, now + STORE_RETRY_S, memory)
        acts = [action for action in self._outbox if isinstance(action, Audit)] if error.outcome_unknown else []
        self._outbox = [Warn(f"nothing can be recorded any more: {error}; requests are refused, training goes on")]
        self._outbox += acts
        self._known = answered
        for event in asked:
            if error.outcome_unknown and changes(event.envelope.request):
                self._doubt(event)
            self._refuse(event, away, now)
        names = frozenset(name for name, _ in self._machine.cluster.clients.answers.items())
        self._known = names.difference(event.name for event in asked) | answered

    def _doubt(self, event: ClientRequest) -> None:
        """Note that `event` may be recorded already, so that it is not refused until its outcome is known."""
        self._doubted[event.name] = event.client, event.envelope.id
        while len(self._doubted) > MOST_DOUBTED:
            del self._doubted[next(iter(self._doubted))]

    def _tell_doubt(self, event: ClientRequest, why: str) -> None:
        """Send the reason why the request has no answer yet."""
        reason = (
            f"it is not known whether this request is recorded: {why}; the answer comes when the store can be written again; "
            "training goes on"
        )
        answer = Refused(reason=reason, in_doubt=True)
        self._outbox.append(ReplyClient(event.client, Reply(id=event.envelope.id, answer=answer)))

    def _refuse(self, event: ClientRequest, away: _Away, now: float) -> None:
        if event.name in self._doubted or event.name in self._known:
            self._doubt(event)
            self._unsettled[event.name] = event
            self._tell_doubt(event, away.reason)
            return
        if away.memory and self._answer_from_memory(event, away, now):
            return
        reason = f"the controller cannot record anything: {away.reason}; training goes on"
        self._outbox.append(ReplyClient(event.client, Reply(id=event.envelope.id, answer=Refused(reason=reason))))

    def _answer_from_memory(self, event: ClientRequest, away: _Away, now: float) -> bool:
        """Answer a read-only request. Returns False if the request changes something, or the archive cannot be read."""
        if not read_only.only_looks(event.envelope.request):
            return False
        try:
            actions = read_only.answers(self._machine, event, self._read)
        except StoreUnavailable:
            return False
        note = f"as it was {span(now - away.since_s)} ago: nothing can be recorded since then ({away.reason}); training goes on"
        for action in actions:
            if isinstance(action, ReplyClient):
                action = replace(action, reply=replace_in(action.reply, note=note))
            self._outbox.append(action)
        return True

    def _return(self, now: float, away: _Away) -> None:
        """Probe the store. If it can be written, go on with a new machine."""
        try:
            self._store.probe(away.size)
            self._settle_clock()
            self._machine = self._recovered(now - self._set_s)  # the records have times of the clock before it was set
        except StoreUnavailable as error:
            self._away = _Away(away.since_s, str(error), away.size, now + STORE_RETRY_S, away.memory)
            return
        self._away = None
        if (set_s := self._set_s) != 0:
            self._set_s = 0.0
            self.take(now, ClockSet(set_s))
        self.take(now, StoreReturned(away.since_s, away.reason))
        for event in list(self._unsettled.values()):
            self.take(now, event)
            if self._away is not None:  # the store failed again: this request and all later ones stay unsettled
                return
            del self._unsettled[event.name]

    def _settle_clock(self) -> None:
        """Read from the store, after a probe, whether the commit in doubt has recorded that the clock was set."""
        doubt = self._clock_in_doubt
        if doubt is None:
            return
        recorded = all(
            self._read(write.key) == (write.value if isinstance(write, Put) else None) for write in doubt.writes
        )
        self._clock_in_doubt = None
        if not recorded:
            self._set_s += doubt.set_s


def _is_doubt(reply: Reply) -> bool:
    return isinstance(reply.answer, Refused) and reply.answer.in_doubt
