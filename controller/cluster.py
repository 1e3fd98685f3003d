"""The controller's whole state: the stores of `state`, and the collected effects of the event at hand.

The packages of the machine (`inbound`, `reconcile`, `requests`) change the state through the methods of its stores,
which leave the effects here. The machine takes the effects out at the end of each event, records first.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Collection, Iterable

from msgspec.structs import replace

from ..protocol.errors import OperatorError
from ..protocol.messages import RefusedJob
from ..protocol.model import GpuAddress, ServerId
from ..scheduler.amounts import Amounts, Need
from ..scheduler.arrays import Ints
from ..scheduler.scheduler import Scheduler
from .events import Action, AgentMessage, ClientRequest, Fetch, StandDown, Warn
from .jobs.job import Job
from .jobs.records import WorkerRecord, WorkerState
from .jobs.throughput import Estimated
from .notices import Notices, notice_of
from .records import CLUSTER_KEY, LEADER_KEY, ClusterRecord, LeaderRecord
from .settings import Settings
from .snapshots import Snapshots, id_of
from .state.clients import Clients
from .state.effects import Effects
from .state.experience import Experience
from .state.history import EventHistory
from .state.jobs import Jobs
from .state.planning import Planning
from .state.servers import Servers


class Cluster:
    """The stores of the state, the identity of the cluster and of its reign, and the effects of the event at hand."""

    def __init__(self, settings: Settings, configured: Scheduler, rng: random.Random, now: float) -> None:
        self.settings = settings
        self.id = ""  # the cluster's id, recovered or drawn in `recovery`
        self.leader = LeaderRecord(term=0)  # this controller with the term of its reign, which begins in `recovery`
        self.rng = rng
        self.started_s = now
        self.refused_jobs: tuple[RefusedJob, ...] = ()  # jobs with records in the store that no controller has written
        self.store_is_old = False  # a store behind its agents was reported to the operator
        self._effects = Effects()
        self.history = EventHistory(self._effects)
        self.notices = Notices(self._effects)
        self.clients = Clients(self._effects)
        self.planning = Planning(configured, now, self._effects)
        self.experience = Experience(self._effects, self.planning.request)
        self.servers = Servers(settings.incarnation, self._effects, self.planning.request)
        self.jobs = Jobs(now, rng.randbytes(32), self._effects, self.servers.gpu_name, self.planning.request)
        self.snapshots = Snapshots()

    def gpu_free(self, gpu: GpuAddress) -> bool:
        """Return whether `gpu` is usable and certainly has no process."""
        return self.servers.vacant(gpu) and self.jobs.index.on_gpu(gpu) is None

    def asked_on(self, server: ServerId) -> Amounts:
        """Return the cores and memory requested by processes on a server, processes about to end included."""
        taken = Amounts()
        for job in self.jobs.index.on_server(server):
            if need := Need.of(job.spec):
                here = [e for e in job.workers if e.gpu.server == server and e.state is not WorkerState.ORDERED]
                taken += need.each * len(here)
        return taken

    def has_room(self, job: Job, entries: Collection[WorkerRecord]) -> bool:
        """Return whether the servers of these workers have the cores and the memory for all of them to start now."""
        need = Need.of(job.spec)
        for server, count in Counter(entry.gpu.server for entry in entries).items() if need else ():
            session = self.servers.sessions.get(server)
            capacity = session.whole.capacity if session is not None else None
            if capacity is None or not capacity.takes(need):
                return False
            if (capacity.left - self.asked_on(server)).lacks(need.each * count):
                return False
        return True

    def estimate(self, now: float, job: Job, fewest: Ints, on: str | None = None) -> Estimated:
        """Return the best estimate of the throughput of `job`. `fewest`: by share, the fewest servers that hold it.

        `on`: on GPUs of this name; None: on those that the job began on, or else on those of the last measurements.
        """
        return self.experience.estimate(now, job, fewest, self.settings.profiles, on)

    def may_decide(self, now: float) -> bool:
        """Return whether a scheduling decision may be made at `now`."""
        return self.planning.may_decide(now, self.jobs.decision_pause_s)

    # -- the cluster's identity, and this reign

    @property
    def record(self) -> ClusterRecord:
        return ClusterRecord(id=self.id, first_job=self.jobs.first_number)

    def identify(self, known: str) -> None:
        """Take the id that the store holds; empty: draw one, and record it."""
        self.id = known or f"{self.rng.getrandbits(128):032x}"
        if not known:
            self.record_itself()

    def record_itself(self) -> None:
        self._effects.put(CLUSTER_KEY, self.record)

    def reconfigure(self, settings: Settings) -> None:
        """Apply a configuration that was read again."""
        self.settings = settings

    def refuse_records(self, jobs: tuple[RefusedJob, ...]) -> None:
        """Note the jobs with records in the store that no controller has written."""
        self.refused_jobs = jobs

    def find_store_old(self) -> bool:
        """Note that the store is behind its agents; return whether that is new, and has to be reported."""
        is_new, self.store_is_old = not self.store_is_old, True
        return is_new

    def skip_jobs(self, first: int) -> None:
        """Give no new job a number below `first`."""
        self.jobs.skip_to(first)
        self.record_itself()

    def begin_reign(self, recorded: LeaderRecord) -> None:
        """Begin this controller's reign. `recorded`: the last reign in the store.

        An election has recorded this reign already; with a private store each start begins the next term. Raises
        OperatorError if the store names another term than the one that the election gave.
        """
        self.leader = recorded
        if not self.settings.elected:
            self.reign_beyond(recorded.term)
        elif recorded.term != self.settings.term:
            raise OperatorError(f"the store says that term {recorded.term} reigns, and this is {self.settings.term}")

    def reign_beyond(self, term: int) -> None:
        """Reign with a term higher than `term`, which is recorded before anything more is sent."""
        self.leader = replace(self.leader, term=term + 1)
        self._effects.put(LEADER_KEY, self.leader)

    def stand_down(self, term: int, told_by: ServerId) -> None:
        """End this reign, as the agent of server `told_by` knows `term`, which is higher than this controller's."""
        self._effects.act(StandDown(term, told_by))

    # -- effects

    def replace_record(self, key: str) -> None:
        """Delete the record at `key`, written by an earlier version, as its content stands under another key now."""
        self._effects.delete(key)

    def fetch(self, request: ClientRequest | AgentMessage, keys: tuple[str, ...]) -> None:
        """Read these records of the archive, which the answer to `request` needs."""
        self._effects.act(Fetch(request, keys))

    def keep_part(self, key: str, data: bytes) -> None:
        """Record one encoded part of a snapshot of a job's code."""
        self._effects.put_encoded({key: data})

    def warn(self, text: str, server: str = "", job: str = "") -> None:
        """Write a warning into the controller's log, labelled with a server or a job if given."""
        self._effects.act(Warn(text, server, job))

    def take_effects(self, now: float) -> list[Action]:
        """Return the effects since the last call: first the records to write, then all other actions."""
        settings = self.settings
        for event in self.history.take_fresh():
            job = self.jobs.get(event.job) if event.job is not None else None
            if job is not None and (notice := notice_of(event, job)) is not None:
                self.notices.add(notice)
        if self.jobs.write(now, settings.whole_workers, settings.keeping, self.experience):
            self.record_itself()
        if self.snapshots.due(now):
            of_jobs = ((job.submission.owner, job.spec.snapshot) for job in self.jobs.index.live.values())
            used = [id_of(owner, snapshot) for owner, snapshot in of_jobs if snapshot is not None]
            self._effects.delete(*self.snapshots.forget_unused(now, used))
        self.jobs.write_usage()
        return self._effects.take()

    def what_if(self, jobs: Iterable[Job]) -> Cluster:
        """Return a copy with these unfinished jobs for a trial decision, which changes nothing in the original."""
        found, effects = copy.copy(self), Effects()
        found.rng, found.planning, found._effects = copy.copy(self.rng), copy.copy(self.planning), effects
        found.history, found.clients = EventHistory(effects), Clients(effects)
        found.servers = self.servers.what_if(effects, found.planning.request)
        found.jobs = self.jobs.what_if(jobs, effects, found.servers.gpu_name, found.planning.request)
        return found
