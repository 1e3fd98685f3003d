"""Ports that this server keeps free for the rendezvous of gangs: one for each GPU.

Theory of operation
-------------------
The processes of a distributed script meet at one port of their first process's server, and all must know its number
before they start. A number that merely happens to be free may be taken by then. So the agent binds a socket for each of
its GPUs, listens on none of them, and reports the numbers with its hello: a gang uses the port of its first process's
first GPU, where no second gang can be. With SO_REUSEADDR on both sides the kernel lets a process listen on a port that
another socket is only bound to; torch's store and all servers of Python's library set it. SO_REUSEPORT on this side
also admits programs that set only that option, in the agent's own account.

The kernel gives a bound port to no process that asks for any free one. A restarted agent binds other ports, which does
not disturb running gangs: their processes have met.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterable

import msgspec

from ..protocol.model import Gpu

log = logging.getLogger(__name__)


class Ports:
    """The sockets of one agent."""

    def __init__(self) -> None:
        self._kept: dict[int, socket.socket] = {}  # by GPU

    def keep(self, gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
        """Return the same GPUs, each with its port. Without a port (0), the controller names one unchecked."""
        return tuple(msgspec.structs.replace(gpu, port=self._port(gpu.index)) for gpu in gpus)

    def _port(self, index: int) -> int:
        if index not in self._kept:
            try:
                self._kept[index] = _bound()
            except OSError as error:
                log.warning("no port can be kept for GPU %d: %s", index, error)
                return 0
        found: int = self._kept[index].getsockname()[1]
        return found

    def close(self) -> None:
        """Close all sockets."""
        for kept in self._kept.values():
            kept.close()
        self._kept.clear()


def _bound() -> socket.socket:
    """Return a socket on a free port, for both address families where there are two. Raises OSError."""
    found = socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if found.family == socket.AF_INET6:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        found.bind(("", 0))  # before the options that follow, so that no other agent gets this port as well
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except OSError:
        found.close()
        raise
    return found
