"""Snapshots are kept for their owner's jobs, are sent to the servers of these jobs, and are deleted after them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from elasticd.controller import snapshots
from elasticd.controller.events import AgentMessage
from elasticd.controller.snapshots import PREFIX
from elasticd.protocol.limits import SNAPSHOT_PART_BYTES
from elasticd.protocol.messages import (
    Cancel,
    OfferSnapshot,
    PutSnapshot,
    ReadSnapshot,
    Refused,
    SnapshotPart,
    SnapshotWanted,
    Submit,
    Submitted,
)
from elasticd.protocol.model import ServerId, Snapshot
from elasticd.protocol.principals import Principal, Role
from elasticd.protocol.snapshots import digest_of, part_of

from .world import World, job_spec

DATA = bytes(range(251)) * 2500  # two parts
SNAPSHOT = Snapshot(digest=digest_of(DATA), bytes=len(DATA))


def send(world: Any, **who: Any) -> None:
    answer = world.ask(OfferSnapshot(snapshot=SNAPSHOT), **who)
    for part in answer.parts:
        answer = world.ask(PutSnapshot(snapshot=SNAPSHOT, part=part, data=part_of(DATA, part)), **who)
    assert answer == SnapshotWanted(parts=())


def job_in_it(low: int = 1, high: int = 1) -> Any:
    return replace(job_spec(low=low, high=high), snapshot=SNAPSHOT)


def parts_read(world: Any, job: Any, server: str, part: int = 0) -> SnapshotPart:
    world.sent.clear()
    message = ReadSnapshot(job=job.id, part=part, uid=job.submission.uid)
    world.feed(AgentMessage(ServerId(server), message, ""))
    (found,) = world.messages(SnapshotPart)
    return found


def stored(world: Any) -> list[str]:
    return sorted(key for key in world.store if key.startswith(PREFIX))


def test_it_is_sent_once_and_the_servers_of_its_job_get_it_part_by_part() -> None:
    world = World({"s1": 1, "s2": 1})
    send(world)
    assert world.ask(OfferSnapshot(snapshot=SNAPSHOT)).parts == ()
    job = world.submit(job_in_it())
    (entry,) = job.workers
    here = entry.gpu.server
    found = [parts_read(world, job, here, part).data for part in (0, 1)]
    assert b"".join(found) == DATA
    assert "no such snapshot" in parts_read(world, job, here, 2).error
    there = "s2" if here == "s1" else "s1"
    refused = parts_read(world, job, there)
    assert (refused.data, "has no worker on server" in refused.error) == (b"", True)


def test_a_job_whose_snapshot_has_not_come_whole_is_refused() -> None:
    world = World()
    world.ask(OfferSnapshot(snapshot=SNAPSHOT))
    world.ask(PutSnapshot(snapshot=SNAPSHOT, part=0, data=part_of(DATA, 0)))
    answer = world.ask(Submit(spec=job_in_it()))
    assert isinstance(answer, Refused)
    assert "has not come" in answer.reason


@pytest.mark.parametrize(("part", "data"), [(0, b"short"), (2, b""), (-1, b"\0" * SNAPSHOT_PART_BYTES), (1 << 40, b"")])
def test_a_part_of_another_size_or_number_is_refused_and_not_stored(part: int, data: bytes) -> None:
    world = World()
    world.ask(OfferSnapshot(snapshot=SNAPSHOT))
    assert isinstance(world.ask(PutSnapshot(snapshot=SNAPSHOT, part=part, data=data)), Refused)
    assert stored(world) == []


def test_a_controller_that_starts_knows_what_it_has_by_the_keys_alone() -> None:
    world = World()
    send(world)
    job = world.submit(job_in_it())
    world.restart()
    assert world.ask(OfferSnapshot(snapshot=SNAPSHOT)).parts == ()
    assert parts_read(world, world.job(job.id), "s1", 1).data == part_of(DATA, 1)


def test_anothers_snapshot_is_of_no_use_to_whoever_knows_its_digest() -> None:
    world = World()
    alice, bob = (Principal(role=Role.USER, name=name) for name in ("alice", "bob"))
    send(world, who=alice)
    answer = world.ask(Submit(spec=job_in_it()), who=bob)
    assert isinstance(answer, Refused)
    assert len(world.ask(OfferSnapshot(snapshot=SNAPSHOT), who=bob).parts) == 2, "he has to send the files himself"
    assert isinstance(world.ask(Submit(spec=job_in_it()), who=alice), Submitted)


def test_it_goes_when_no_unfinished_job_has_it_any_more() -> None:
    world = World()
    send(world)
    job = world.submit(job_in_it())
    world.pass_time(2000)
    assert len(stored(world)) == 2
    world.ask(Cancel(job=job.id))
    world.pass_time(2000)
    assert stored(world) == []


def test_there_is_room_for_so_many_bytes_of_one_owner_and_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr(snapshots, "MOST_OF_ONE_BYTES", len(DATA) + 10)
    send(world)
    answer = world.ask(OfferSnapshot(snapshot=Snapshot(digest="0" * 64, bytes=11)))
    assert isinstance(answer, Refused)
    assert "no room for one more snapshot: your unfinished jobs" in answer.reason
    monkeypatch.setattr(snapshots, "MOST_BYTES", len(DATA) + 10)
    answer = world.ask(
        OfferSnapshot(snapshot=Snapshot(digest="0" * 64, bytes=11)), who=Principal(role=Role.USER, name="bob")
    )
    assert isinstance(answer, Refused)
    assert "all together" in answer.reason
