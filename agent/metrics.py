"""The agent's metrics (docs/metrics.md lists all of them)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ..protocol.figures import Buckets, Figure, Kind, counter, gauge, histogram, labelled, table
from ..protocol.messages import Acknowledged, AgentHeartbeat, AgentHello
from ..protocol.model import Server, Trouble
from .machine import AgentMachine
from .monitoring import GpuUse


@dataclass
class Tally:
    """Counters and times of events since the agent's start."""

    answers: Buckets = field(default_factory=Buckets)
    starts: int = 0
    ends: int = 0
    statuses: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: {"controller": 0, "worker": 0})
    unsent: int = 0
    heard_s: float | None = None  # when the last message of the controller came
    _asked_s: float | None = None  # when the request was sent that the controller has not answered yet

    def sent(self, message: object, went: bool) -> None:
        """Count a message to the controller; `went`: there is a connection."""
        if not went:
            self.unsent += 1
        elif isinstance(message, AgentHeartbeat | AgentHello) and self._asked_s is None:
            self._asked_s = time.perf_counter()

    def heard(self, message: object) -> None:
        """Count a message of the controller."""
        self.heard_s = time.perf_counter()
        if isinstance(message, Acknowledged) and self._asked_s is not None:
            self.answers.add(self.heard_s - self._asked_s)
            self._asked_s = None


def figures(
    machine: AgentMachine, tally: Tally, server: Server, troubles: Iterable[Trouble], gpus: Mapping[int, GpuUse]
) -> list[Figure]:
    """Return all metrics of the agent. `gpus`: use of those that workers have."""
    return [*_server(server, troubles), _gpus(gpus), *_workers(machine, tally), *_controller(machine, tally)]


def _server(server: Server, troubles: Iterable[Trouble]) -> Iterator[Figure]:
    names = (server.server, server.version)
    text = "Always 1; the labels say which server and version."
    yield table(Kind.GAUGE, "agent_info", text, ("server", "version"), [(names, 1.0)])
    yield gauge("agent_gpus", "GPUs, or CPU slots, that the server offers.", len(server.gpus))
    counts: dict[tuple[str, str], float] = {}
    for trouble in troubles:
        key = (trouble.code, trouble.severity.value)
        counts[key] = counts.get(key, 0.0) + 1
    text = "What is wrong with the server or its GPUs, by its code and what it means for work."
    yield table(Kind.GAUGE, "agent_troubles", text, ("code", "severity"), counts.items())


def _gpus(gpus: Mapping[int, GpuUse]) -> Figure:
    busy = {str(gpu): use.busy for gpu, use in sorted(gpus.items()) if use.busy is not None}
    text = "Part of the time since the last sample in which a GPU computed for the worker that has it."
    return labelled(Kind.GAUGE, "agent_gpu_busy_ratio", text, "gpu", busy)


def _workers(machine: AgentMachine, tally: Tally) -> Iterator[Figure]:
    phases = {phase: float(count) for phase, count in machine.phases.items()}
    yield labelled(
        Kind.GAUGE, "agent_workers", "Processes of workers, by what they say of themselves.", "phase", phases
    )
    yield counter("agent_worker_starts", "Starts of workers that were tried.", tally.starts)
    yield counter("agent_worker_ends", "Ends of workers, and starts that failed.", tally.ends)
    yield counter("agent_statuses", "Statuses of workers that were taken in.", tally.statuses)


def _controller(machine: AgentMachine, tally: Tally) -> Iterator[Figure]:
    silence_s = time.perf_counter() - tally.heard_s if tally.heard_s is not None else float("inf")
    text = "Since the controller was heard of; +Inf: it has not been yet."
    yield gauge("agent_controller_silence_seconds", text, silence_s)
    text = "From a heartbeat to the controller's answer to it."
    yield histogram("agent_controller_answer_seconds", text, tally.answers)
    yield counter(
        "agent_messages_unsent", "Messages to the controller for which there was no connection.", tally.unsent
    )
    dropped = {name: float(count) for name, count in tally.dropped.items()}
    text = "Messages that were not understood, or that their sender may not say, by who sent them."
    yield labelled(Kind.COUNTER, "agent_messages_dropped", text, "sender", dropped)
    text = "Messages of controllers whose reign was over: another one with a higher term has been heard of."
    yield counter("agent_messages_refused", text, machine.refused)
    yield gauge("agent_term", "The highest term of a controller's reign that has been heard of.", machine.term)
