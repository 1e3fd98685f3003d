"""A turn larger than the store's transaction limit: pieces of whole events, each committed before any message of it is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from elasticd.controller.events import AgentMessage, ClientRequest
from elasticd.controller.store import Delete, If, Limits, Put, StoreUnavailable
from elasticd.controller.turn import Turn
from elasticd.controller.write_batch import changes_of
from elasticd.protocol.messages import AgentHeartbeat, Answer, Envelope, Refused, Reply, Submit, Submitted

from .test_turn import S1, Driven, FaultyStore, job_spec

FULL = StoreUnavailable("database or disk is full")
UNKNOWN = StoreUnavailable("no answer", outcome_unknown=True)
Written = dict[str, bytes]


class LimitedStore(FaultyStore):  # type: ignore[misc, valid-type]
    """Records its contents after each commit; commit number `fail_at` fails with `failure`."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self.limits = limits
        self.states: list[Written] = []
        self.sizes: list[int] = []
        self.fail_at = 0
        self.failure = FULL

    def commit(self, conditions: Sequence[If], writes: Sequence[Put | Delete]) -> int | None:
        self.fail_at -= 1
        if self.fail_at == 0:
            raise self.failure
        made: int | None = super().commit(conditions, writes)
        self.states.append(dict(self.records))
        self.sizes.append(len(writes))
        return made


class Limited(Driven):  # type: ignore[misc, valid-type]
    """A turn on such a store. `reached`: the store's contents had the turn ended after each event."""

    def __init__(self, limits: Limits) -> None:
        self.now = 1000.0
        self.store = LimitedStore(limits)
        self.incarnations: list[str] = []
        self.doubts: dict[str, str] = {}
        self.turn = Turn(self.store, self.build, self.now)
        self.hello()
        self.reached: list[Written] = [dict(self.store.records)]
        self.largest = 0
        machine = self.turn.machine
        real = machine.handle

        def handle(now: float, event: Any) -> Any:
            actions = real(now, event)
            changed = changes_of(actions)
            self.largest = max(self.largest, len(changed))
            after = dict(self.reached[-1])
            for write in changed.values():
                if isinstance(write, Put):
                    after[write.key] = write.value
                else:
                    after.pop(write.key, None)
            self.reached.append(after)
            return actions

        machine.handle = handle
        self.store.states.clear()
        self.store.sizes.clear()

    def submit(self, count: int, before: int = 0) -> None:
        for number in range(before, before + count):
            self.turn.take(self.now, request(number))

    def replies(self) -> dict[str, Answer]:
        return self.answers(self.finish())


def request(number: int) -> ClientRequest:
    return ClientRequest(b"client", Envelope(id=f"r{number}", request=Submit(spec=job_spec(high=2))))


SIX = Limits(operations=6)


def test_a_large_turn_is_recorded_in_pieces_that_end_between_two_events() -> None:
    driven = Limited(SIX)
    driven.submit(20)
    answers = driven.replies()
    assert len(driven.store.states) > 5
    assert [state for state in driven.store.states if state not in driven.reached] == []
    assert max(driven.store.sizes) <= max(6, driven.largest)
    assert answers == {f"r{n}": Submitted(job=f"digits-{n + 1}") for n in range(20)}
    assert driven.store.states[-1] == driven.reached[-1]


def test_bytes_are_counted_as_well_and_a_value_that_is_replaced_only_once() -> None:
    driven = Limited(Limits(bytes=20_000, overhead_bytes=10))
    driven.submit(40)
    driven.replies()
    assert len(driven.store.states) > 1
    assert [state for state in driven.store.states if state not in driven.reached] == []
    roomy = Limited(Limits(bytes=10_000_000))
    roomy.submit(40)
    roomy.replies()
    assert len(roomy.store.states) <= 2, "the turn, and what follows from time alone"


def test_an_event_that_is_larger_than_a_piece_is_one_by_itself() -> None:
    driven = Limited(Limits(operations=2))
    driven.submit(5)
    driven.replies()
    assert driven.largest > 2
    assert [state for state in driven.store.states if state not in driven.reached] == []
    assert len(driven.store.states) >= 5


def test_a_store_without_limits_has_one_commit_a_turn() -> None:
    driven = Limited(Limits())
    driven.submit(40)
    driven.turn.finish(driven.now)
    assert len(driven.store.states) == 1


def test_nothing_is_sent_before_its_own_piece_is_durable() -> None:
    driven = Limited(SIX)
    for number in range(12):
        driven.turn.take(driven.now, request(number))
        for action in driven.turn.told():
            reply = getattr(action, "reply", None)
            if isinstance(reply, Reply):
                assert isinstance(reply.answer, Submitted)
                assert f"/jobs/{reply.answer.job}/spec" in driven.store.records
    driven.replies()


@pytest.mark.parametrize("failure", [FULL, UNKNOWN])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_if_a_piece_cannot_be_recorded_what_came_before_is_kept_and_said_and_the_rest_is_refused(
    failure: StoreUnavailable, at: int
) -> None:
    driven = Limited(SIX)
    driven.store.fail_at, driven.store.failure = at, failure
    driven.submit(12)
    answers = driven.replies()
    recorded = {f"r{n}" for n in range(12) if f"/jobs/digits-{n + 1}/spec" in driven.store.records}
    assert {name for name, answer in answers.items() if isinstance(answer, Submitted)} == recorded
    assert (at == 1) == (not recorded)
    refused = {name for name, answer in answers.items() if isinstance(answer, Refused)}
    assert refused.isdisjoint(recorded)
    missing = {f"r{n}" for n in range(12)} - recorded - refused
    assert bool(missing) == failure.outcome_unknown, "whose outcome is unknown have no answer yet"
    later = driven.answers(driven.finish(after_s=1.0))
    driven.hello()  # submissions that are not in the store are repeated after a server's message
    for name in missing:
        later[name] = driven.ask(Submit(spec=job_spec(high=2)), name)
    assert {name for name, answer in later.items() if isinstance(answer, Submitted)} == missing
    names = {f"digits-{n + 1}" for n in range(len(recorded | missing))}
    assert set(driven.turn.machine.cluster.jobs) == names


def test_a_heartbeat_never_rewrites_a_job() -> None:
    driven = Limited(Limits())
    driven.submit(2)
    driven.replies()
    for _ in range(20):
        driven.now += 1.0
        driven.turn.take(driven.now, AgentMessage(S1, AgentHeartbeat(server=S1)))
        driven.finish()
    specs = [key for key in driven.store.records if key.endswith("/spec")]
    assert len(specs) == 2
    assert driven.store.sizes, "submissions were recorded"
    written = [state for state in driven.store.states[1:] if state != driven.store.states[0]]
    assert all(state[key] is driven.store.states[0][key] for state in written for key in specs)
