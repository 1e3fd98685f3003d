"""Peers that send too much, disappear without notice, or never read: they are disconnected, and others are not affected."""

from __future__ import annotations

import random
import socket as socketlib
import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from elasticd.controller.daemon import _readable_id
from elasticd.protocol.codec import MAX_REQUEST_BYTES
from elasticd.protocol.messages import Envelope, GetJobs, Ping, Pong, Status, Submit
from elasticd.protocol.model import GpuRange, JobId, JobSpec, WorkerId, WorkerPhase, WorkerStatus
from elasticd.runtime import transport
from verification.fuzz.flood import at_starved_controller
from verification.fuzz.grammar import encode
from verification.fuzz.sockets import noise, place, run_workers
from verification.fuzz.subjects import Agent, Controller, Socket

MOST_BYTES = 200 << 20  # growth of memory
FLOOD = 60_000
LEAVES = """
import os, sys, time, zmq
from elasticd.runtime import transport
router = transport.router(context := zmq.Context())
address = transport.bind(router, sys.argv[1])
if os.fork() == 0:
    line = transport.dealer(zmq.Context(), address)
    line.sndhwm = 0
    for _ in range(30_000):
        line.send(b"x" * 100)
    time.sleep(0.5)
    os._exit(0)
os.wait()
time.sleep(transport.CONNECTION_HEARTBEAT_S * 3)
heard = 0
while router.poll(100):
    router.recv_multipart()
    heard += 1
print(heard)
"""


@pytest.fixture
def around() -> Iterator[tuple[zmq.Context[Socket], Path]]:
    with place() as found:
        yield found


def frame(flags: int, body: bytes) -> bytes:
    return bytes([flags, len(body)]) + body


def command(name: bytes, body: bytes) -> bytes:
    return frame(4, bytes([len(name)]) + name + body)


def by_hand(address: str) -> socketlib.socket:
    """A raw connection with hand-written ZMTP."""
    line = socketlib.socket(socketlib.AF_UNIX)
    line.settimeout(120.0)
    line.connect(address.removeprefix("ipc://"))
    line.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32))
    kind = bytes([11]) + b"Socket-Type" + struct.pack(">I", 6) + b"DEALER"
    line.sendall(command(b"READY", kind))
    return line


def test_a_peer_that_fills_its_queue_and_leaves_does_not_end_the_process(tmp_path: Path) -> None:
    code = [sys.executable, "-c", LEAVES, f"ipc://{tmp_path}/s"]
    done = subprocess.run(code, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 10_000, "more than any queue would have held"


def test_a_peer_that_asks_for_a_sign_of_life_and_leaves_does_not_end_the_controller(
    around: tuple[zmq.Context[Socket], Path],
) -> None:
    context, directory = around
    controller = Controller(directory / "c", context, messages_per_s=2000.0, messages_at_once=10_000)
    controller.ask(Ping())
    for _ in range(3):
        line = by_hand(controller.clients)
        burst = (frame(0, b"x") + command(b"PING", b"\0\0abc")) * 200
        try:
            for _ in range(100):
                line.sendall(burst)
        except OSError:
            pass  # disconnected
        line.close()
        assert isinstance(controller.ask(Ping())[0], Pong)
    controller.close()


def test_whoever_says_too_much_is_cut_off_and_others_are_answered(around: tuple[zmq.Context[Socket], Path]) -> None:
    context, directory = around
    controller = Controller(directory / "c", context, messages_per_s=200.0, messages_at_once=2000)
    controller.ask(Ping())
    before = controller.vitals()
    line = transport.dealer(
        context, controller.clients_tcp, b"", controller.alice.pair, controller.alice.controller_public
    )
    small, large = encode(Envelope(id="x", request=Ping())), b"\xc1" * (MAX_REQUEST_BYTES - 100)
    for number in range(FLOOD):
        if line.poll(0, zmq.POLLOUT):
            line.send(large if number % 300 == 0 else small)
        if number % 100 == 0:
            time.sleep(0.005)  # so that it is admitted again between two disconnections
        if number % 10_000 == 0:
            assert isinstance(controller.ask(Ping())[0], Pong)
    controller.wait_until_idle()
    after = controller.vitals()
    assert after.memory_bytes - before.memory_bytes < MOST_BYTES
    assert after.log_bytes - before.log_bytes < 20_000
    assert "user:alice says more than" in controller.log()
    line.close()
    controller.close()


def test_a_flood_at_a_controller_without_processor_takes_little_memory_and_delays_no_honest_work(
    around: tuple[zmq.Context[Socket], Path],
) -> None:
    """The campaign raises Fault if memory grows, an honest request waits for others' work, or an acknowledged job is lost."""
    context, directory = around
    tally = at_starved_controller("sample", context, directory, FLOOD)
    assert tally.frames == FLOOD
    assert any("jobs were acknowledged, and all are there" in note for note in tally.notes)


def test_answers_that_nobody_reads_do_not_pile_up(around: tuple[zmq.Context[Socket], Path]) -> None:
    context, directory = around
    controller = Controller(directory / "c", context)
    spec = JobSpec(
        name="digits",
        command=("x" * 100_000,),
        gpus=GpuRange(min=1, max=1),
        virtual_workers=1,
        workdir="/",
    )
    for _ in range(20):
        controller.ask(Submit(spec=spec))
    before = controller.vitals()
    lines = [by_hand(controller.clients) for _ in range(40)]
    ask = encode(Envelope(id="x", request=GetJobs()))
    for _ in range(60):
        for at, line in enumerate(lines):
            try:
                line.sendall(frame(0, ask))
            except OSError:
                lines[at] = by_hand(controller.clients)
        controller.ask(Ping())
    controller.wait_until_idle()
    assert controller.vitals().memory_bytes - before.memory_bytes < MOST_BYTES
    for line in lines:
        line.close()
    controller.close()


def test_connections_of_one_name_do_not_fill_the_memory(around: tuple[zmq.Context[Socket], Path]) -> None:
    """Without handover ZeroMQ buffers the second connection's messages forever, and nothing reads them."""
    context, directory = around
    controller = Controller(directory / "c", context)
    controller.ask(Ping())
    before = controller.vitals()
    for _ in range(3):
        lines = [transport.dealer(context, controller.clients, b"x") for _ in range(2)]
        lines[0].send(b"")
        for line in lines:
            for _ in range(200):
                if line.poll(1000, zmq.POLLOUT):
                    line.send(bytes(MAX_REQUEST_BYTES - 100))
            controller.ask(Ping())
            line.close(linger=1000)
    controller.wait_until_idle()
    assert controller.vitals().memory_bytes - before.memory_bytes < MOST_BYTES
    controller.close()


def test_connections_that_do_not_speak_are_not_kept(around: tuple[zmq.Context[Socket], Path]) -> None:
    context, directory = around
    controller = Controller(directory / "c", context)
    controller.ask(Ping())
    before = controller.vitals()
    for number in range(10):
        noise(controller.clients, random.Random(number), 100)
        assert isinstance(controller.ask(Ping())[0], Pong)
    controller.wait_until_idle()
    deadline = time.monotonic() + 300
    while controller.vitals().descriptors > before.descriptors + 5:
        assert time.monotonic() < deadline, (before, controller.vitals())
        time.sleep(0.1)
    controller.close()


def test_no_status_of_workers_ends_their_agent(around: tuple[zmq.Context[Socket], Path]) -> None:
    """Each fits into a message, and all together do not: a heartbeat has the statuses of all workers."""
    context, directory = around
    agent = Agent(directory / "a", context, cpu_slots=20)
    run_workers(agent, 20)
    names = [WorkerId(f"digits-1.{number}") for number in range(20)]
    lines = [transport.dealer(context, agent.workers, name.encode()) for name in names]
    for sequence in range(1, 4):
        for name, line in zip(names, lines, strict=True):
            status = WorkerStatus(
                job=JobId("digits-1"),
                worker=name,
                pid=1,
                address="",
                phase=WorkerPhase.TRAINING,
                generation=0,
                order=0,
                floor=0,
                applied=sequence,
                sequence=sequence,
                note="x" * 1_000_000,
            )
            line.send(encode(Status(status=status)))
        agent.listen(1.0)
        agent.check_answers()
    assert agent.vitals().memory_bytes < 400 << 20
    for line in lines:
        line.close()
    agent.close_with_workers()


def test_the_id_of_a_request_that_is_not_understood_costs_no_memory() -> None:
    many = (
        b"\x82\xa2id\xa1x\xa7request\xdd"
        + struct.pack(">I", MAX_REQUEST_BYTES - 20)
        + b"\x90" * (MAX_REQUEST_BYTES - 20)
    )
    tracemalloc.start()
    try:
        assert _readable_id(many) == "x"
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
