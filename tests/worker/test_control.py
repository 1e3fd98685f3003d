"""The process around a worker's state machine, where the operating system lacks resources."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from elasticd.protocol.errors import OperatorError
from elasticd.protocol.messages import Order, Prepare, Prepared
from elasticd.protocol.model import Determinism, GpuAddress, GpuKind, JobId, Member, Roster, ServerId, WorkerId
from elasticd.runtime import transport
from elasticd.runtime.keys import Pair
from elasticd.worker import events as e
from elasticd.worker.control import ClusterControl
from elasticd.worker.environment import ClusterEnvironment

ME, LEADER = WorkerId("job-1.1"), WorkerId("job-1.0")


@pytest.fixture
def control() -> Iterator[ClusterControl]:
    """Control of a follower that is ready in its loop. Its control thread does not run: its messages stay queued."""
    found = ClusterControl(
        ClusterEnvironment(
            job=JobId("job-1"),
            worker=ME,
            agent_address="ipc:///nowhere",
            address="127.0.0.1",
            key=Pair.new().secret.decode(),
            gpu_kind=GpuKind.CPU,
            virtual_workers=2,
            determinism=Determinism.ELASTIC,
            checkpoint_directory="",
            checkpoint_every_s=600.0,
            checkpoint_keep=1,
            max_steps=None,
        )
    )
    members = tuple(
        Member(worker=worker, gpu=GpuAddress(server=ServerId("s"), index=i)) for i, worker in enumerate((LEADER, ME))
    )
    roster = Roster(generation=3, members=members, leader=LEADER)
    found.tell(e.Arrived(10, 10))
    found.tell(e.OrderReceived(Order(job=JobId("job-1"), roster=roster, leader_address="tcp://127.0.0.1:2")))
    yield found
    found._context.destroy(linger=0)


def failure(control: ClusterControl) -> str:
    """The message to the leader about the communicator."""
    sent: list[Any] = []
    control._to_the_leader = lambda address, data: sent.append(control._to_leader.decode(data))  # type: ignore[method-assign]
    control.tell(e.PeerSaid(Prepare(job=JobId("job-1"), generation=3, attempt=1, base=0, holders=(LEADER,))))
    control._outbox.pop()()
    (told,) = sent
    assert isinstance(told, Prepared)
    return told.error


def no_descriptors(*arguments: object) -> None:
    raise zmq.ZMQError(errno.EMFILE)


def no_threads(*arguments: object) -> None:
    raise RuntimeError("can't start new thread")


def test_without_a_descriptor_a_communicator_has_failed_and_the_script_goes_on(
    control: ClusterControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "dealer", no_descriptors)
    assert failure(control) == "ZMQError: Too many open files"
    assert not control._groups


def test_without_a_thread_likewise(control: ClusterControl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_threads)
    assert failure(control) == "RuntimeError: can't start new thread"
    assert not control._groups


def test_what_cannot_be_said_to_a_leader_is_lost(
    control: ClusterControl, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(transport, "dealer", no_descriptors)
    control._flush()
    assert "Too many open files" in caplog.text


def test_a_worker_without_a_key_does_not_listen() -> None:
    place = ClusterEnvironment(
        job=JobId("job-1"),
        worker=ME,
        agent_address="ipc:///nowhere",
        address="127.0.0.1",
        gpu_kind=GpuKind.CPU,
        virtual_workers=2,
        determinism=Determinism.ELASTIC,
        checkpoint_directory="",
        checkpoint_every_s=600.0,
        checkpoint_keep=1,
        max_steps=None,
    )
    with pytest.raises(OperatorError, match="needs keys"):
        ClusterControl(place)
