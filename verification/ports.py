"""Loopback ports for daemons that must know theirs before they listen.

A port that the kernel gave to a probe, which then closes it, may be given to any other process before the daemon listens. These
are below the kernel's own (`ip_local_port_range`). Each stays reserved, against others that ask here, until this process ends.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOWEST = 10_000
KERNELS = Path("/proc/sys/net/ipv4/ip_local_port_range")

_reserved: list[socket.socket] = []  # Unix sockets, each named after the port that it reserves


def free_port() -> int:
    """Return a port of 127.0.0.1 at which nothing listens, now or by the kernel's choice."""
    highest = int(KERNELS.read_text().split()[0]) - 1
    while True:
        port = random.SystemRandom().randint(LOWEST, highest)
        reservation = socket.socket(socket.AF_UNIX)
        try:
            reservation.bind(f"\0elasticctl-port-{port}")
            with socket.create_server(("127.0.0.1", port)):
                pass
        except OSError:  # reserved, or in use
            reservation.close()
            continue
        _reserved.append(reservation)
        return port
