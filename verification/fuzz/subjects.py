"""A controller and an agent as processes with their own sockets, and their state as observed from outside."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml
import zmq

from elasticd.protocol.codec import Codec
from elasticd.protocol.messages import (
    Acknowledged,
    AgentHello,
    Answer,
    Envelope,
    Message,
    Ping,
    Reply,
    Request,
    ToControllerFromAgent,
)
from elasticd.runtime import transport
from elasticd.runtime.keys import KeyDirectory, KeyFile

from ..ports import free_port

PATIENCE_S = 30.0  # for an answer, while the process handles corrupted messages
START_PATIENCE_S = 300.0  # for the first answer: on a busy machine it has taken more than 30 s
IDLE_S = 0.04  # without processor use, after which a process counts as idle

Socket = zmq.Socket[bytes]


class Fault(Exception):
    """A process has violated a requirement that holds for any input."""


@dataclass(frozen=True)
class Vitals:
    """Resource usage of a process."""

    memory_bytes: int  # resident
    descriptors: int
    threads: int
    log_bytes: int

    def __str__(self) -> str:
        memory_mb, log_kb = self.memory_bytes / 1e6, self.log_bytes / 1e3
        return f"{memory_mb:.0f} MB, {self.descriptors} descriptors, {self.threads} threads, log {log_kb:.0f} kB"


class Subject:
    """A running daemon."""

    def __init__(self, module: str, directory: Path, options: Mapping[str, Any]) -> None:
        directory.mkdir(mode=0o700)
        self.name = module.rpartition(".")[2]
        self.directory = directory
        self._log = directory / "log"
        self._config = directory / "config.yaml"
        self._config.write_text(yaml.safe_dump(dict(options)))
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", module, "--config", str(self._config)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=_environment())
        self._seen = psutil.Process(self._process.pid)

    def vitals(self) -> Vitals:
        """Measure resource usage. Raises Fault if the process has exited."""
        self.check_alive()
        with self._seen.oneshot():
            memory, threads = self._seen.memory_info().rss, self._seen.num_threads()
        files = sum(file.stat().st_size for file in self.directory.rglob("*log*") if file.is_file())
        return Vitals(memory, self._seen.num_fds(), threads, files)

    def check_alive(self) -> None:
        if self._process.poll() is not None:
            raise Fault(f"the {self.name} has ended with exit code {self._process.returncode}:\n{self.log()[-6000:]}")

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def busy_s(self) -> float:
        """Return the processor time used so far (s)."""
        times = self._seen.cpu_times()
        return float(times.user + times.system)

    @property
    def pid(self) -> int:
        return self._process.pid

    def forget_peak(self) -> None:
        """Reset `peak_bytes` to the present memory."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def peak_bytes(self) -> int:
        """Return the peak of resident memory."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s*(\d+) kB", status)[0]) << 10

    def stand_still(self, seconds: float) -> None:
        """Suspend the process (SIGSTOP) for so many seconds."""
        self._process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self._process.send_signal(signal.SIGCONT)

    def wait_until_idle(self, patience_s: float = PATIENCE_S) -> float:
        """Wait until all that was sent has been handled. Returns the time (s). Raises Fault if the process stays busy."""
        began, before = time.monotonic(), self.busy_s()
        while (waited_s := time.monotonic() - began) < patience_s:
            time.sleep(IDLE_S)
            self.check_alive()
            now = self.busy_s()
            if now - before <= IDLE_S / 4:
                return waited_s
            before = now
        raise Fault(f"the {self.name} is still busy {waited_s:.0f} s after the last frame")

    def close(self) -> None:
        """Terminate the process. Raises Fault if it does not exit cleanly."""
        self._process.terminate()
        try:
            code = self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise Fault(f"the {self.name} does not end within {PATIENCE_S:.0f} s of SIGTERM") from None
        if code != 0:
            raise Fault(f"the {self.name} has ended with exit code {code}:\n{self.log()[-6000:]}")


class Controller(Subject):
    """A controller, with a client that it must always answer. It listens on Unix sockets for its own user, and on TCP for the
    user alice and the server s2."""

    def __init__(self, directory: Path, context: zmq.Context[Socket], **limits: Any) -> None:
        """limits: on one principal; by default practically none, as one principal sends all of a campaign's messages."""
        ports = [free_port() for _ in range(2)]
        self.clients, self.agents = (f"ipc://{directory}/state/{name}" for name in ("clients", "agents"))
        self.clients_tcp, self.agents_tcp = (f"tcp://127.0.0.1:{port}" for port in ports)
        self._keys = keys = KeyDirectory(directory.with_name(f"{directory.name}-keys"))
        keys.make()
        self.alice, self.s2 = (
            keys.add(f"{role}:{name}", "", keys.path / f"{name}.key", None)
            for role, name in (("user", "alice"), ("server", "s2"))
        )
        given = {
            "cluster": "fuzz",
            "state_directory": str(directory / "state"),
            "keys_directory": str(keys.path),
            "listen_clients": [self.clients, self.clients_tcp],
            "listen_agents": [self.agents, self.agents_tcp],
            "limits": limits or {"messages_per_s": 1e7, "messages_at_once": 100_000_000},
            "policy": "elastic",
        }
        super().__init__("elasticd.controller", directory, given)
        self._context = context
        self._line = transport.dealer(context, self.clients)
        self._replies: Codec[Reply] = Codec(Reply)
        self.ask(Ping(), START_PATIENCE_S)

    def key_of(self, user: str) -> KeyFile:
        """Issue a new key to a user."""
        return self._keys.add(f"user:{user}", "", self._keys.path / f"{user}.key", None)

    def come_as(self, key: KeyFile) -> None:
        """Send further requests over TCP, with this key."""
        self._line.close()
        self._line = transport.dealer(self._context, self.clients_tcp, b"", key.pair, key.controller_public)

    def ask(self, request: Request, patience_s: float = PATIENCE_S) -> tuple[Answer, float]:
        """Return the answer, and the time that it took (s). Raises Fault if there is none."""
        envelope = Envelope(id=secrets.token_hex(16), request=request)
        began, data = time.monotonic(), self._replies.encode(envelope)
        while (waited_s := time.monotonic() - began) < patience_s:
            self.check_alive()
            transport.send(self._line, data)
            while self._line.poll(1000):
                reply = self._replies.decode(self._line.recv())
                if reply.id == envelope.id:
                    return reply.answer, time.monotonic() - began
        raise Fault(f"no answer to {type(request).__name__} within {waited_s:.0f} s:\n{self.log()[-3000:]}")

    def close(self) -> None:
        self._line.close()
        super().close()


class Agent(Subject):
    """An agent, with this process as its controller."""

    def __init__(self, directory: Path, context: zmq.Context[Socket], cpu_slots: int = 4, **messages: Any) -> None:
        """messages: limits on workers; by default practically none, as two workers send all of a campaign's messages."""
        address = f"ipc://{directory}-c.sock"
        self.line = transport.router(context)
        transport.bind(self.line, address)
        self.workers = f"ipc://{directory}/sockets/workers"
        options = {
            "server": "s1",
            "controller": address,
            "state_directory": str(directory / "state"),
            "socket_directory": str(directory / "sockets"),
            "cpu_slots": cpu_slots,
            "warm_start": False,
            "allow_root_jobs": True,
            "worker_messages": messages or {"per_s": 1e7, "at_once": 100_000_000},
            "heartbeat_interval_s": 0.5,
        }
        super().__init__("elasticd.agent", directory, options)
        self._codec: Codec[ToControllerFromAgent] = Codec(ToControllerFromAgent)
        self._peer = b""
        self._sent = 0
        self.session = ""
        self.heard = 0

    def say(self, *frames: bytes) -> bool:
        """Send to the agent as its controller. Returns False if it is not connected, or its queue is full."""
        return bool(self._peer) and transport.send(self.line, self._peer, *frames)

    def tell(self, message: Message) -> bool:
        return self.say(self._codec.encode(message))

    def listen(self, wait_s: float) -> list[ToControllerFromAgent]:
        """Return the agent's messages within `wait_s`; hellos and heartbeats are answered, as a controller does."""
        found: list[ToControllerFromAgent] = []
        until = time.monotonic() + wait_s
        while self.line.poll(max(0, int(1000 * (until - time.monotonic())))):
            frames = self.line.recv_multipart()
            self._peer = frames[0]
            message = self._codec.decode(frames[-1])  # the frames before it hold the agent's name
            found.append(message)
            self.heard += 1
            if isinstance(message, AgentHello):
                self.session, self._sent = message.session, 0
                self.tell(Acknowledged(incarnation="c", sent=0, cluster="fuzz", session=self.session))
        return found

    def check_answers(self) -> float:
        """Wait for a message of the agent. Returns the time (s). Raises Fault if there is none."""
        began = time.monotonic()
        while (waited_s := time.monotonic() - began) < PATIENCE_S:
            self.check_alive()
            if self.listen(0.05):
                return waited_s
        raise Fault(f"the agent has said nothing for {waited_s:.0f} s:\n{self.log()[-3000:]}")

    def close(self) -> None:
        super().close()
        self.line.close()

    def close_with_workers(self) -> None:
        """Terminate the agent and kill its workers, which would outlive it."""
        self.close()
        for process in psutil.process_iter(["cmdline"]):
            if str(self.directory) in " ".join(process.info["cmdline"] or ()):
                for each in (*process.children(recursive=True), process):
                    with suppress(psutil.NoSuchProcess):
                        each.kill()


def _environment() -> dict[str, str]:
    """Return the environment without variables that affect logs and warnings of the test process alone."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "ELASTICD"))}
