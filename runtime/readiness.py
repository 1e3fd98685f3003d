"""Readiness for systemd (``Type=notify``, sd_notify(3)): a datagram to the socket that the service manager names."""

from __future__ import annotations

import os
import socket


def notify(state: str, environment: dict[str, str] | os._Environ[str] = os.environ) -> bool:
    """Tell the service manager `state` ("READY=1", "STOPPING=1", "WATCHDOG=1"). False: there is none."""
    path = environment.get("NOTIFY_SOCKET")
    if not path:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
        connection.connect("\0" + path[1:] if path.startswith("@") else path)
        connection.sendall(state.encode())
    return True
