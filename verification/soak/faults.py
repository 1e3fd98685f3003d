"""Kinds of faults, their injection and their healing."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from ..hosts.lab import NETWORKS
from ..hosts.links import CUT, Condition, Link
from .cluster import Cluster, Found, What, signal_process
from .jobs import Job, Jobs

CONTROL, DATA = range(len(NETWORKS))  # the network of agents and controllers, and that of workers
SHORT_S, LONG_S = (0.2, 3.0), (6.0, 18.0)  # duration of a fault: below, and mostly above, a server's lease
LONG = 0.25  # fraction of faults that last long
NEAR = 0.8  # fraction of link faults between hosts of one job
MOST_LASTING = 3  # at the same time
TROUBLES = (Condition(delay_ms=40.0, jitter_ms=20.0), Condition(delay_ms=200.0, jitter_ms=100.0))
LOSSES = (Condition(loss=0.02), Condition(loss=0.1, delay_ms=5.0, jitter_ms=10.0))


class Kind(Enum):
    WORKER_KILLED = "worker killed"
    SHIM_KILLED = "a worker's shim killed"
    AGENT_KILLED = "agent killed, started again"
    CONTROLLER_KILLED = "controller killed, started again"
    MEMBER_KILLED = "member of etcd killed, started again"
    WORKER_STOPPED = "worker stopped, continued"
    AGENT_STOPPED = "agent stopped, continued"
    CONTROLLER_STOPPED = "controller stopped, continued"
    MEMBER_STOPPED = "member of etcd stopped, continued"
    LINK_CUT = "link between two hosts cut, both ways"
    LINK_CUT_ONE_WAY = "link between two hosts cut, one way"
    DATA_CUT = "workers' link cut, both ways, controller reached"
    DATA_CUT_ONE_WAY = "workers' link cut, one way, controller reached"
    CONTROL_CUT = "host cut off from the controller, workers' links whole"
    ISOLATED = "host cut off from all others"
    PARTITION = "hosts divided into two sides"
    SLOW = "all links slow (40 to 300 ms)"
    LOSSY = "a host's links lose frames (2 or 10 %)"
    HOST_GONE = "host switched off, boots again"
    HOST_RENEWED = "host switched off, installed anew"


WEIGHTS = {
    Kind.WORKER_KILLED: 10, Kind.SHIM_KILLED: 5, Kind.AGENT_KILLED: 5, Kind.CONTROLLER_KILLED: 6, Kind.WORKER_STOPPED: 8,
    Kind.AGENT_STOPPED: 6, Kind.CONTROLLER_STOPPED: 6, Kind.LINK_CUT: 6, Kind.LINK_CUT_ONE_WAY: 6, Kind.DATA_CUT: 6,
    Kind.DATA_CUT_ONE_WAY: 6, Kind.CONTROL_CUT: 6, Kind.ISOLATED: 6, Kind.PARTITION: 5, Kind.SLOW: 4, Kind.LOSSY: 4,
    Kind.HOST_GONE: 2, Kind.HOST_RENEWED: 1, Kind.MEMBER_KILLED: 4, Kind.MEMBER_STOPPED: 4,
}  # fmt: skip
OF_MEMBERS = (Kind.MEMBER_KILLED, Kind.MEMBER_STOPPED)
OF_DAEMONS = (What.AGENT, What.CONTROLLER, What.MEMBER)


@dataclass
class Fault:
    """A fault that was injected. Times are Unix times (s)."""

    kind: Kind
    where: str
    jobs: list[Job]  # with workers at the place of the fault
    struck_s: float
    lasts_s: float
    hosts: frozenset[str] = frozenset()  # that get no other fault meanwhile
    heal: Callable[[], object] = field(default=lambda: None)
    healed_s: float | None = None


class FaultInjector:
    """Injects one fault at a time; several may last."""

    def __init__(self, cluster: Cluster, jobs: Jobs, rng: random.Random, kinds: Collection[Kind] = tuple(Kind)) -> None:
        self._cluster = cluster
        self._jobs = jobs
        self._rng = rng
        self._kinds = [kind for kind in Kind if kind in kinds]
        self.lasting: list[Fault] = []
        names = list(cluster.lab.hosts)
        processes, links = self._signalled, self._links
        self._strikes: dict[Kind, Callable[[Kind], Fault | None]] = {
            Kind.WORKER_KILLED: lambda kind: processes(kind, What.WORKER, signal.SIGKILL),
            Kind.SHIM_KILLED: lambda kind: processes(kind, What.SHIM, signal.SIGKILL),
            Kind.AGENT_KILLED: lambda kind: processes(kind, What.AGENT, signal.SIGKILL),
            Kind.CONTROLLER_KILLED: lambda kind: processes(kind, What.CONTROLLER, signal.SIGKILL),
            Kind.MEMBER_KILLED: lambda kind: processes(kind, What.MEMBER, signal.SIGKILL),
            Kind.MEMBER_STOPPED: lambda kind: processes(kind, What.MEMBER, signal.SIGSTOP),
            Kind.WORKER_STOPPED: lambda kind: processes(kind, What.WORKER, signal.SIGSTOP),
            Kind.AGENT_STOPPED: lambda kind: processes(kind, What.AGENT, signal.SIGSTOP),
            Kind.CONTROLLER_STOPPED: lambda kind: processes(kind, What.CONTROLLER, signal.SIGSTOP),
            Kind.LINK_CUT: lambda kind: links(kind, *self._pair(), (CONTROL, DATA), True, CUT),
            Kind.LINK_CUT_ONE_WAY: lambda kind: links(kind, *self._pair(), (CONTROL, DATA), False, CUT),
            Kind.DATA_CUT: lambda kind: links(kind, *self._pair(), (DATA,), True, CUT),
            Kind.DATA_CUT_ONE_WAY: lambda kind: links(kind, *self._pair(), (DATA,), False, CUT),
            Kind.CONTROL_CUT: lambda kind: links(kind, *self._apart(1), (CONTROL,), rng.random() < 0.5, CUT),
            Kind.ISOLATED: lambda kind: links(kind, *self._apart(1), (CONTROL, DATA), True, CUT),
            Kind.PARTITION: lambda kind: links(kind, *self._apart(len(names) // 2), (CONTROL, DATA), True, CUT),
            Kind.SLOW: lambda kind: links(kind, names, names, (CONTROL, DATA), False, rng.choice(TROUBLES)),
            Kind.LOSSY: lambda kind: links(kind, *self._apart(1), (CONTROL, DATA), True, rng.choice(LOSSES)),
            Kind.HOST_GONE: self._switched_off,
            Kind.HOST_RENEWED: self._switched_off,
        }

    def strike(self) -> Fault | None:
        """Inject a random fault. Returns None if the drawn one is impossible now."""
        if len(self.lasting) >= MOST_LASTING:
            return None
        kind = self._rng.choices(self._kinds, [WEIGHTS[kind] for kind in self._kinds])[0]
        fault = self._strikes[kind](kind)
        if fault is not None:
            self.lasting.append(fault)
        return fault

    def heal_due(self) -> list[Fault]:
        """Heal faults at the end of their duration. Returns them."""
        now = time.time()
        return self._healed([fault for fault in self.lasting if now >= fault.struck_s + fault.lasts_s])

    def heal_all(self) -> list[Fault]:
        healed = self._healed(list(self.lasting))
        self._cluster.links.mend_all()
        return healed

    def _healed(self, faults: list[Fault]) -> list[Fault]:
        for fault in faults:
            self.lasting.remove(fault)
            fault.heal()
            fault.healed_s = time.time()
        return faults

    # -- kinds

    def _signalled(self, kind: Kind, what: What, number: signal.Signals) -> Fault | None:
        """Kill a process, or suspend it for a while. A killed daemon is restarted."""
        busy = {host for fault in self.lasting for host in fault.hosts}
        hosts = [name for name in self._cluster.lab.hosts if name not in busy]
        self._rng.shuffle(hosts)
        for host in hosts:
            found = [each for each in self._cluster.processes(host) if each.what is what]
            if not found:
                continue
            victim = self._rng.choice(found)
            if not signal_process(victim.pid, number):
                continue
            fault = self._fault(kind, f"{what.value} on {host}", [host] if what in OF_DAEMONS else [])
            if what in (What.WORKER, What.SHIM):
                fault.jobs = self._of(victim)
            else:
                fault.jobs = [
                    job for job in self._jobs.open if job.trains and (what is not What.AGENT or host in job.servers())
                ]
            if number is signal.SIGSTOP:
                fault.heal = partial(signal_process, victim.pid, signal.SIGCONT)
            elif what in OF_DAEMONS:
                fault.heal = partial(self._cluster.start, what, host)
            else:
                fault.lasts_s = 0.0
            return fault
        return None

    def _of(self, found: Found) -> list[Job]:
        """Return the job of a worker's process, as a list; empty if unknown."""
        return [job for job in self._jobs.open if job.trains and str(job.steps_file) in found.command]

    def _pair(self) -> tuple[list[str], list[str]]:
        """Return two hosts, mostly of the same job, as two lists."""
        spanning = [sorted(job.servers()) for job in self._jobs.open if job.trains and len(job.servers()) > 1]
        among = self._rng.choice(spanning) if spanning and self._rng.random() < NEAR else list(self._cluster.lab.hosts)
        one, other = self._rng.sample(among, 2)
        return [one], [other]

    def _apart(self, count: int) -> tuple[list[str], list[str]]:
        """Return `count` random hosts, and all others."""
        names = list(self._cluster.lab.hosts)
        some = self._rng.sample(names, count)
        return some, [name for name in names if name not in some]

    def _links(
        self,
        kind: Kind,
        some: list[str],
        others: list[str],
        networks: tuple[int, ...],
        back: bool,
        condition: Condition,
    ) -> Fault | None:
        links: list[Link] = self._cluster.links.between(some, others, networks, back)
        leading = set(self._cluster.controllers)
        cut_from_controller = any(link.network == CONTROL and leading & {link.source, link.target} for link in links)
        self._cluster.links.spoil(links, condition)
        where = f"{','.join(some)} {'<->' if back else '->'} {','.join(others)}"
        fault = self._fault(kind, where, [])
        touched = {name for link in links for name in (link.source, link.target)}
        fault.jobs = [
            job
            for job in self._jobs.open
            if job.trains and (len(job.servers() & touched) > 1 or (cut_from_controller and job.servers() & touched))
        ]
        fault.heal = lambda: self._cluster.links.mend(links, condition)
        return fault

    def _switched_off(self, kind: Kind) -> Fault | None:
        if any(fault.kind in (Kind.HOST_GONE, Kind.HOST_RENEWED) for fault in self.lasting):
            return None  # leave hosts without faults
        host = self._rng.choice(list(self._cluster.lab.hosts))
        jobs = [job for job in self._jobs.open if job.trains and host in job.servers()]
        fault = self._fault(kind, host, [host])
        fault.jobs = jobs
        self._cluster.switch_off(host)
        fault.heal = lambda: self._cluster.boot(host, keeps_disk=kind is Kind.HOST_GONE)
        return fault

    def _fault(self, kind: Kind, where: str, hosts: list[str]) -> Fault:
        lasts_s = self._rng.uniform(*(LONG_S if self._rng.random() < LONG else SHORT_S))
        return Fault(kind, where, [], time.time(), lasts_s, frozenset(hosts))
