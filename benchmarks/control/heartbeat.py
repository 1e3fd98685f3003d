"""Cost of one heartbeat of an agent to a controller that has recovered from a store, without sockets.

python -m benchmarks.control.heartbeat STORE AGENT_NUMBER GPUS
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from pathlib import Path

from benchmarks.control.store import CLUSTER, identity, server
from elasticd.controller.events import AgentMessage
from elasticd.controller.machine import ControllerMachine
from elasticd.controller.settings import Settings
from elasticd.controller.store import SqliteStore
from elasticd.controller.turn import Turn
from elasticd.protocol.messages import AgentHeartbeat, AgentHello
from elasticd.scheduler.scheduler import load_scheduler

HEARTBEATS = 2000


def main() -> None:
    path, number, gpus = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    store = SqliteStore(path)
    now = time.time()

    def build(now: float, records: object) -> ControllerMachine:
        settings = Settings(cluster="bench", incarnation="c", version="0", pid=1)
        scheduler = load_scheduler({"policy": "max-min"}, "bench")
        return ControllerMachine(settings, scheduler, random.Random(0), now, records)  # type: ignore[arg-type]

    began = time.perf_counter()
    turn = Turn(store, build, now)
    recovered_s = time.perf_counter() - began
    here = server(number, gpus).server
    for other in range(number + 1):  # so that all agents are registered
        said = AgentHello(
            server=server(other, gpus), incarnation="a", workers=(), starting=(), exited=(), number=1,
            agent=identity(other), cluster=CLUSTER,
        )  # fmt: skip
        turn.take(now, AgentMessage(said.server.server, said, said.agent))
    for _ in range(20):
        now += 0.001
        turn.finish(now)
    took = []
    beat = AgentHeartbeat(server=here)
    for _ in range(HEARTBEATS):
        now += 0.0005
        began = time.perf_counter()
        turn.take(now, AgentMessage(here, beat, identity(number)))
        turn.finish(now)
        turn.next_deadline()
        took.append(time.perf_counter() - began)
    print(json.dumps({"median_s": statistics.median(took), "recovered_s": recovered_s}))


if __name__ == "__main__":
    main()
