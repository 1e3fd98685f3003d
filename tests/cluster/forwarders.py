"""A connection that can be cut: what goes over it waits until it is mended, as packets do that are sent again and again."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

Address = tuple[str, int] | str  # TCP, or a socket of the file system


class Forwarder:
    """Listens at `address` and passes on what comes to and from `target`."""

    def __init__(self, address: Address, target: Address) -> None:
        self._target = target
        self._open = threading.Event()
        self._open.set()
        self._closed = False
        self._sockets: list[socket.socket] = []
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self._listener = socket.socket(family)
        if family == socket.AF_INET:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(address)
        self._listener.listen()
        self.address: Address = self._listener.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """From now on nothing arrives."""
        self._open.clear()

    def mend(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._closed = True
        self._open.set()
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        if isinstance(self.address, str):
            Path(self.address).unlink(missing_ok=True)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self._closed:
                near, _ = self._listener.accept()
                self._open.wait()
                far = socket.socket(socket.AF_UNIX if isinstance(self._target, str) else socket.AF_INET)
                self._sockets += [near, far]
                try:
                    far.connect(self._target)
                except OSError:
                    near.close()
                    continue
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._open.wait()
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
