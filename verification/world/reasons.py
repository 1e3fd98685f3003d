"""Every number in the reason of a waiting job is recomputed from servers, loans and jobs.

The scheduler is asked for its decision, as by `elasticctl explain`, and each sentence for each waiting job is parsed. A sentence
with a number that no rule here can check is a fault, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elasticd.controller.jobs.job import Job
from elasticd.controller.reconcile.stable_decision import Outcome
from elasticd.controller.reconcile.what_if import outcome
from elasticd.controller.requests.explaining import explanation
from elasticd.protocol.model import GpuAddress, JobId, JobPhase
from elasticd.protocol.principals import LOCAL_OPERATOR
from elasticd.scheduler.amounts import Amounts, Need

from .violation import Violation

if TYPE_CHECKING:
    from elasticd.controller.cluster import Cluster

TRUE_WORDS = "every number in a reason is true"
_NAMES = re.compile(r"\b(?:job\w*|[a-z]+)-\d+\b|\bs\d+(?::[\d, -]+)?")  # of jobs, servers and their GPUs
_USES = (
    r"belongs? to jobs that cannot be resized",
    r"belongs? to jobs that are still starting",
    r"(?:is|are) lent",
    r"(?:is|are) reserved by the policy file",
    r"takes? no new work",
    r"(?:has a job that is|have jobs that are) not known",
)


@dataclass(frozen=True)
class Counted:
    """Counts from the controller's records, and the decision to check. `uses`: GPUs of present servers that no policy divides, by
    reason.
    """

    decided: Outcome
    everything: int
    in_view: int
    lost: int
    uses: tuple[int, ...]  # in the order of `_USES`

    @classmethod
    def of(cls, cluster: Cluster, decided: Outcome) -> Counted:
        """Return the counts of the present state."""
        sessions = cluster.servers.sessions.values()
        there = {
            GpuAddress(server=one.server.server, index=gpu.index)
            for one in sessions
            if one.alive
            for gpu in one.server.gpus
        }
        divided = set(decided.seen.gpus)
        rest = there - divided
        jobs = [job for job in cluster.jobs.index.live.values() if job.id not in decided.seen.rows]
        fixed = rest & {gpu for job in jobs for gpu in job.own_gpus}
        starting = fixed & {gpu for job in jobs if _may_join(job) for gpu in job.own_gpus}
        unknown = (rest - fixed) & {
            GpuAddress(server=one.server.server, index=index)
            for one in sessions
            for local in one.unknown.values()
            for index in local.all_gpus
        }
        loans: dict[bool, set[GpuAddress]] = {True: set(), False: set()}
        for server, record in cluster.servers.overruled.items():
            for cordon in record.cordons:
                if cordon.loan and cordon.gpu is not None:
                    gpu = GpuAddress(server=server, index=cordon.gpu)
                    loans[cordon.loan.startswith("reservation-")].add(gpu)
        reserved = (rest - fixed - unknown) & loans[True]
        lent = (rest - fixed - unknown - reserved) & loans[False]
        barred = rest - fixed - unknown - reserved - lent
        lost = sum(len(one.server.gpus) for one in sessions if not one.alive)
        uses = tuple(map(len, (fixed - starting, starting, lent, reserved, barred, unknown)))
        return cls(decided, len(there) + lost, len(divided), lost, uses)

    def shares(self) -> Mapping[int, int]:
        """Shares by row of the jobs that would get some, before GPUs that take no new work are left out."""
        given = self.decided.found.divided.shares.tolist()
        return {row: share for row, share in enumerate(given) if share}

    def left(self, row: int, what: str, mask: int | None) -> int:
        """Number of free GPUs in the sense of `what`; within `mask`, if the job may use no others."""
        found, view = self.decided.found.divided, self.decided.seen.view
        size = self.in_view if mask is None else mask.bit_count()
        placed = {
            other: gpus if mask is None else gpus & mask
            for other, gpus in (view.placements if what.startswith("free, and") else found.placements).items()
        }
        if "minimums" not in what:
            return size - sum(gpus.bit_count() for gpus in placed.values())
        return size - sum(self._minimum(other, gpus) for other, gpus in placed.items() if self._before(other, row))

    def _minimum(self, row: int, gpus: int) -> int:
        by_hand = row in self.decided.seen.view.manual_shares
        return gpus.bit_count() if by_hand else min(self._job(row).spec.gpus.min, gpus.bit_count())

    def _before(self, other: int, row: int) -> bool:
        if other in self.decided.seen.view.manual_shares:
            return True
        mine, theirs = self._job(row), self._job(other)
        return (-theirs.spec.priority, other) < (-mine.spec.priority, row)

    def _job(self, row: int) -> Job:
        return self.decided.seen.jobs[row]


def _may_join(job: Job) -> bool:
    return job.gang and job.spec.expected_to_join and job.record.phase is not JobPhase.RUNNING


def look(cluster: Cluster, decided: Outcome) -> None:
    """Check all reasons that each waiting job would show with this decision. Raises Violation."""
    counted = Counted.of(cluster, decided)
    for row, job in enumerate(decided.seen.jobs):
        if decided.found.decision.shares[row]:
            continue
        for text in decided.found.every(row):
            for part in text.split("; "):
                _check(counted, row, job, part, text)


def startable(decided: Outcome) -> tuple[JobId, ...]:
    """Return the jobs without GPUs to which this decision gives some that are free."""
    rows = dict.fromkeys(change.row for change in decided.found.changes if change.gpus)
    jobs = (decided.seen.jobs[row] for row in rows)
    return tuple(job.id for job in jobs if not job.record.target)


def explain(cluster: Cluster, now: float) -> None:
    """Check the whole explanation of the first waiting job, and its GPU counts. Raises Violation."""
    job = next((job for job in cluster.jobs.index.live.values() if not job.record.target), None)
    if job is None or (decided := outcome(cluster, now)) is None:
        return
    counted, told = Counted.of(cluster, decided), explanation(cluster, now, LOCAL_OPERATOR, job)
    divided = set(decided.seen.gpus)
    aside = [gpu for one in told.taken for gpu in one.gpus if gpu not in divided]
    known = {
        GpuAddress(server=one.server.server, index=gpu.index)
        for one in cluster.servers.sessions.values()
        for gpu in one.server.gpus
    }
    idle = counted.in_view - sum(decided.found.decision.shares.tolist())
    right = {
        "GPUs of the cluster": (told.known_gpus, counted.everything),
        "GPUs that the policy divides": (told.divided_gpus, counted.in_view),
        "other GPUs": (sorted(aside, key=str), sorted(known - divided, key=str)),
        "jobs that they are divided among": (told.among_jobs, len(decided.seen.jobs)),
    }
    wrong = [f"{what}: {said}, there are {there}" for what, (said, there) in right.items() if said != there]
    if not 0 <= told.free_gpus <= idle:
        wrong.append(f"{told.free_gpus} GPUs are idle that it may use, of {idle} that are")
    for one in told.taken:
        ours = [gpu for gpu in one.gpus if cluster.jobs.index.on_gpu(gpu) is not None]
        if "of no known job" in one.why and ours:
            wrong.append(f"{ours[0]}: {one.why}, and {cluster.jobs.index.on_gpu(ours[0])} has a worker there")
    if wrong:
        raise Violation(TRUE_WORDS, f"{job.id} is explained: {'; '.join(wrong)}")


def _check(counted: Counted, row: int, job: Job, part: str, text: str) -> None:
    """Raises Violation if the text has a number that is wrong, or that no rule checks."""
    bare = _NAMES.sub("NAME", part)
    if not re.search(r"\d", bare):
        return
    for pattern, rule in _RULES:
        if (found := pattern.fullmatch(bare)) is not None:
            if wrong := rule(counted, row, found):
                raise Violation(TRUE_WORDS, f"{job.id} is told {text!r}: {wrong}")
            return
    raise Violation(TRUE_WORDS, f"{job.id} is told {text!r}: nobody counts {bare!r}")


def _waits(counted: Counted, row: int, found: re.Match[str]) -> str:
    """ "waits for 4 GPUs: 3 of 4 left by the minimums of earlier jobs"."""
    wanted, left, size, what = int(found[1]), int(found[2]), int(found[3]), found[4]
    if not left < wanted <= size:
        return f"{left} of {size} are enough, or it could never have {wanted}"
    limit = counted.decided.seen.view.limit(row)
    options = limit.options if limit is not None else (None,)
    right = {(counted.left(row, what, mask), counted.in_view if mask is None else mask.bit_count()) for mask in options}
    return "" if (left, size) in right else f"there are {sorted(right)}"


def _turn(counted: Counted, row: int, found: re.Match[str]) -> str:
    """ "waits for its turn: the policy leaves 2 of 4 idle"."""
    limit = counted.decided.seen.view.limit(row)
    options = limit.options if limit is not None else (None,)
    right = {counted.left(row, "", mask) for mask in options}
    return "" if int(found[1]) in right else f"there are {sorted(right)}"


def _uses(counted: Counted, row: int, found: re.Match[str]) -> str:
    """ "waits for 1 GPU: 1 of 4 belongs to jobs that cannot be resized, and 3 are lent"."""
    limit = counted.decided.seen.view.limit(row)
    exact = limit is None or (not limit.demand.types and not limit.demand.memory_bytes and not limit.demand.began_on)
    names = {sort.name for server in counted.decided.seen.view.known for sort in server.sorts}
    exact = exact and len(names) <= 1 and (limit is None or not limit.demand.per_server)
    for count, size, words in re.findall(rf"(\d+)(?: of (\d+))? ({'|'.join(_USES)})", found[2]):
        at = next(number for number, use in enumerate(_USES) if re.fullmatch(use, words))
        there = counted.uses[at]
        if int(count) > there or (exact and int(count) != there):
            return f"{there} {words}"
        if size and (int(size) > counted.everything or (exact and int(size) != counted.everything)):
            return f"the cluster has {counted.everything}"
    return ""


def _too_small(counted: Counted, row: int, found: re.Match[str]) -> str:
    """ "asks for at least 8 GPUs, the cluster has 4"."""
    limit, has = counted.decided.seen.view.limit(row), int(found[2])
    if has >= int(found[1]):
        return "that is enough"
    right = has <= counted.everything if limit is not None else has == counted.everything
    return "" if right else f"the cluster has {counted.everything}"


def _there(counted: Counted, row: int, found: re.Match[str]) -> str:
    """ "waits for 4 GPUs: 2 of 4 are there, s1 is lost"."""
    there, size = int(found[1]), int(found[2])
    if counted.decided.seen.view.limit(row) is not None:
        right = there <= counted.in_view and size <= counted.in_view + counted.lost
    else:
        right = (there, size) == (counted.in_view, counted.in_view + counted.lost)
    return "" if right else f"{counted.in_view} are there, {counted.lost} are lost"


def _beside_hand(counted: Counted, row: int, found: re.Match[str]) -> str:
    """ "asks for at least 4 GPUs, 2 of 4 are left: NAME has 2 GPUs by hand"."""
    by_hand = sum(counted.shares().get(other, 0) for other in counted.decided.seen.view.manual_shares)
    right = counted.in_view - by_hand, counted.in_view
    return "" if (int(found[2]), int(found[3])) == right else f"there are {right}"


def _by_hand(counted: Counted, row: int, found: re.Match[str]) -> str:
    """ "NAME has 2 GPUs by hand"."""
    shares = {counted.shares().get(other, 0) for other in counted.decided.seen.view.manual_shares}
    wrong = [count for count in map(int, re.findall(r"has (\d+) GPU", found[0])) if count not in shares]
    return f"by hand there are {sorted(shares)}" if wrong else ""


def _set(counted: Counted, row: int, found: re.Match[str]) -> str:
    """ "set to 4 GPUs by hand, 0 of 4 could be had"."""
    wanted = counted.decided.seen.view.manual_shares.get(row)
    right = wanted, counted.shares().get(row, 0), counted.in_view
    return "" if tuple(map(int, found.groups())) == right else f"there are {right}"


def _limited(counted: Counted, row: int, found: re.Match[str]) -> str:
    """ "waits for 2 A100: 1 of 4 is free", "waits for 2 A100: all 4 are in use"."""
    limit = counted.decided.seen.view.limit(row)
    if limit is None:
        return "it may use all"
    free, size = (0, int(found[3])) if found[3] else (int(found[1]), int(found[2]))
    frees = {counted.left(row, "", mask) for mask in limit.options}
    sizes = {mask.bit_count() for mask in limit.options}
    return "" if free in frees and size in sizes else f"free are {sorted(frees)} of {sorted(sizes)}"


def _held(counted: Counted, row: int, found: re.Match[str]) -> str:
    """ "waits for 4 GPUs: 2 held for it, 2 in use by jobs that keep them"."""
    reservation = counted.decided.seen.view.reservation
    if reservation is None:
        return "there is no reservation"
    numbers = [int(number) for number in found.groups() if number]
    right = [reservation.gpus, reservation.got, reservation.gpus - reservation.got][: len(numbers)]
    return "" if numbers == right and reservation.got <= counted.in_view else f"there are {right}"


def _resources(counted: Counted, row: int, found: re.Match[str]) -> str:
    """ "waits for cores: each worker asks for 2 cores, and of the servers with a free GPU NAME has most left, 1 core"."""
    asked = Need.of(counted.decided.seen.jobs[row].spec)
    if found[2] != str(asked.each):
        return f"it asks for {asked.each}"
    lefts, begin = [], 0
    for server in counted.decided.seen.view.servers:
        mask, begin = ((1 << len(server.gpus)) - 1) << begin, begin + len(server.gpus)
        left = server.capacity.left if server.capacity is not None else Amounts()
        for other, gpus in counted.decided.found.divided.placements.items():
            left -= Need.of(counted.decided.seen.jobs[other].spec).of_gpus((gpus & mask).bit_count())
        cores = left.millicores if "cores" in found[1] else 0
        shown = Amounts(cores, left.memory_bytes if "memory" in found[1] else 0)
        lefts.append(str(shown) if shown else f"no {found[1]}")
    return "" if found[3] in lefts else f"there are {lefts}"


def _each(counted: Counted, row: int, found: re.Match[str]) -> str:
    """ "its workers, 2 cores each, do not fit on the free GPUs beside those of other jobs"."""
    asked = Need.of(counted.decided.seen.jobs[row].spec).each
    return "" if found[1] == str(asked) else f"it asks for {asked}"


def _as_it_is(counted: Counted, row: int, found: re.Match[str]) -> str:
    """Times, and the policy's shares before a later stage: not checked."""
    return ""


Rule = Callable[[Counted, int, re.Match[str]], str]  # returns the error; "": none
_ASKS = r"(?:asks for at least|is given all or none of)"
_SAYS: tuple[tuple[str, Rule], ...] = (
    (r"waits for (\d+) GPUs?: (\d+) of (\d+) (left by .*|free|free, and if .*|not needed for .*)", _waits),
    (r"waits for its turn: the policy leaves (\d+) of \d+ idle", _turn),
    (
        r"waits for (cores|memory|cores and memory): each worker asks for ([^,]*), "
        r"and of the servers with a free GPU NAME has most left, (.*)",
        _resources,
    ),
    (r"its workers, ([^,]*) each, do not fit on the free GPUs beside those of other jobs", _each),
    (rf"waits for ([^:]*): (\d+ of \d+ (?:{'|'.join(_USES)}).*)", _uses),
    (r"waits for [^:]*: (?:[A-Za-z ]+) leave \d+ of \d+.*", _as_it_is),  # together on a server: not a plain count
    (rf"{_ASKS} (\d+) [^:]*, (?:the cluster has|there are) (\d+).*", _too_small),
    (r"waits for [^:]*: (\d+) of (\d+) are there, .*", _there),
    (r"waits for [^:]*: \d+ of \d+ may be used by it.*", _as_it_is),
    (rf"{_ASKS} (\d+) GPUs?, (\d+) of (\d+) are left: .*", _beside_hand),
    (r"(?:NAME has \d+ GPUs? by hand(?:, )?)+(?:\d+ more have some)?", _by_hand),
    (r"set to (\d+) GPUs? by hand, (\d+) of (\d+) could be had", _set),
    (r"waits for [^:]*: (?:(\d+) of (\d+) (?:is|are) free|all (\d+) are in use)", _limited),
    (r"waits for (\d+) GPUs?: (\d+) held for it(?:, (\d+) in use by jobs that keep them)?", _held),
    (r"GPUs are being held for NAME, which waits for (\d+) GPUs? and has (\d+) of them so far", _held),
    (r"waits for [^:]*: \d+ servers? (?:has|have) \d+ free, and it needs \d+", _as_it_is),
    (r"\d+ [A-Za-z0-9 -]+ (?:is|are) free", _as_it_is),
    (r"\d+ GPUs? in place of \d+, so that no two jobs share a server's network", _as_it_is),
    (r"it began on .*, and stays on that type", _as_it_is),
    (r".*(?:deadline|in \d+|at the soonest|next try).*", _as_it_is),
)
_RULES = tuple((re.compile(pattern), rule) for pattern, rule in _SAYS)
