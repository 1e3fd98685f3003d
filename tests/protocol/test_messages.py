"""Answers to clients read the same in MessagePack and in JSON, whatever their Python types are."""

from __future__ import annotations

import msgspec

from elasticd.protocol import messages
from elasticd.protocol.messages import Message, WorkerStage, WorkerView
from elasticd.protocol.model import ServerId, WorkerId, WorkerPhase


def test_each_phase_that_a_worker_reports_is_a_stage_that_people_are_shown() -> None:
    assert [WorkerStage.of(phase).value for phase in WorkerPhase] == [phase.value for phase in WorkerPhase]


def test_a_stage_is_plain_text_on_the_wire() -> None:
    view = WorkerView(worker=WorkerId("j-1.0"), server=ServerId("s"), gpu=0, phase=WorkerStage.ORDERED, pid=None)
    encoded = msgspec.msgpack.encode(view)
    assert msgspec.msgpack.decode(encoded)["phase"] == "ordered"
    assert msgspec.msgpack.decode(encoded, type=WorkerView) == view


def test_every_message_can_be_imported_from_the_package() -> None:
    assert {kind.__name__ for kind in Message.__subclasses__()} <= set(messages.__all__)
