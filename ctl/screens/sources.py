"""Contents of a screen's pages, from answers of the controller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ...protocol.messages import (
    Controllers,
    EventView,
    Explanation,
    GetControllers,
    GetEnded,
    GetJob,
    GetJobs,
    GetPolicy,
    GetQuotas,
    JobFound,
    Jobs,
    JobView,
    PolicyInUse,
    QuotasFound,
    Servers,
    ServerState,
    ServerView,
)
from ...protocol.texts import gpu_count
from .. import render
from ..context import DECIDED_WITHIN_S, Context
from ..formatting import printable
from .tails import Stories

HISTORY_PAGE = 200
EXPLAINED_S = 10.0  # interval of explanations, each of which costs the controller many decisions
LOG_S = 1.0


@dataclass(frozen=True)
class Cluster:
    """Unfinished jobs, and servers."""

    jobs: Jobs
    servers: Servers

    def summary(self) -> list[str]:
        """Return the summary in words: GPUs, jobs and policy."""
        phases = Counter(render.phase(job) for job in self.jobs.jobs)
        total = sum(len(view.server.gpus) for view in self.servers.servers)
        used = sum(len(view.used) for view in self.servers.servers)
        counts = ", ".join(f"{count:,} {phase}" for phase, count in phases.most_common())
        jobs = len(self.jobs.jobs)
        return [
            f"{gpu_count(total)}, {used:,} in use",
            f"{jobs:,} unfinished job{'' if jobs == 1 else 's'}{': ' if counts else ''}{counts}",
            f"policy {printable(self.jobs.policy)}",
        ]


@dataclass(frozen=True)
class Health:
    """Servers, those with a trouble first; controllers, the policy in use, and the last events of the cluster."""

    servers: Servers
    controllers: Controllers
    policy: PolicyInUse
    events: tuple[EventView, ...]

    def troubles(self) -> list[str]:
        return [printable(text) for text in (self.controllers.trouble, self.policy.trouble) if text]

    def servers_by_trouble(self) -> list[ServerView]:
        return sorted(self.servers.servers, key=is_well)


def is_well(view: ServerView) -> bool:
    """Return whether a server and all its GPUs take new work."""
    return view.state is ServerState.ALIVE and not view.trouble and not view.barred


@dataclass(frozen=True)
class GpuRun:
    """Neighbouring GPUs of a server with the same job, or barred for the same reason."""

    first: int
    count: int
    job: str  # "": no job uses them
    why: str  # why the GPUs take no new work; "": they take new work


def gpu_runs(view: ServerView) -> list[GpuRun]:
    """Return the GPUs of a server, neighbours with the same job together."""
    runs: list[GpuRun] = []
    for gpu in view.server.gpus:
        job, why = view.used.get(gpu.index, ""), printable(view.barred.get(gpu.index, ""))
        last = runs[-1] if runs else None
        if last is not None and (last.job, last.why) == (job, why):
            runs[-1] = GpuRun(last.first, last.count + 1, job, why)
        else:
            runs.append(GpuRun(gpu.index, 1, job, why))
    return runs


class Marks:
    """A short mark for each job that has been shown with GPUs: A, B, … Z, AA, …; nothing depends on its colour alone."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def see(self, servers: Servers) -> None:
        """Assign marks to jobs with GPUs that have none yet."""
        for view in servers.servers:
            for job in view.used.values():
                self._numbers.setdefault(job, len(self._numbers))

    def number(self, job: str) -> int | None:
        return self._numbers.get(job)

    def letters(self, job: str) -> str:
        """Return the mark of a job; "": it has none."""
        number = self._numbers.get(job)
        return "" if number is None else "".join(reversed(list(_digits(number))))


def _digits(number: int) -> Iterator[str]:
    while number >= 0:
        yield chr(ord("A") + number % 26)
        number = number // 26 - 1


def cluster(shared: Context) -> Cluster:
    return Cluster(shared.client.jobs(GetJobs()), shared.client.servers())


def job(shared: Context, name: str, stories: Stories) -> tuple[JobFound, tuple[EventView, ...]]:
    """Return a job with its last events."""
    found = shared.ask(GetJob(job=name), JobFound)
    return found, stories.of(shared, found.job.job)


def explained(shared: Context, name: str) -> JobFound:
    return shared.ask(GetJob(job=name, explain=True), JobFound, DECIDED_WITHIN_S)


def explanation_of(found: JobFound) -> tuple[JobView, Explanation]:
    """Return an explained job; an older controller explains nothing."""
    older = Explanation(
        phase_since_s=found.time_s, reasons=("the controller is of an older version, which explains nothing",)
    )
    return found.job, found.explanation or older


def ended(shared: Context, after: str = "") -> Jobs:
    """Return a page of finished jobs."""
    return shared.client.jobs(GetEnded(after=after), HISTORY_PAGE)


def quotas(shared: Context) -> QuotasFound:
    return shared.ask(GetQuotas(), QuotasFound)


def health(shared: Context, stories: Stories) -> Health:
    controllers = shared.ask(GetControllers(), Controllers)
    policy = shared.ask(GetPolicy(), PolicyInUse)
    return Health(shared.client.servers(), controllers, policy, stories.of(shared, None))
