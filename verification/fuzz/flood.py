"""Flood of a controller that is starved of processor time.

Some users over the network, and one local user, send at twice their limit over several connections, and reconnect when they are
cut. The controller shares one core with another busy process, and is suspended once for a moment, as on a machine that swaps.
Meanwhile an honest user submits jobs, and an honest server renews its lease. The campaign checks:

* **memory**: peak resident memory (``VmHWM``) during the flood, against that before it with all connections established;
* **lag**: the backlog of the loop, as the *processor time* that the controller uses between an honest request and its answer.
This is the work done before the answer. Unlike wall-clock time it does not depend on the load of the machine;
* **work**: every acknowledged job exists at the end.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import zmq

from elasticd.protocol.messages import Envelope, GetJobs, Jobs, Ping
from elasticd.runtime import transport
from elasticd.runtime.keys import KeyFile
from elasticd.runtime.listener import Bounds

from .grammar import encode
from .sockets import MOST_GROWTH_BYTES, HonestServer, Tally, submit
from .subjects import PATIENCE_S, Controller, Fault, Socket

USERS = 4
LINES_OF_A_USER = 5
TIMES_TOO_MUCH = 2.0
MOST_LAG_S = 2.0  # of the controller's processor time
STANDS_STILL_S = 1.0
ASK_EVERY_S = 0.2
WARM_UP = 1000  # messages; a multiple of the connections
BATCH_S = 0.001  # period of sending: rarely two messages over one connection at once


def at_starved_controller(seed: str, context: zmq.Context[Socket], directory: Path, frames: int) -> Tally:
    """Send `frames` small messages in all, at a fixed rate. Raises Fault."""
    rng, tally, bounds = random.Random(seed), Tally("a flood at a starved controller"), Bounds()
    controller = Controller(
        directory / "f", context, messages_per_s=bounds.messages_per_s, messages_at_once=int(bounds.messages_burst)
    )
    controller.come_as(controller.alice)
    server = HonestServer(context, controller.agents_tcp, "s2", controller.s2)
    keys = [controller.key_of(f"user{number}") for number in range(USERS)]
    lines = [_line(context, controller, key) for key in keys for _ in range(LINES_OF_A_USER)]
    lines += [
        transport.dealer(context, controller.clients) for _ in range(LINES_OF_A_USER)
    ]  # connections of the controller's own Unix user
    flood = _Flood(lines, rng, (USERS + 1) * TIMES_TOO_MUCH * bounds.messages_per_s, frames)
    flood.warm_up()
    jobs = [submit(controller)]
    controller.wait_until_idle()
    tally.first = controller.vitals()
    controller.forget_peak()
    began, lag_s = time.monotonic(), 0.0
    with _starved(controller):
        flood.start()
        stands_still_at = began + frames / flood.rate / 2
        while flood.is_alive():
            if time.monotonic() > stands_still_at:
                stands_still_at = float("inf")
                controller.stand_still(STANDS_STILL_S)
            server.go_on()
            lag_s = max(lag_s, _asked(controller, jobs, tally))
            time.sleep(ASK_EVERY_S)
        flood.join()
        lag_s = max(lag_s, _asked(controller, jobs, tally))
    for line in lines:
        line.close()
    controller.wait_until_idle()
    time.sleep(2.0)  # memory is returned to the system about once a second
    tally.frames, tally.seconds, tally.last = flood.said, time.monotonic() - began, controller.vitals()
    peak = controller.peak_bytes()
    tally.notes.append(f"at most {peak / 1e6:.0f} MB; at most {lag_s:.2f} s of work before an honest request")
    grown = peak - tally.first.memory_bytes
    if grown > MOST_GROWTH_BYTES:
        raise Fault(f"memory has grown by {grown / 1e6:.0f} MB; {tally}")
    if lag_s > MOST_LAG_S:
        raise Fault(f"an honest request was answered after {lag_s:.1f} s of other work; {tally}")
    found, _ = controller.ask(GetJobs())
    there = {job.job for job in found.jobs} if isinstance(found, Jobs) else set()
    if missing := [job for job in jobs if job not in there]:
        raise Fault(f"{len(missing)} of {len(jobs)} jobs that were acknowledged are not there: {missing[:5]}; {tally}")
    tally.notes.append(f"{len(jobs)} jobs were acknowledged, and all are there")
    server.close()
    controller.close()
    return tally


def _asked(controller: Controller, jobs: list[str], tally: Tally) -> float:
    """Submit a job as an honest user. Returns the controller's processor time until the answer (s)."""
    worked_s, began = controller.busy_s(), time.monotonic()
    jobs.append(submit(controller))
    tally.slowest_s = max(tally.slowest_s, time.monotonic() - began)
    return controller.busy_s() - worked_s


def _line(context: zmq.Context[Socket], controller: Controller, key: KeyFile) -> Socket:
    return transport.dealer(context, controller.clients_tcp, b"", key.pair, key.controller_public)


class _Flood(threading.Thread):
    """Sends messages at a fixed rate, whether they are answered or not."""

    def __init__(self, lines: Sequence[Socket], rng: random.Random, rate: float, frames: int) -> None:
        super().__init__(daemon=True)
        self._lines, self._rng = lines, rng
        self.rate, self._frames, self.said = rate, frames, 0

    def warm_up(self) -> None:
        """Establish each connection, and wait for some answers over it. Raises Fault."""
        for number in range(WARM_UP):
            line = self._lines[number % len(self._lines)]
            line.send(self._message())
            if number % len(self._lines) != len(self._lines) - 1:
                continue
            for each in self._lines:
                if not each.poll(int(PATIENCE_S * 1000)):
                    raise Fault("a user is not answered before the flood")
                each.recv()

    def _message(self) -> bytes:
        return encode(Envelope(id=f"{self._rng.getrandbits(128):032x}", request=Ping()))

    def run(self) -> None:
        began = time.monotonic()
        while self.said < self._frames:
            due = min(self._frames, int((time.monotonic() - began) * self.rate))
            for _ in range(max(0, due - self.said)):
                line = self._lines[self.said % len(self._lines)]
                self.said += 1
                with suppress(zmq.Again):  # cut, or not read: skip this message
                    line.send(self._message(), zmq.DONTWAIT)
            for line in self._lines:
                with suppress(zmq.Again):
                    while True:
                        line.recv(zmq.DONTWAIT)
            time.sleep(BATCH_S)


@contextmanager
def _starved(controller: Controller) -> Iterator[None]:
    """Restrict the controller to one core, on which another process is busy."""
    core, *others = sorted(os.sched_getaffinity(0))
    process = psutil.Process(controller.pid)
    for thread in process.threads():
        os.sched_setaffinity(thread.id, {core})
    code = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    busy = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        busy.kill()
        busy.wait()
        for thread in process.threads():
            with suppress(OSError):  # the thread has ended
                os.sched_setaffinity(thread.id, {core, *others})
