"""Messages of agents that may be dropped under overload: those that are repeated anyway."""

from __future__ import annotations

import msgspec
import pytest

from elasticd.controller.agent_connections import is_repeated
from elasticd.protocol.messages import AgentHeartbeat, LogPiece, Message, WorkerExit, WorkerReport
from elasticd.protocol.model import JobId, ServerId, WorkerId, WorkerPhase, WorkerStatus

SERVER = ServerId("s1")
REPORT = WorkerReport(
    status=WorkerStatus(
        job=JobId("digits-1"),
        worker=WorkerId("digits-1.0"),
        pid=1,
        address="",
        phase=WorkerPhase.TRAINING,
        generation=1,
        order=1,
        floor=0,
        applied=3,
        sequence=4,
    )
)


@pytest.mark.parametrize(
    ("message", "repeated"),
    [
        (AgentHeartbeat(server=SERVER), True),
        (AgentHeartbeat(server=SERVER, starting=tuple(WorkerId(f"digits-1.{n}") for n in range(20))), True),
        (WorkerExit(job=JobId("digits-1"), worker=WorkerId("digits-1.0"), exit_code=0, reason=""), True),
        (AgentHeartbeat(server=SERVER, reports=(REPORT,)), False),
        (REPORT, False),
        (LogPiece(request="r", data=b"", next_offset=0, end=True), False),
    ],
)
def test_a_heartbeat_that_reports_nothing_and_an_end_come_again(message: Message, repeated: bool) -> None:
    assert is_repeated([b"s1#a", msgspec.msgpack.encode(message)]) is repeated


def test_what_is_no_message_is_not_taken_for_one_that_comes_again() -> None:
    assert not any(is_repeated(frames) for frames in ([], [b""], [b"s1#a"], [b"s1#a", b"\xc1"]))
