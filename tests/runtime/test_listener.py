"""The endpoint of a daemon over real sockets: admission, authentication, rate limits, and false claims of peers."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from zmq.utils import z85

from elasticd.protocol.errors import OperatorError
from elasticd.protocol.principals import LOCAL_OPERATOR, Principal, Role
from elasticd.protocol.rate_limit import SubjectRateLimiter
from elasticd.runtime import transport
from elasticd.runtime.clock import SteadyClock
from elasticd.runtime.keys import Known, Pair, Principals
from elasticd.runtime.listener import (
    CUT_REST_S,
    HANDSHAKE_BURST,
    HANDSHAKES_PER_S,
    LOOK_BURST,
    SILENT_S,
    Bounds,
    Bucket,
    EndpointConfig,
    JobKeyAuthenticator,
    Listener,
    _Asked,
)
from elasticd.runtime.loop import Loop

from .held_up import hold_up, is_held_up, needs_stacks

PATIENCE_S = 120.0
PEOPLE = EndpointConfig("people", (Role.USER, Role.OPERATOR), (Role.USER, Role.OPERATOR), 1 << 16, 16, visitors=True)
MACHINES = EndpointConfig("machines", (Role.SERVER,), (Role.OPERATOR,), 1 << 16, 16)


def known(principal: str, pair: Pair, account: str = "", revoked_s: float | None = None) -> Known:
    return Known(principal=principal, public=pair.public.decode(), account=account, revoked_s=revoked_s)


class House:
    """An endpoint that echoes each message with the identity of its sender."""

    def __init__(self, directory: Path, bounds: Bounds, io_threads: int = 1) -> None:
        self.context: zmq.Context = zmq.Context(io_threads=io_threads)
        # of clients, which are other processes: no thread is shared with them
        self.outside: zmq.Context = zmq.Context()
        self.own, self.alice, self.server, self.stranger = (Pair.new() for _ in range(4))
        self.monotonic_s = 0.0
        clock = SteadyClock()
        self.loop = Loop(clock, lambda: None, lambda: clock.now() + 0.01)
        self.heard: list[tuple[str, list[bytes]]] = []
        self.principals = Principals((known("user:alice", self.alice, "al"), known("server:s1", self.server)))
        self.added: list[Known] = []  # keys added to the list since the endpoint last read it
        self.looks = 0
        self.listener = Listener(
            self.context, self.loop, self.own, self.principals, bounds, lambda: self.monotonic_s, look=self.look
        )
        directory.chmod(0o711)
        self.path = directory / "people"
        self.people, self.people_here = self.listener.listen(
            PEOPLE, ["tcp://127.0.0.1:*", f"ipc://{self.path}"], self.hear
        )
        self.machines, self.machines_here = self.listener.listen(
            MACHINES, ["tcp://127.0.0.1:*", f"ipc://{directory}/machines"], self.hear
        )

    def look(self) -> None:
        self.looks += 1
        if self.added:
            self.principals = Principals((*self.principals.known, *self.added))
            self.added.clear()
            self.listener.update(self.principals)

    def hear(self, peer: bytes, who: Principal, frames: list[bytes]) -> None:
        self.heard.append((str(who), frames))
        self.listener.send(peer, *frames)

    def visitor(self, address: str, pair: Pair | None = None, identity: bytes = b"") -> zmq.Socket:
        return transport.dealer(self.outside, address, identity, pair, self.own.public)

    def close(self) -> None:
        self.listener.close()
        self.outside.destroy(linger=0)
        self.context.destroy(linger=0)

    def until(self, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, self.heard
            self.loop.turn()

    def turn_for(self, seconds: float) -> None:
        """Let time pass; the absence of an event cannot be awaited."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.loop.turn()

    def says(self, socket: zmq.Socket, *frames: bytes) -> list[bytes]:
        """Send a message and return the answer."""
        socket.send_multipart(frames)
        self.until(lambda: socket.poll(0))
        return socket.recv_multipart()


def refuses_descriptors() -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            return probe.getsockopt(socket.SOL_SOCKET, transport.SO_PASSRIGHTS) == 1
        except OSError:
            return False


@pytest.fixture
def house(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[House]:
    found = House(tmp_path, getattr(request, "param", Bounds()))
    yield found
    found.close()


def test_a_known_key_is_its_principal_and_the_kernel_tells_who_is_local(house: House) -> None:
    assert house.says(house.visitor(house.people, house.alice), b"a", b"b") == [b"a", b"b"]
    assert house.says(house.visitor(house.people_here), b"c") == [b"c"]
    assert house.says(house.visitor(house.machines, house.server), b"d") == [b"d"]
    assert [who for who, _ in house.heard] == ["user:alice", str(LOCAL_OPERATOR), "server:s1"]


def test_a_key_that_was_just_added_is_let_in_at_once(house: House) -> None:
    house.added.append(known("user:stranger", house.stranger))
    assert house.says(house.visitor(house.people, house.stranger), b"a") == [b"a"]
    assert house.heard == [("user:stranger", [b"a"])]


def test_strangers_who_knock_often_do_not_have_the_list_read_as_often(house: House) -> None:
    for _ in range(2 * int(LOOK_BURST)):
        visitor, monitor = transport.watched_dealer(
            house.outside, house.people, transport.REFUSALS, house.stranger, house.own.public
        )
        house.until(lambda monitor=monitor: monitor.poll(0))
        visitor.disable_monitor()
        monitor.close()
        visitor.close(0)
    assert house.looks == LOOK_BURST, "the house's clock stands still"


def test_a_key_that_is_unknown_or_of_another_role_is_told_so_and_never_heard(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    for address, pair in (
        (house.people, house.stranger),
        (house.people, house.server),
        (house.machines, house.alice),
    ):
        visitor, refusals = transport.watched_dealer(house.outside, address, transport.REFUSALS, pair, house.own.public)
        visitor.send(b"let me in")
        house.until(lambda refusals=refusals: refusals.poll(0))
        assert transport.is_final(refusals.recv_multipart())
    assert house.heard == []
    assert (
        "refused a key that is unknown, revoked or of another role, from 127.0.0.1, on the socket for people"
        in caplog.text
    )


class SlowlyOn(zmq.Socket[bytes]):
    """A socket that is delayed after each connection attempt."""

    def connect(self, addr: str) -> None:  # type: ignore[override]
        super().connect(addr)
        if self.type == zmq.DEALER:
            time.sleep(0.5)


def test_a_refusal_is_heard_however_late_one_comes_to_listen(house: House) -> None:
    def serve() -> None:
        while not over.is_set():
            house.loop.turn()

    over = threading.Event()
    thread = threading.Thread(target=serve)
    thread.start()
    context: zmq.Context = zmq.Context()
    context._socket_class = SlowlyOn  # type: ignore[assignment]
    try:
        visitor, refusals = transport.watched_dealer(
            context, house.people, transport.REFUSALS, house.stranger, house.own.public
        )
        assert refusals.poll(int(PATIENCE_S * 1000))
        assert transport.is_final(refusals.recv_multipart())
        visitor.disable_monitor()
    finally:
        over.set()
        thread.join()
        context.destroy(linger=0)


def test_nobody_speaks_over_tcp_without_keys(house: House) -> None:
    with pytest.raises(OperatorError, match="needs keys"):
        house.visitor(house.people)
    with pytest.raises(OperatorError, match="needs keys"):
        transport.bind(transport.router(house.context), "tcp://127.0.0.1:*")
    plain = house.context.socket(zmq.DEALER)
    plain.linger = 0
    plain.connect(house.people)
    plain.send(b"let me in")
    house.turn_for(0.3)
    assert house.heard == []


def test_a_connection_with_another_key_of_the_controller_is_not_made(house: House) -> None:
    visitor, refusals = transport.watched_dealer(
        house.context, house.people, transport.REFUSALS, house.alice, house.stranger.public
    )
    visitor.send(b"secret")
    house.until(lambda: refusals.poll(0))
    assert not transport.is_final(refusals.recv_multipart())
    assert house.heard == []


def zmtp_ready(**properties: bytes) -> bytes:
    """A greeting without security, and READY with these properties, by hand (ZMTP 3.0)."""
    greeting = b"\xff" + b"\0" * 8 + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" + b"\0" * 31
    body = b"\x05READY"
    for name, value in properties.items():
        key = name.replace("_", "-").encode()
        body += bytes((len(key),)) + key + struct.pack(">I", len(value)) + value
    return greeting + b"\x04" + bytes((len(body),)) + body


def test_what_a_local_peer_claims_of_itself_counts_for_nothing(house: House) -> None:
    """It sends the properties from which ZeroMQ derives a peer's identity."""
    raw = socket.socket(socket.AF_UNIX)
    raw.connect(str(house.path))
    claims = {"User_Id": house.alice.public, "Peer_Address": b"localhost:65534:65534:1"}
    raw.sendall(zmtp_ready(Socket_Type=b"DEALER", Identity=b"", **claims))
    raw.setblocking(False)
    heard = bytearray()

    def receive() -> bool:
        with contextlib.suppress(BlockingIOError):
            heard.extend(raw.recv(1000))
        return b"READY" in heard

    house.until(receive)  # until then it accepts nothing
    raw.sendall(b"\x00\x02hi")
    house.until(lambda: house.heard)
    assert house.heard == [(str(LOCAL_OPERATOR), [b"hi"])]
    raw.close()


def test_a_peer_that_chooses_the_name_of_its_connection_is_cut_off(house: House) -> None:
    honest = house.visitor(house.machines, house.server)
    house.says(honest, b"here")
    thief = house.visitor(house.machines, house.server, b"chosen")
    thief.send(b"mine")
    house.turn_for(0.3)
    assert len(house.heard) == 1
    assert house.says(honest, b"still") == [b"still"]


def test_the_numbers_of_connections_are_no_ones_to_guess(house: House) -> None:
    """A peer that has the next number as its routing id would crash the process."""
    house.says(house.visitor(house.people_here), b"1")
    (peer,) = house.listener._connections
    seeds = subprocess.run([sys.executable, "-c", NUMBERS], capture_output=True, check=True, text=True).stdout.split()
    assert all(abs(int.from_bytes(peer[2:]) - int(seed)) > 1000 for seed in seeds)


def test_handshakes_of_one_principal_are_bounded(house: House, caplog: pytest.LogCaptureFixture) -> None:
    asked = _Asked([], b"1", "0", "127.0.0.1", b"CURVE", [z85.decode(house.alice.public)])
    answers = [house.listener._judge(asked)[0] for _ in range(300)]
    assert answers.count(b"200") == HANDSHAKE_BURST
    assert answers[-1] == b"300"
    house.monotonic_s += 1.0
    assert [house.listener._judge(asked)[0] for _ in range(10)].count(b"200") == HANDSHAKES_PER_S
    local = _Asked([], b"1", "1", f"localhost:{os.getuid()}:0:1", b"NULL", [])
    assert {house.listener._judge(local)[0] for _ in range(1000)} == {b"200"}
    assert len([r for r in caplog.records if "connects too often" in r.message]) == 1


def test_a_revoked_key_loses_its_connections_and_others_stay(house: House) -> None:
    alice, server = house.visitor(house.people, house.alice), house.visitor(house.machines, house.server)
    house.says(alice, b"1")
    house.says(server, b"2")
    monitor = alice.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    gone = known("user:alice", house.alice, "al", revoked_s=1.0)
    house.listener.update(Principals((gone, known("server:s1", house.server))))
    house.until(lambda: monitor.poll(0))
    alice.send(b"3")
    house.turn_for(0.3)
    assert house.says(server, b"4") == [b"4"]
    assert [frames for _, frames in house.heard] == [[b"1"], [b"2"], [b"4"]]
    alice.disable_monitor()
    monitor.close()


def test_what_waits_when_a_key_is_revoked_is_not_heard(house: House) -> None:
    alice = house.visitor(house.people, house.alice)
    house.says(alice, b"1")
    alice.send(b"2")
    time.sleep(0.1)  # it is in the endpoint's queue
    house.listener.update(Principals())
    house.turn_for(0.3)
    assert [frames for _, frames in house.heard] == [[b"1"]]


def test_whose_account_has_changed_is_heard_as_who_he_is_now(house: House) -> None:
    alice = house.visitor(house.people, house.alice)
    house.says(alice, b"1")
    monitor = alice.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    house.listener.update(Principals((known("operator:alice", house.alice, "al"),)))
    house.until(lambda: monitor.poll(0))  # her connection has been cut; later messages use a new one
    house.says(alice, b"2")
    alice.disable_monitor()
    monitor.close()
    assert house.heard[-1][0] == "operator:alice"


@pytest.mark.parametrize("house", [Bounds(connections=2, messages_per_s=1.0, messages_burst=5)], indirect=True)
def test_connections_and_messages_of_one_principal_are_bounded(house: House, caplog: pytest.LogCaptureFixture) -> None:
    first, second, third = (house.visitor(house.people, house.alice) for _ in range(3))
    house.says(first, b"1")
    house.says(second, b"2")
    third.send(b"3")
    house.turn_for(0.2)
    assert len(house.heard) == 2
    for _ in range(10):
        first.send(b"x")
    house.until(lambda: len(house.heard) >= 5)
    house.turn_for(0.2)
    assert len(house.heard) == 5, "five at once, then the connection is cut"
    house.monotonic_s += 2.0
    house.says(first, b"y")  # over a new connection
    house.says(house.visitor(house.machines, house.server), b"others are not held back")
    told = [record.message for record in caplog.records]
    assert len([line for line in told if "connections: another one is cut" in line]) == 1
    assert len([line for line in told if "messages a second: a connection is cut" in line]) == 1


def let_wait(house: House, *visitors: zmq.Socket, each: int) -> None:
    """Each client sends so many messages, which wait in the endpoint's queue."""
    for number in range(each):
        for visitor in visitors:
            visitor.send(b"%d" % number)
    time.sleep(0.3)  # it is in the endpoint's queue


def test_who_says_much_waits_for_himself_and_others_do_not_wait_for_him(house: House) -> None:
    alice, server = house.visitor(house.people, house.alice), house.visitor(house.machines, house.server)
    house.says(alice, b"x")
    house.says(server, b"x")
    house.heard.clear()
    let_wait(house, alice, each=1000)
    let_wait(house, server, each=1)
    house.until(lambda: ("server:s1", [b"0"]) in house.heard)
    assert len(house.heard) < 1000
    house.until(lambda: len(house.heard) == 1001)
    assert house.heard[0][0] == "user:alice"
    assert [frames for who, frames in house.heard if who == "user:alice"] == [[b"%d" % n] for n in range(1000)]


@pytest.mark.parametrize("house", [Bounds(messages_per_s=1000.0, messages_burst=50)], indirect=True)
def test_rates_count_what_is_said_and_not_what_a_starved_daemon_gets_round_to(house: House) -> None:
    """While it does not run, 200 messages arrive, and much time passes until it has handled the first."""
    alice, server = house.visitor(house.people, house.alice), house.visitor(house.machines, house.server)
    house.says(alice, b"x")
    house.says(server, b"x")
    let_wait(house, alice, each=200)
    hear = house.hear

    def slowly(peer: bytes, who: Principal, frames: list[bytes]) -> None:
        house.monotonic_s += 1.0
        hear(peer, who, frames)

    house.listener._endpoints[0].handler = slowly
    house.heard.clear()
    house.until(lambda: house.listener.floods.cut["user"])
    house.turn_for(0.3)
    assert len(house.heard) == 49
    assert house.listener.floods.cut == {"user": 1, "reader": 0, "operator": 0, "server": 0}
    assert house.listener.floods.dropped["user"] == 151
    assert house.says(server, b"y") == [b"y"]


@pytest.mark.parametrize("house", [Bounds(messages_per_s=1.0, messages_burst=5)], indirect=True)
def test_whose_connection_was_cut_makes_no_other_one_for_a_second(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    alice = house.visitor(house.people, house.alice)
    house.says(alice, b"x")
    let_wait(house, alice, each=10)
    house.until(lambda: "user:alice connects too often" in caplog.text)
    house.monotonic_s += CUT_REST_S
    house.says(alice, b"y")
    assert house.listener.floods.cut["user"] == 1


def test_what_waits_to_be_handled_when_a_key_is_revoked_is_not_heard(house: House) -> None:
    alice = house.visitor(house.people, house.alice)
    house.says(alice, b"x")
    house.heard.clear()
    let_wait(house, alice, each=1000)
    house.until(lambda: house.listener.waiting > 100)
    house.listener.update(Principals())
    heard = len(house.heard)
    house.until(lambda: not house.listener.waiting)
    house.turn_for(0.2)
    assert len(house.heard) == heard < 1000


def test_a_connection_that_says_nothing_is_cut_after_a_while(house: House) -> None:
    quiet, monitor = transport.watched_dealer(
        house.outside,
        house.people,
        zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED,
        house.alice,
        house.own.public,
    )
    busy = house.visitor(house.people, house.alice)
    raw = socket.create_connection(("127.0.0.1", int(house.people.rpartition(":")[2])))
    raw.settimeout(PATIENCE_S)
    assert raw.recv(1), "a greeting"
    house.says(busy, b"1")
    house.until(lambda: monitor.poll(0))
    monitor.recv_multipart()  # handshake of the quiet client
    house.turn_for(0.2)
    house.monotonic_s += SILENT_S + 1
    house.listener.pass_time()
    house.until(lambda: monitor.poll(0))
    while raw.recv(100):  # the rest of the greeting, and then the end of the stream
        pass
    assert house.says(busy, b"2") == [b"2"]
    quiet.disable_monitor()
    monitor.close()
    raw.close()


@pytest.mark.skipif(not refuses_descriptors(), reason="a kernel before 6.16")
def test_an_open_file_that_a_local_peer_sends_holds_nobody_up(house: House) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as here,
        socket.create_connection(here.getsockname()) as full,
        socket.socket(socket.AF_UNIX) as peer,
    ):
        there, _ = here.accept()
        full.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                full.send(bytes(1 << 16))
        full.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, int(PATIENCE_S) + 2))
        peer.connect(str(house.path))
        try:
            socket.send_fds(peer, [b"\xff" + bytes(8) + b"\x7f"], [full.fileno()])
        except PermissionError:
            # or this process would block itself
            full.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
        full.close()  # the receiver is the last to close it
        assert house.says(house.visitor(house.people_here), b"c") == [b"c"]
        there.close()


@needs_stacks
def test_a_peer_that_blocks_the_local_io_thread_before_linux_6_16_is_noticed_and_tcp_still_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(transport, "take_no_descriptors", lambda socket: None)
    house = House(tmp_path, Bounds(), io_threads=2)
    local, remote = house.visitor(house.people_here), house.visitor(house.people, house.alice)

    def seconds_pass(count: int) -> None:
        for _ in range(count):
            house.monotonic_s += 1.0
            house.listener.pass_time()
            house.turn_for(0.1)

    def listeners_hear() -> bool:
        seconds_pass(1)
        return all(
            endpoint.heartbeat is None or endpoint.heartbeat._unreceived_s is None
            for endpoint in house.listener._endpoints
        )

    house.until(listeners_hear)
    seconds_pass(20)
    assert house.listener.is_receiving()
    assert house.says(local, b"1") == [b"1"]
    here, senders = hold_up(house.path, is_held_up)
    seconds_pass(4)
    assert house.listener.is_receiving(), "it may just be slow"
    seconds_pass(8)
    assert not house.listener.is_receiving()
    assert "a peer may block the thread that receives" in caplog.text
    local.send(b"2")
    assert house.says(remote, b"3") == [b"3"], "who comes over the network is heard all the time"
    here.close()
    for sender in senders:
        sender.wait(PATIENCE_S)
    house.until(lambda: (str(LOCAL_OPERATOR), [b"2"]) in house.heard)
    house.until(listeners_hear)
    assert house.listener.is_receiving()
    house.close()


def test_our_own_words_are_no_ones_requests(house: House) -> None:
    for _ in range(5):
        house.monotonic_s += 1.0
        house.listener.pass_time()
        house.turn_for(0.1)
    assert house.heard == []
    word = next(endpoint.heartbeat._payload for endpoint in house.listener._endpoints if endpoint.heartbeat is not None)
    assert house.says(house.visitor(house.people, house.alice), word) == [word], "said by somebody else it is a request"


def test_a_frame_that_is_too_large_ends_the_connection_and_is_not_heard(house: House) -> None:
    house.visitor(house.people, house.alice).send(b"x" * (PEOPLE.frame_bytes + 1))
    house.turn_for(0.3)
    assert house.heard == []
    assert house.says(house.visitor(house.people, house.alice), b"1") == [b"1"]


def test_a_descriptor_that_is_another_connections_by_now_is_left_alone(house: House) -> None:
    house.says(house.visitor(house.people, house.alice), b"1")
    (connection,) = house.listener._connections.values()
    ours, theirs = socket.socketpair()
    house.listener._cut(ours.fileno(), connection.inode)
    theirs.send(b"still there")
    assert ours.recv(100) == b"still there"
    ours.close()
    theirs.close()


NUMBERS = """
import ctypes
libc = ctypes.CDLL(None)
drawn = [libc.rand() for _ in range(20)]
for low, high in zip(drawn, drawn[1:]): print(low, ((high << 31) | low) & 0xffffffff)
"""

VISITOR = """
import sys, zmq, os
os.setgid(65534); os.setuid(65534)
s = zmq.Context().socket(zmq.DEALER); s.connect(sys.argv[1]); s.send(b"hello")
sys.exit(0 if s.poll(int(sys.argv[2])) else 7)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_of_this_machine_is_a_user_where_the_directory_lets_him_in(house: House, tmp_path: Path) -> None:
    for parent in tmp_path.parents[:3]:
        parent.chmod(parent.stat().st_mode | 0o011)

    def visit(address: str, patience_s: float = 3.0) -> int:
        visitor = subprocess.Popen([sys.executable, "-c", VISITOR, address, str(int(1000 * patience_s))])
        house.until(lambda: visitor.poll() is not None)
        return visitor.returncode

    assert visit(house.people_here, PATIENCE_S) == 0
    assert [who for who, _ in house.heard] == ["user:nobody"]
    assert visit(house.machines_here) == 7, "no agent of another user"
    tmp_path.chmod(0o700)
    assert visit(house.people_here) == 7
    assert len(house.heard) == 1


def test_a_socket_where_others_may_write_is_not_opened_to_visitors(house: House, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(OperatorError, match="others may write"):
        house.listener.listen(PEOPLE, [f"ipc://{tmp_path}/open/people"], house.hear)


def test_a_bucket_gives_so_many_at_once_and_so_many_a_second() -> None:
    bucket = Bucket(10.0, 3.0)
    assert [bucket.take(100.0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(100.125) for _ in range(2)] == [True, False]
    assert sum(bucket.take(200.0) for _ in range(10)) == 3


def test_the_log_has_one_line_a_while_about_each_of_a_bounded_number_of_subjects() -> None:
    limiter = SubjectRateLimiter(interval_s=10.0, subjects=100)
    assert limiter.admit("a", 0.0) == 0
    assert [limiter.admit("a", 1.0) for _ in range(5)] == [None] * 5
    assert limiter.admit("b", 1.0) == 0
    assert limiter.admit("a", 10.0) == 5
    for number in range(1000):
        limiter.admit(str(number), 11.0)
    assert len(limiter._subjects) <= 100


def test_workers_of_a_job_are_heard_by_its_leader_and_others_are_not(tmp_path: Path) -> None:
    context: zmq.Context = zmq.Context()
    clock = SteadyClock()
    loop = Loop(clock, lambda: None, lambda: clock.now() + 0.01)
    job, other = Pair.new(), Pair.new()
    heard: list[bytes] = []
    JobKeyAuthenticator(context, loop, job)
    leader = transport.router(context, job)
    address = transport.bind(leader, "tcp://127.0.0.1:*", job)
    loop.add_socket(leader, lambda frames: heard.append(frames[-1]))
    stranger = transport.dealer(context, address, b"w.1", other, job.public)  # it knows the job's public key
    ignorant = transport.fellow(context, address, b"w.1", other)
    fellow = transport.fellow(context, address, b"w.1", job)
    for socket_, said in ((stranger, b"forged"), (ignorant, b"forged"), (fellow, b"ready")):
        socket_.send(said)
    deadline = time.monotonic() + PATIENCE_S
    while b"ready" not in heard:
        assert time.monotonic() < deadline
        loop.turn()
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        loop.turn()
    assert heard == [b"ready"]
    context.destroy(linger=0)
