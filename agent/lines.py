"""The sockets on which workers talk: one for each account, so that no user can speak as another one's worker.

A socket is a file that only its account (and root) may connect to, in a directory that only the agent may write to: the account
can neither replace it nor keep a later agent from making it again. Which account a message came from is known by the socket.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import zmq

from ..protocol.errors import ElasticError
from ..runtime import transport
from ..runtime.loop import Loop
from .accounts import Account

MAX_MESSAGE_BYTES = 1 << 20
MAX_ACCOUNTS = 256

Heard = Callable[[int, list[bytes]], None]  # from a worker of the account with this number


class WorkerLines:
    """The sockets of one agent. For the loop's thread."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        loop: Loop,
        address_for: Callable[[Account], str],
        heard: Heard,
    ) -> None:
        self._context = context
        self._loop = loop
        self._address_for = address_for
        self._heard = heard
        self._sockets: dict[int, zmq.Socket[bytes]] = {}

    def listen(self, account: Account) -> str:
        """Hear the workers of an account from now on. Returns why that cannot be, or ""."""
        if account.uid in self._sockets:
            return ""
        if len(self._sockets) >= MAX_ACCOUNTS:
            return f"workers of {MAX_ACCOUNTS} accounts have run here: this agent must be started anew"
        address = self._address_for(account)
        path = Path(address.removeprefix("ipc://"))
        socket = transport.router(self._context)
        socket.maxmsgsize = MAX_MESSAGE_BYTES
        try:
            if not account.own:
                let_pass(path.parent.parent)
                let_pass(path.parent)
            transport.bind(socket, address)
            path.chmod(0o600)
            if not account.own:
                os.chown(path, account.uid, -1)
        except (ElasticError, OSError) as error:
            socket.close()
            return f"its workers cannot be heard: {error}"
        self._sockets[account.uid] = socket
        self._loop.add_socket(socket, lambda frames: self._heard(account.uid, frames))
        return ""

    def send(self, account: Account, name: bytes, data: bytes) -> None:
        socket = self._sockets.get(account.uid)
        if socket is not None:
            transport.send(socket, name, data)

    def close(self) -> None:
        for socket in self._sockets.values():
            socket.close()


def let_pass(path: Path) -> None:
    """Let other accounts through a directory of this agent's, without showing them what is in it. Raises OSError."""
    found = path.lstat()
    closed = not found.st_mode & stat.S_IXOTH
    if closed and stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
        path.chmod(stat.S_IMODE(found.st_mode) | 0o011)
