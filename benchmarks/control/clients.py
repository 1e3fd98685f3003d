"""Process with many clients, each with one request at a time, as `elasticctl` has.

    python -m benchmarks.control.clients ADDRESS SUBMITTERS

Each line on stdin is a phase: `demand SECONDS` (submit a thousand jobs per second, mixed with lists, scale and cancel), `load
SECONDS` (the same, but submit as fast as answers arrive), `look SECONDS` (lists only). Each is answered with one line of JSON.
The process exits at the end of its stdin.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import zmq

from benchmarks.control.store import spec
from elasticd.protocol.codec import Codec
from elasticd.protocol.messages import (
    Answer,
    Cancel,
    Envelope,
    GetJob,
    GetJobs,
    GetServers,
    Jobs,
    Ping,
    Pong,
    Refused,
    Reply,
    Request,
    Scale,
    Servers,
    Submit,
    Submitted,
)
from elasticd.runtime import transport

REPEAT_S = 2.0
DEMANDED_PER_S = 1050.0  # submissions: slightly above the goal, since a late answer delays its client's next request
CLIENTS_PER_SUBMITTER = 4  # at that rate: the number of concurrent requests
Said = list[tuple[float, float]]  # time of each answer (monotonic), and its latency (s)


class Asker:
    """A client: sends one request, repeats it until it is answered, and sends the next after a pause."""

    def __init__(self, address: str, context: zmq.Context[zmq.Socket[bytes]], every_s: float) -> None:
        self.socket = transport.dealer(context, address)
        self.every_s = every_s
        self.said: dict[str, Said] = {}
        self.refused: dict[str, str] = {}
        self.repeats = 0
        self.asked_s = 0.0  # the last time (monotonic)
        self._asked: tuple[Envelope, bytes, float, float] | None = None
        self._codec: Codec[Reply] = Codec(Reply)
        self._name = ""

    @property
    def idle(self) -> bool:
        return self._asked is None

    def ask(self, name: str, request: Request) -> None:
        envelope = Envelope(id=secrets.token_hex(16), request=request)
        data = self._codec.encode(envelope)
        transport.send(self.socket, data)
        self._name = name
        self.asked_s = time.monotonic()
        self._asked = (envelope, data, self.asked_s, self.asked_s)

    def repeat(self, now: float) -> None:
        if self._asked is not None and now - self._asked[3] > REPEAT_S:
            envelope, data, began, _ = self._asked
            transport.send(self.socket, data)
            self.repeats += 1
            self._asked = (envelope, data, began, now)

    def receive(self) -> Answer | None:
        """Return the answer to the present request; None if there is none yet."""
        while True:
            try:
                data = self.socket.recv(zmq.DONTWAIT)
            except zmq.Again:
                return None
            now = time.monotonic()
            reply = self._codec.decode(data)
            if self._asked is None or reply.id != self._asked[0].id:
                continue
            self.said.setdefault(self._name, []).append((now, now - self._asked[2]))
            if isinstance(reply.answer, Refused):
                self.refused[self._name] = reply.answer.reason
            self._asked = None
            return reply.answer


class Crowd:
    """All clients of this process."""

    def __init__(self, address: str, submitters: int) -> None:
        self._chance = random.Random(os.getpid())
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, CLIENTS_PER_SUBMITTER * submitters + 32)
        self._jobs: list[str] = []
        self._alive: list[int] = []
        self._address = address
        self._submitters = submitters

    def run(self) -> None:
        for line in sys.stdin:
            what, seconds = line.split()
            print(json.dumps(self._phase(float(seconds), what)), flush=True)

    def _scripts(self, phase: str) -> Iterator[tuple[float, Callable[[], tuple[str, Request]]]]:
        """Yield each client's interval (0: at once again), and its requests."""
        yield 0.25, lambda: ("ping", Ping())
        yield 0.2, lambda: ("status", GetJobs())
        yield 0.2, lambda: ("servers", GetServers())
        yield 0.2, lambda: ("status JOB", GetJob(job=self._some()) if self._jobs else Ping())
        if phase != "look":
            yield 0.5, lambda: ("cancel", Cancel(job=self._some()) if self._jobs else Ping())
            yield 1.0, lambda: ("scale", Scale(job=self._some(), share=1) if self._jobs else Ping())
            submitters = self._submitters * (CLIENTS_PER_SUBMITTER if phase == "demand" else 1)
            every_s = submitters / DEMANDED_PER_S if phase == "demand" else 0.0
            for _ in range(submitters):
                yield every_s, lambda: ("submit", Submit(spec=spec(self._chance)))

    def _some(self) -> str:
        return self._chance.choice(self._jobs[-1000:])

    def _phase(self, seconds: float, phase: str) -> dict[str, Any]:
        poller = zmq.Poller()
        askers, scripts = [], {}
        for every_s, script in self._scripts(phase):
            asker = Asker(self._address, self._context, every_s)
            askers.append(asker)
            scripts[asker.socket] = (len(askers) - 1, script)
            poller.register(asker.socket, zmq.POLLIN)
        self._alive = []
        began = time.monotonic()
        due = [(began + self._chance.uniform(0, asker.every_s), i) for i, asker in enumerate(askers)]
        heapq.heapify(due)
        while (now := time.monotonic()) < began + seconds:
            while due and due[0][0] <= now:
                _, i = heapq.heappop(due)
                name, request = scripts[askers[i].socket][1]()
                askers[i].ask(name, request)
            for socket, _ in poller.poll(10):
                number, script = scripts[socket]
                asker = askers[number]
                answer = asker.receive()
                if answer is None:
                    continue
                self._note(answer)
                if asker.every_s:
                    heapq.heappush(due, (max(now, asker.asked_s + asker.every_s), number))
                else:
                    asker.ask(*script())
            for asker in askers:
                asker.repeat(now)
        for asker in askers:
            asker.socket.close()
        return self._told(askers, began, seconds)

    def _note(self, answer: Answer) -> None:
        match answer:
            case Submitted(job=job):
                self._jobs.append(job)
            case Pong(servers=alive):
                self._alive.append(alive)
            case Jobs() | Servers():
                pass

    def _told(self, askers: list[Asker], began: float, seconds: float) -> dict[str, Any]:
        said: dict[str, Said] = {}
        refused: dict[str, str] = {}
        for asker in askers:
            refused |= asker.refused
            for name, entries in asker.said.items():
                said.setdefault(name, []).extend(entries)
        rates = [0] * max(1, int(seconds))
        for at, _ in said.get("submit", ()):
            rates[min(int(at - began), len(rates) - 1)] += 1
        return {
            "latencies_s": {name: [took for _, took in sorted(entries)] for name, entries in said.items()},
            "submissions_by_second": rates,
            "refused": refused,
            "repeats": sum(asker.repeats for asker in askers),
            "fewest_servers": min(self._alive, default=0),
        }


if __name__ == "__main__":
    Crowd(sys.argv[1], int(sys.argv[2])).run()
    os._exit(0)
