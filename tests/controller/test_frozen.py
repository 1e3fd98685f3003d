"""A controller that a local user has frozen (kernels before Linux 6.16): the service manager notices and restarts it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from elasticd.ctl.client import Client
from elasticd.protocol.messages import Ping, Pong
from tests.runtime.held_up import hold_up, is_held_up, needs_stacks

PATIENCE_S = 120.0
WATCHDOG_S = 2.0
OLD_KERNEL = """
import sys
from elasticd.runtime import self_heartbeat, transport
transport.take_no_descriptors = lambda socket: None
self_heartbeat.PATIENCE_S, self_heartbeat.FEWEST_SENT = 2.0, 2
from elasticd.controller.__main__ import main
sys.exit(main())
"""


class Manager:
    """A model of systemd: starts the controller, and receives its watchdog messages."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(str(directory / "notify"))
        self.clients = directory / "run" / "clients"
        self.clients.parent.mkdir(mode=0o711)
        options = {
            "state_directory": str(directory / "state"),
            "listen_clients": f"ipc://{self.clients}",
            "listen_agents": f"ipc://{self.clients.parent}/agents",
            "log_file": str(directory / "log"),
        }
        (directory / "controller.yaml").write_text(yaml.safe_dump(options))

    def start(self) -> subprocess.Popen[bytes]:
        watched = {"NOTIFY_SOCKET": str(self.directory / "notify"), "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6))}
        command = [sys.executable, "-c", OLD_KERNEL, "--config", str(self.directory / "controller.yaml")]
        process = subprocess.Popen(command, env=os.environ | watched)
        self.until(lambda: "READY=1" in self.heard())
        return process

    def heard(self) -> list[str]:
        found = []
        while True:
            try:
                found.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return found

    def is_fed_within(self, seconds: float) -> bool:
        """Has the controller sent a watchdog message?"""
        self.heard()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if "WATCHDOG=1" in self.heard():
                return True
            time.sleep(0.05)
        return False

    def answers(self) -> bool:
        client = Client(f"ipc://{self.clients}")
        try:
            return isinstance(client.ask(Ping(), timeout_s=PATIENCE_S), Pong)
        finally:
            client.close()

    @staticmethod
    def until(holds: Callable[[], object]) -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < give_up_at
            time.sleep(0.05)

    def close(self) -> None:
        self._socket.close()


@pytest.mark.cluster
@needs_stacks
def test_a_controller_that_is_frozen_says_so_by_silence_and_ends_at_the_watchdogs_signal(tmp_path: Path) -> None:
    for parent in (tmp_path, *tmp_path.parents[:3]):
        parent.chmod(parent.stat().st_mode | 0o011)
    manager = Manager(tmp_path)
    process = manager.start()
    try:
        assert manager.answers()
        assert manager.is_fed_within(PATIENCE_S)
        here, senders = hold_up(manager.clients, lambda: is_held_up(str(process.pid)))
        manager.until(lambda: "a peer may block the thread that receives" in (tmp_path / "log").read_text())
        assert process.poll() is None
        assert not manager.is_fed_within(2 * WATCHDOG_S)
        process.send_signal(signal.SIGABRT)  # as systemd does
        assert process.wait(PATIENCE_S) == -signal.SIGABRT
        here.close()
        for sender in senders:
            sender.wait(PATIENCE_S)
        process = manager.start()
        assert manager.answers()
        assert manager.is_fed_within(PATIENCE_S)
    finally:
        process.kill()
        process.wait()
        manager.close()
