"""Processor cores, memory and a container that each worker of a job requests, and that a server has for its jobs. Pure.

A job that requests neither does not count, and shares the cores and memory that other jobs leave. Cores are
counted in thousandths, so that sums are exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..protocol.model import EARLIER_AGENT, JobSpec, Processes, Server
from ..protocol.texts import memory_text

GIB = 1 << 30


@dataclass(frozen=True)
class Amounts:
    """Cores (in thousandths) and memory."""

    millicores: int = 0
    memory_bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.millicores or self.memory_bytes)

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(self.millicores + other.millicores, self.memory_bytes + other.memory_bytes)

    def __sub__(self, other: Amounts) -> Amounts:
        return Amounts(self.millicores - other.millicores, self.memory_bytes - other.memory_bytes)

    def __mul__(self, count: int) -> Amounts:
        return Amounts(self.millicores * count, self.memory_bytes * count)

    def lacks(self, asked: Amounts) -> tuple[str, ...]:
        """Return the names of the amounts ("cores", "memory") of which `asked` requests more than there is here."""
        cores = ("cores",) if 0 < asked.millicores > self.millicores else ()
        return (*cores, *(("memory",) if 0 < asked.memory_bytes > self.memory_bytes else ()))

    def __str__(self) -> str:
        """Return such as "4 cores and 16 GiB of memory", without amounts of zero."""
        return " and ".join([f"{each}" for each in (self._cores, self._memory) if each]) or "nothing"

    @property
    def _cores(self) -> str:
        return f"{cores_text(self.millicores)} core{'' if self.millicores == 1000 else 's'}" if self.millicores else ""

    @property
    def _memory(self) -> str:
        return f"{memory_text(self.memory_bytes)} of memory" if self.memory_bytes else ""


def cores_text(millicores: int) -> str:
    return f"{millicores / 1000:g}"


@dataclass(frozen=True)
class Need:
    """Cores and memory that each worker of a job requests. `whole`: one worker has all of the job's GPUs on its server.
    `container`: each worker runs in a container.
    """

    each: Amounts = Amounts()
    whole: bool = False
    container: bool = False

    @classmethod
    def of(cls, spec: JobSpec) -> Need:
        each = Amounts(round(1000 * spec.cpus), spec.memory_bytes)
        container = bool(spec.image)
        return cls(each, spec.processes is Processes.PER_SERVER, container) if each or container else cls()

    def __bool__(self) -> bool:
        return bool(self.each) or self.container

    def __str__(self) -> str:
        """Return such as "4 cores and a container"."""
        wanted = [*([str(self.each)] if self.each else []), *(["a container"] if self.container else [])]
        return " and ".join(wanted) or "nothing"

    def of_gpus(self, gpus: int) -> Amounts:
        """Return the cores and memory of the workers that have `gpus` GPUs on one server."""
        return self.each * (min(gpus, 1) if self.whole else gpus)


NO_NEED = Need()


@dataclass(frozen=True)
class Capacity:
    """Cores and memory of a server for workers that request some. `worker`: the operator's limits for one worker; 0: none."""

    left: Amounts
    worker: Amounts = Amounts()
    unheld: str = ""  # why its agent cannot enforce a worker's limits; "": it can
    no_containers: str = ""  # why no worker is started in a container there; "": workers can be

    @classmethod
    def of(cls, server: Server) -> Capacity:
        """Return the capacity that a server's agent reports. An agent of an earlier version can enforce no limit."""
        reported = server.allocatable
        if reported is None:
            return cls(Amounts(), unheld=EARLIER_AGENT, no_containers=server.no_containers)
        left = Amounts(int(1000 * reported.cpus), reported.memory_bytes)
        most = Amounts(int(1000 * reported.worker_cpus), reported.worker_memory_bytes)
        return cls(left, most, reported.unheld, server.no_containers)

    def takes(self, need: Need) -> bool:
        """Return whether the server could host a worker with this need if it were empty."""
        return not need or not (self.refuses(need) or self.lacks(need))

    def refuses(self, need: Need) -> str:
        """Return why the server hosts no worker with this need, however much it has; "": it may."""
        return (self.no_containers if need.container else "") or (self.unheld if need.each else "")

    def lacks(self, need: Need) -> tuple[str, ...]:
        """Return the names of the amounts of which the empty server has too little for one worker."""
        bound = Amounts(
            self.worker.millicores or self.left.millicores, self.worker.memory_bytes or self.left.memory_bytes
        )
        return tuple(dict.fromkeys((*self.left.lacks(need.each), *bound.lacks(need.each))))

    def most(self, need: Need, gpus: int) -> int:
        """Return on how many of the server's `gpus` GPUs a job could have workers if it were alone there."""
        if not need or not gpus:
            return gpus
        if not self.takes(need):
            return 0
        if need.whole:
            return gpus
        each = need.each
        fits = [gpus, *([self.left.millicores // each.millicores] if each.millicores else [])]
        fits += [self.left.memory_bytes // each.memory_bytes] if each.memory_bytes else []
        return min(fits)

    def less(self, taken: Amounts) -> Capacity:
        return replace(self, left=self.left - taken)
