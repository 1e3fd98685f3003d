"""Sockets for the workers of an agent: one per account, so that no user can pose as another user's worker.

A socket is a file to which only its account (and root) may connect, in a directory that only the agent may write to. So the
account can neither replace it nor prevent a later agent from creating it again. The kernel identifies the account of each
connection.

Each socket has a listener, which limits connections, messages and bytes of its account, and cuts a connection that exceeds a
limit. Each also has its own ZeroMQ I/O thread: before Linux 6.16 an account can block that thread
(`transport.take_no_descriptors`), and then only its own workers go unheard.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import zmq

from ..protocol.errors import ElasticError
from ..protocol.principals import LOCAL_OPERATOR, Principal, Role
from ..runtime import memory, transport
from ..runtime.floods import Floods
from ..runtime.keys import Principals
from ..runtime.listener import Bounds, EndpointConfig, Listener, Peer
from ..runtime.loop import Loop
from .accounts import Account

MAX_MESSAGE_BYTES = 1 << 20
MAX_ACCOUNTS = 256
CLOSE_WITHIN_S = 1.0
LOOK_INTERVAL_S = 1.0  # between two checks of the memory
LISTENER = bytes(1)  # prefix of a peer: index of the listener's first socket, and these listeners have one socket each

Heard = Callable[
    [int, list[bytes]], None
]  # called with the account's uid and the frames: the worker's name, its message


class _OneAccount(Principals):
    """Principals of an account's socket: that account, and the agent's own."""

    def __init__(self, account: Account) -> None:
        super().__init__()
        self._uid = account.uid
        self._who = Principal(role=Role.USER, name=account.name or str(account.uid))

    def of_uid(self, uid: int) -> Principal | None:
        if uid == os.getuid():
            return LOCAL_OPERATOR
        return self._who if uid == self._uid else None


@dataclass(frozen=True)
class _Line:
    context: zmq.Context[transport.Socket]
    listener: Listener


class WorkerSockets:
    """The sockets of one agent, used from the loop's thread."""

    def __init__(self, loop: Loop, address_for: Callable[[Account], str], heard: Heard, bounds: Bounds) -> None:
        """bounds: limits on each account."""
        self._loop = loop
        self._address_for = address_for
        self._heard = heard
        self._bounds = bounds
        self._lines: dict[int, _Line] = {}
        self.floods = Floods()  # of all accounts
        self._memory = memory.Keeper()
        self._look_at_s = 0.0  # time of the next check whether memory can be returned (monotonic)

    def listen(self, account: Account) -> str:
        """Open the socket for the workers of an account. Returns the reason of a failure, or ""."""
        if account.uid in self._lines:
            return ""
        if len(self._lines) >= MAX_ACCOUNTS:
            return f"workers of {MAX_ACCOUNTS} accounts have run here: this agent must be started anew"
        address = self._address_for(account)
        path = Path(address.removeprefix("ipc://"))
        context = transport.context()
        listener = Listener(
            context,
            self._loop,
            None,
            _OneAccount(account),
            self._bounds,
            most=2 * self._bounds.connections,
            floods=self.floods,
        )
        line = _Line(context, listener)
        config = EndpointConfig(
            name=f"workers of {account.name or account.uid}",
            remote=(),
            local=(Role.USER, Role.OPERATOR),
            frame_bytes=MAX_MESSAGE_BYTES,
            waiting_out=transport.QUEUE_MESSAGES,
            owner=account.uid,
            names=True,  # a connection is named after its worker
            repeated=lambda frames: True,  # a worker's newest status replaces its older ones
        )

        def hear(peer: Peer, who: Principal, frames: list[bytes]) -> None:
            self._heard(account.uid, [peer[len(LISTENER) :], *frames])

        try:
            if not account.own:
                let_pass(path.parent.parent)
                let_pass(path.parent)
            listener.listen(config, [address], hear)
        except (ElasticError, OSError) as error:
            _close(line)
            return f"its workers cannot be heard: {error}"
        self._lines[account.uid] = line
        return ""

    def send(self, account: Account, name: bytes, data: bytes) -> None:
        line = self._lines.get(account.uid)
        if line is not None:
            line.listener.send(LISTENER + name, data)

    @property
    def waiting(self) -> int:
        """Number of received messages that are not handled yet."""
        return sum(line.listener.waiting for line in self._lines.values())

    def pass_time(self) -> None:
        for line in self._lines.values():
            line.listener.pass_time()
        now_s = time.monotonic()
        if now_s >= self._look_at_s and not self.waiting:
            self._look_at_s = now_s + LOOK_INTERVAL_S
            self._memory.look(now_s)

    def close(self) -> None:
        for line in self._lines.values():
            _close(line)
        self._lines.clear()


def _close(line: _Line) -> None:
    """Close a socket without waiting for a ZeroMQ thread that is blocked."""
    line.listener.close()
    thread = threading.Thread(target=line.context.term, name="closing a line", daemon=True)
    thread.start()
    thread.join(CLOSE_WITHIN_S)


def let_pass(path: Path) -> None:
    """Let other accounts pass through a directory of this agent's without listing it. Raises OSError."""
    found = path.lstat()
    closed = not found.st_mode & stat.S_IXOTH
    if closed and stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
        path.chmod(stat.S_IMODE(found.st_mode) | 0o011)
