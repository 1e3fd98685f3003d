"""A peer that sends an open file with SO_LINGER: its receiver blocks in the kernel, as with any Linux before 6.16."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SENDS_LINGERING = """
import os, socket, struct, sys
path, port = sys.argv[1:]
full = socket.create_connection(("127.0.0.1", int(port)))
full.setblocking(False)
try:
    while True:
        full.send(bytes(1 << 16))
except BlockingIOError:
    pass
full.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 300))
peer, descriptor = socket.socket(socket.AF_UNIX), full.detach()
peer.connect(path)
socket.send_fds(peer, [b"\\xff" + bytes(8) + b"\\x7f"], [descriptor])
os.close(descriptor)  # if it has been received already, this process waits in place of the other one
"""


def is_held_up(process: str = "self") -> bool:
    """Is one of the process's threads blocked in the kernel until a socket is empty?"""
    return any(b"sk_stream_wait_close" in path.read_bytes() for path in Path(f"/proc/{process}/task").glob("*/stack"))


def hold_up(path: Path, until: Callable[[], bool]) -> tuple[socket.socket, list[subprocess.Popen[bytes]]]:
    """Send lingering open files until a receiver blocks on one. Closing the socket releases all."""
    here = socket.create_server(("127.0.0.1", 0), backlog=50)  # accepts, and reads nothing
    senders = []
    for _ in range(20):
        words = [sys.executable, "-c", SENDS_LINGERING, str(path), str(here.getsockname()[1])]
        senders.append(subprocess.Popen(words))
        give_up_at = time.monotonic() + 3.0
        while time.monotonic() < give_up_at:
            if until():
                return here, senders
            time.sleep(0.05)
    raise AssertionError("nobody is held up")


needs_stacks = pytest.mark.skipif(
    os.getuid() != 0 or not Path("/proc/self/stack").exists(), reason="needs kernel stacks"
)
