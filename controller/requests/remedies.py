"""Remedies: changes of the cluster by which a job would get more GPUs.

Each is tried on a copy of the cluster, and shown only if the scheduler then grants a greater share. The candidates are
ends of other jobs, servers that come back, and GPUs that are repaired, uncordoned or returned from a loan. Others are
shares set by hand, a smaller request, other quotas and packing, and more GPUs. If no single end helps, several together
are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as replace_in

from ...protocol.messages import Remedy, ShareForecast, Withholding
from ...protocol.model import GpuRange, JobId, ServerId
from ...protocol.principals import LOCAL, Principal, Role
from ...protocol.texts import gpu_count
from ...scheduler.quotas.terms import NO_QUOTAS
from ..cluster import Cluster
from ..jobs.job import Job
from ..jobs.records import Submission
from ..loans import RESERVATION
from ..reconcile import what_if
from ..reconcile.stable_decision import Outcome
from ..reconcile.what_if import Change, Hypothesis, outcome, share_of
from .authority import may_act

MOST_TRIED = 64
# Jobs examined in all tries together; the controller is blocked meanwhile, for about half a second.
JOBS_LOOKED_AT = 4000
MOST_TOGETHER = 6  # most jobs that are assumed to end in one try
MOST_MORE = 1024  # most additional GPUs that are tried
MOST_PUSHED = 10
OPERATORS = "operators"


class Remedies:
    """Remedies for one job.

    `before`: waiting jobs that would start with this job, or before it, if there were more GPUs. It is complete once
    all remedies have been found.
    """

    def __init__(self, cluster: Cluster, now: float, who: Principal, job: Job, decided: Outcome) -> None:
        self._cluster, self._now, self._who, self._job, self._decided = cluster, now, who, job, decided
        self._share = share_of(decided, job.id)
        self._most = min(MOST_TRIED, JOBS_LOOKED_AT // max(1, len(cluster.jobs.index.live)))
        self.tried = self.untried = 0
        self.before: tuple[JobId, ...] = ()

    def found(self) -> Iterator[Remedy]:
        """Return the remedies that help, the cheapest kinds first."""
        job = self._job
        if job.is_withheld:
            yield from self._resumed()
        if job.id not in self._decided.seen.rows:
            return
        if job.record.manual_share is not None or self._share < job.spec.gpus.max:
            more = self._more_gpus()
            for group in (self._by_hand_over, self._servers, self._terms, self._ends):
                yield from group()
            if more is not None:
                yield more
        yield from self._by_hand()
        if not self._share:
            yield from self._smaller()

    # -- tries

    def _tries(self, kind: str, text: str, hypothesis: Hypothesis, command: str = "", by: str = "") -> Remedy | None:
        """Return the remedy; None if it does not help or there have been too many tries."""
        found = self._ask(hypothesis)
        return self._remedy(kind, text, found, command, by) if share_of(found, self._job.id) > self._share else None

    def _ask(self, hypothesis: Hypothesis) -> Outcome | None:
        if self.tried >= self._most:
            self.untried += 1
            return None
        self.tried += 1
        return outcome(self._cluster, self._now, hypothesis)

    def _remedy(
        self, kind: str, text: str, found: Outcome | None, command: str = "", by: str = "", job: JobId | None = None
    ) -> Remedy:
        own = job or self._job.id
        return Remedy(
            kind=kind,
            text=text,
            share_gpus=share_of(found, own),
            command=f"elasticctl {command}" if command else "",
            by=by if not command or self._who.role is not Role.OPERATOR else "",
            pushed=tuple(self._pushed(found, own)),
        )

    def _pushed(self, found: Outcome | None, own: JobId) -> list[ShareForecast]:
        """Return the jobs that would have fewer GPUs than in the present decision."""
        before, pushed = self._decided, []
        for row, other in enumerate(before.seen.jobs if found is not None else ()):
            if other.id == own or found is None or other.id not in found.seen.rows:
                continue
            had, has = int(before.found.decision.shares[row]), share_of(found, other.id)
            if has < had:
                pushed.append(ShareForecast(job=other.id, before_gpus=had, after_gpus=has, reason=""))
        return pushed[:MOST_PUSHED]

    def _resumed(self) -> Iterator[Remedy]:
        """Try to release the job from a user's hold or pause."""
        job, withheld = self._job, self._job.record.withheld
        if withheld is None and job.record.waits_for:
            hypothesis = Hypothesis(change=lambda cluster: cluster.jobs[job.id].update(waits_for=()))
            awaited = job.record.waits_for
            text = f"{awaited[0]} finishes" if len(awaited) == 1 else "all that it waits for finish"
            if (found := self._tries("after", text, hypothesis)) is not None:
                yield found
        elif withheld is None and job.beyond_array and job.spec.array is not None:

            def admit(cluster: Cluster) -> None:
                cluster.jobs[job.id].limit_by_array(False)

            hypothesis = Hypothesis(change=admit)
            text = f"fewer than {job.spec.array.most} others of {job.spec.array.name} have GPUs"
            if (found := self._tries("array", text, hypothesis)) is not None:
                yield found
        if withheld is None or withheld.how is Withholding.CANCEL:
            return

        def change(cluster: Cluster) -> None:
            cluster.jobs[job.id].update(withheld=None)

        back = withheld.how.back
        who = self._only(job) or (OPERATORS if withheld.operator and self._who.role is not Role.OPERATOR else "")
        hypothesis = Hypothesis(change=change)
        if (found := self._tries("resume", f"it is {back}d", hypothesis, f"{back} {job.id}", who)) is not None:
            yield found

    # -- remedies by other jobs

    def _by_hand_over(self) -> Iterator[Remedy]:
        """Try to return shares set by hand to the policy, including the job's own."""
        for job in self._cluster.jobs.rows.manual.values():
            hypothesis = Hypothesis(by_hand={job.id: None})
            whose = "it is" if job is self._job else f"{job.id} is"
            text = f"{whose} given back to the policy"
            if (
                found := self._tries("scale-auto", text, hypothesis, f"scale {job.id} auto", self._only(job))
            ) is not None:
                yield found

    def _ends(self) -> Iterator[Remedy]:
        """Try the end of each job that has GPUs or would start earlier; if no single end helps, of several together."""
        names = [job.id for job in self._cluster.jobs.rows.fixed.values()]
        names += [job.id for job in self._decided.seen.jobs if share_of(self._decided, job.id) or job.record.target]
        names += [name for name in self.before if name not in names]
        others = [name for name in dict.fromkeys(names) if name != self._job.id]
        helped = False
        for name in others:
            if (found := self._end(name)) is not None:
                helped = True
                yield found
        if not helped and self._share == 0 and (found := self._ends_together(others)) is not None:
            yield found

    def _end(self, *names: JobId) -> Remedy | None:
        jobs = [self._cluster.jobs[name] for name in names]
        who = dict.fromkeys(filter(None, map(self._only, jobs)))
        text = f"{' and '.join(names) if len(names) < 3 else ', '.join(names)} end{'s' if len(names) == 1 else ''}"
        return self._tries("end", text, Hypothesis(over=names), f"cancel {' '.join(names)}", ", ".join(who))

    def _ends_together(self, others: list[JobId]) -> Remedy | None:
        """Try ends together: the jobs with most GPUs until they suffice, then without those that are not needed."""
        sizes = {name: len(self._cluster.jobs[name].own_gpus) for name in others}
        chosen = sorted(others, key=lambda name: -sizes[name])
        enough: list[JobId] = []
        for name in chosen[:MOST_TOGETHER]:
            enough.append(name)
            if len(enough) > 1 and share_of(self._ask(Hypothesis(over=tuple(enough))), self._job.id):
                break
        else:
            return None
        for name in list(enough[:-1]):
            fewer = tuple(one for one in enough if one != name)
            if len(fewer) > 1 and share_of(self._ask(Hypothesis(over=fewer)), self._job.id):
                enough = list(fewer)
        return self._end(*enough)

    # -- servers

    def _servers(self) -> Iterator[Remedy]:
        for kind, text, change, command in self._changes():
            if (found := self._tries(kind, text, Hypothesis(change=change), command, OPERATORS)) is not None:
                yield found

    def _changes(self) -> Iterator[tuple[str, str, Change, str]]:
        cluster = self._cluster
        loans: dict[str, list[ServerId]] = {}
        for server, record in sorted(cluster.servers.overruled.items()):
            for cordon in record.cordons:
                if cordon.loan:
                    loans.setdefault(cordon.loan, []).append(server)
                else:
                    where = server if cordon.gpu is None else f"{server}:{cordon.gpu}"
                    change = _uncordoned(server, lambda gpu, loan, own=cordon.gpu: not loan and gpu == own)
                    yield "uncordon", f"{where} is used again", change, f"uncordon {where}"
        for loan, servers in loans.items():
            ends, command = f"{loan} ends", f"reclaim {loan}"
            if loan.startswith(RESERVATION):
                ends, command = f"the reservation {loan.removeprefix(RESERVATION)} is not in the policy file", ""
            yield "reclaim", ends, _reclaimed(loan, servers), command
        for server, session in sorted(cluster.servers.sessions.items()):
            if not session.alive:
                yield "server-back", f"server {server} is back", _back(server), ""
                continue
            bad = {trouble.gpu for trouble in session.troubles if trouble.severity.blocks_new_work}
            bad |= {
                gpu.index
                for gpu, health in cluster.servers.gpu_health.items()
                if gpu.server == server and health.until_s
            }
            bad |= {None} if not cluster.servers.fit(server) else set()
            for gpu in sorted(bad, key=lambda index: -1 if index is None else index):
                where = f"server {server}" if gpu is None else f"GPU {server}:{gpu}"
                yield "mend", f"what is wrong with {where} is mended", _mended(server, gpu), ""

    def _more_gpus(self) -> Remedy | None:
        """Try to add GPUs to the cluster until the job's share grows, and find the fewest.

        Also note the waiting jobs that would start with this one or before it. These tries are not counted. There are
        at most half as many of them as of the others.
        """
        enough: tuple[int, Outcome] | None = None
        too_few, each, left = 0, self._job.spec.gpus_per_server or 1, self._most // 2
        count = each
        while count <= MOST_MORE and enough is None and left:
            found, left = self._with_more(count), left - 1
            if found is not None and share_of(found, self._job.id) > self._share:
                enough = count, found
            else:
                too_few, count = count, 2 * count
        while enough is not None and enough[0] - too_few > each and left:
            left -= 1
            count = too_few + max(each, (enough[0] - too_few) // 2 // each * each)
            found = self._with_more(count)
            if found is not None and share_of(found, self._job.id) > self._share:
                enough = count, found
            else:
                too_few = count
        if enough is None:
            return None
        count, found = enough
        self.before = tuple(
            job.id
            for job in self._decided.seen.jobs
            if job.id != self._job.id and not share_of(self._decided, job.id) and share_of(found, job.id)
        )
        return self._remedy("more-gpus", f"the cluster has {gpu_count(count)} more", found)

    def _with_more(self, count: int) -> Outcome | None:
        job, now = self._job, self._now

        def change(cluster: Cluster) -> None:
            what_if.with_more(cluster, now, job, count)

        return outcome(self._cluster, now, Hypothesis(change=change))

    # -- terms

    def _terms(self) -> Iterator[Remedy]:
        scheduler = self._cluster.planning.decider.scheduler
        if scheduler.stages.quotas.any:
            tenant = scheduler.stages.quotas.tenant(self._job.user)
            text = f"there are no quotas (`quotas` in the policy file; its own: {tenant})"
            found = self._tries("quotas", text, Hypothesis(change=_stages(quotas=NO_QUOTAS)), by=OPERATORS)
            if found is not None:
                yield found
        if scheduler.stages.packing:
            hypothesis = Hypothesis(change=_stages(packing=False))
            text = "shares are not packed"
            found = self._tries("packing", text, hypothesis, "policy set --packing none", OPERATORS)
            if found is not None:
                yield found

    # -- remedies by the job's owner

    def _by_hand(self) -> Iterator[Remedy]:
        """Try to set the smallest greater share by hand, for which other jobs give way."""
        job = self._job
        if not (job.elastic or job.spec.expected_to_join):
            return
        wanted = max(self._share + 1, job.spec.gpus.min)
        each = job.spec.gpus_per_server or 1
        wanted = -(-wanted // each) * each
        if wanted > job.spec.virtual_workers:
            return
        hypothesis = Hypothesis(by_hand={job.id: wanted})
        text = f"its share is set to {wanted} by hand"
        if (found := self._tries("scale", text, hypothesis, f"scale {job.id} {wanted}", self._only(job))) is not None:
            yield found

    def _smaller(self) -> Iterator[Remedy]:
        """Try to submit the job again with a smaller minimum, behind all other jobs."""
        job, low = self._job, self._job.spec.gpus.min
        each = job.spec.gpus_per_server or 1
        wanted = low // 2 // each * each
        if job.record.progressed or wanted < 1:
            return
        tries: list[int] = []
        while wanted >= each:
            tries.append(wanted)
            wanted = wanted // 2 // each * each
        name = JobId(f"{job.spec.name}-{self._cluster.jobs.next_number}")
        for least in tries:
            high = job.spec.gpus.max if job.spec.expected_to_join else least
            spec = replace_in(job.spec, gpus=GpuRange(min=least, max=high))
            again = Submission(job=name, request="", spec=spec, submitted_s=self._now, owner=job.submission.owner)
            found = self._ask(Hypothesis(over=(job.id,), instead=again))
            if share_of(found, name):
                gpus = f"{least}:{high}" if least < high else f"{least}"
                text = f"it is cancelled, and submitted again with --gpus {gpus}"
                yield self._remedy("ask-less", text, found, by=self._only(job), job=name)
                return

    def _only(self, job: Job) -> str:
        """Return in words which principals may act on a job, if the requesting one may not; else ""."""
        if may_act(self._who, job):
            return ""
        owner = job.submission.owner
        return OPERATORS if owner in ("", LOCAL) else f"{owner} or {OPERATORS}"


def _uncordoned(server: ServerId, away: Callable[..., bool]) -> Change:
    return lambda cluster: what_if.without_cordons(cluster, server, away)


def _reclaimed(loan: str, servers: list[ServerId]) -> Change:
    def change(cluster: Cluster) -> None:
        for server in dict.fromkeys(servers):
            what_if.without_cordons(cluster, server, lambda gpu, of: of == loan)

    return change


def _back(server: ServerId) -> Change:
    return lambda cluster: cluster.servers.suppose_back(server)


def _mended(server: ServerId, gpu: int | None) -> Change:
    return lambda cluster: cluster.servers.suppose_mended(server, gpu)


def _stages(**changes: Any) -> Change:
    def change(cluster: Cluster) -> None:
        before = cluster.planning.decider.scheduler
        cluster.planning.suppose(replace(before, stages=replace(before.stages, **changes)))

    return change
