"""A cluster for tests of screens: it answers requests from fields that a test sets, with the real client's paging."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from elasticd.ctl.client import Client
from elasticd.ctl.context import Context
from elasticd.protocol.errors import ClusterUnreachable, NotAllowed, UserError
from elasticd.protocol.messages import (
    Answer,
    Controllers,
    ControllerView,
    Events,
    EventView,
    Explanation,
    GetControllers,
    GetEnded,
    GetEvents,
    GetJob,
    GetJobs,
    GetLog,
    GetOutlook,
    GetPolicy,
    GetQuotas,
    GetServers,
    JobFound,
    Jobs,
    JobView,
    Log,
    Outlook,
    OutlookJob,
    PolicyInUse,
    QuotasFound,
    QuotaView,
    Request,
    Servers,
    ServerView,
    ShareChange,
    StageView,
    WorkerStage,
    WorkerView,
)
from elasticd.protocol.model import (
    Gpu,
    GpuKind,
    GpuRange,
    JobId,
    JobPhase,
    JobSpec,
    Resize,
    Server,
    ServerId,
    WorkerId,
)

NOW_S = 1_800_000_000.0
PAGE = 200


def job(name: str, **fields: Any) -> JobView:
    """A pending job."""
    usual = {
        field.name: None if field.name in ("started_s", "finished_s", "manual_share", "step", "total_steps", "exit_code")
        else () if field.name in ("workers", "past_workers", "shares", "resizes") else 0
        for field in msgspec.structs.fields(JobView) if field.required
    }  # fmt: skip
    spec = JobSpec(
        name=name.rpartition("-")[0],
        command=("python", "train.py"),
        gpus=GpuRange(min=1, max=8),
        virtual_workers=8,
        workdir="/home",
    )
    usual |= {"job": JobId(name), "spec": spec, "phase": JobPhase.PENDING, "reason": "", "metrics": {}}
    usual |= {"submitted_s": NOW_S - 3600.0, "owner": "alice"}
    return JobView(**{**usual, **fields})


def running(name: str, share: int = 2, **fields: Any) -> JobView:
    """A job that has been resized twice."""
    resizes = (
        Resize(generation=2, step=90, workers_before=4, workers_after=1, longest_gap_s=0.31, median_step_s=0.1),
        Resize(generation=3, step=220, workers_before=1, workers_after=share, longest_gap_s=0.145, median_step_s=0.12),
    )
    shares = (
        ShareChange(time_s=NOW_S - 3000.0, share=4, generation=1, reason="idle GPUs"),
        ShareChange(time_s=NOW_S - 1800.0, share=1, generation=2, reason="gives GPUs to bert-2"),
        ShareChange(
            time_s=NOW_S - 600.0, share=share, generation=3, reason="takes the GPUs of resnet-9, which has ended"
        ),
    )
    worker = WorkerView(
        worker=WorkerId(f"{name}.0"), server=ServerId("s001"), gpu=0, phase=WorkerStage.TRAINING, pid=77
    )
    usual: dict[str, Any] = {"phase": JobPhase.RUNNING, "share_gpus": share, "wanted_gpus": share, "generation": 3}
    usual |= {
        "step": 400,
        "total_steps": 1000,
        "samples_per_s": 512.0,
        "median_step_s": 0.12,
        "started_s": NOW_S - 3000.0,
    }
    usual |= {"shares": shares, "resizes": resizes, "workers": (worker,), "metrics": {"loss": 0.25}, "ran_s": 3000.0}
    return job(name, **{**usual, **fields})


def server(name: str, used: dict[int, str], gpus: int = 8, **fields: Any) -> ServerView:
    devices = tuple(Gpu(index=index, kind=GpuKind.CUDA, name="NVIDIA A100-SXM4-40GB") for index in range(gpus))
    machine = Server(server=ServerId(name), address="10.0.0.1", gpus=devices)
    jobs = {index: JobId(who) for index, who in used.items()}
    return ServerView(server=machine, alive=True, last_heard_s=NOW_S, used=jobs, **fields)


def outlook(busy: str, waiting: str) -> Outlook:
    """Two GPUs, which the one job leaves to the other after ten minutes."""
    facts = {"min_gpus": 2, "max_gpus": 2, "requested_gpus": 2, "priority": 0, "curve": 0, "submitted_s": NOW_S - 60.0}
    facts |= {"executed_s": 0.0, "attained_gpu_s": 0.0, "changes": 0, "done_s": 0.0, "left_s": 1200.0, "fixed": True}
    facts |= {"by_hand": None, "time_left_s": None}
    jobs = (
        OutlookJob(job=JobId(busy), share=2, waiting_since_s=None, **facts),
        OutlookJob(job=JobId(waiting), share=0, waiting_since_s=NOW_S - 60.0, **facts),
    )
    servers = ((ServerId("s"), 2),)
    return Outlook(time_s=NOW_S, policy={"policy": "fifo"}, servers=servers, jobs=jobs, speedups=((0.0, 1.0, 2.0),))


class World:
    """The answers. `away`: nothing answers. `asked`: how often each kind of request came."""

    def __init__(self) -> None:
        self.jobs: list[JobView] = []
        self.ended: list[JobView] = []
        self.servers: list[ServerView] = []
        self.events: list[EventView] = []
        self.logs: dict[str, bytes] = {}
        self.explanation = Explanation(phase_since_s=NOW_S - 60.0, reasons=("no GPU is idle",), policy="max-min")
        self.quotas = QuotasFound(quotas=(), total_gpus=8, time_s=NOW_S)
        self.outlook = Outlook(time_s=NOW_S, obstacle="there are more than 5000 jobs")
        self.away = False
        self.slow_s = 0.0
        self.forbidden: set[str] = set()
        self.asked: Counter[str] = Counter()
        self._lock = threading.Lock()

    def connect(self) -> Context:
        return Context(Path("/nowhere"), "ipc:///nowhere", _client=Asked(self))

    def answer(self, request: Request) -> Answer:
        with self._lock:
            self.asked[type(request).__name__] += 1
        time.sleep(self.slow_s)
        if self.away:
            raise ClusterUnreachable("no controller answers at tcp://head:7700 within 10 s")
        match request:
            case GetJobs():
                return self._page(self.jobs, request.after, request.limit)
            case GetEnded():
                return self._page(self.ended, request.after, request.limit)
            case GetOutlook():
                return self.outlook
            case GetServers():
                return Servers(servers=tuple(self.servers), time_s=NOW_S)
            case GetJob():
                return JobFound(job=self._job(request.job), time_s=NOW_S, explanation=self.explanation)
            case GetEvents():
                found = [event for event in self.events if request.job in (None, event.job)]
                later = [event for event in found if event.number > request.after]
                return Events(events=tuple(later[: request.limit]))
            case GetLog():
                if request.job in self.forbidden:
                    raise NotAllowed(f"{request.job} is alice's: its log is not yours to read")
                data = self.logs.get(request.worker, b"")
                begin = request.offset if request.offset >= 0 else max(0, len(data) + request.offset)
                return Log(data=data[begin:], next_offset=len(data), end=False)
            case GetQuotas():
                return self.quotas
            case GetControllers():
                view = ControllerView(name="one", leads=True, version="1", since_s=NOW_S - 60.0)
                return Controllers(controllers=(view,), asked="one", term=1, time_s=NOW_S)
            case GetPolicy():
                stage = StageView(name="max-min")
                return PolicyInUse(
                    policy=stage, admission=stage, packing="none", placement=stage, needs_lengths=False, at_run_time=False,
                    source="", user="", since_s=NOW_S, configured_policy="max-min",
                )  # fmt: skip
        raise AssertionError(f"a screen sends a {type(request).__name__}")

    def _job(self, name: str) -> JobView:
        found = next((view for view in (*self.jobs, *self.ended) if view.job == name), None)
        if found is None:
            raise UserError(f"there is no job {name!r}")
        return found

    @staticmethod
    def _page(jobs: list[JobView], after: str, limit: int) -> Jobs:
        begin = int(after or 0)
        end = begin + min(limit, PAGE)
        return Jobs(
            jobs=tuple(jobs[begin:end]), time_s=NOW_S, policy="max-min", next=str(end) if end < len(jobs) else ""
        )


class Asked(Client):
    """A client of a world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def ask(self, request: Request, timeout_s: float = 10.0) -> Answer:
        return self._world.answer(request)

    def close(self) -> None:
        pass


def thousand() -> World:
    """A thousand jobs, of which those of the first servers run."""
    world = World()
    users = ("alice", "bob", "carol", "dmitri.ivanov", "eve")
    number = 0
    for at in range(64):
        used: dict[int, str] = {}
        index = 0
        while index < 8 and at % 9 != 7:
            size = min((1, 2, 4, 8, 3)[number % 5], 8 - index)
            name = f"{('resnet50', 'bert-large', 'digits', 'llama-3-8b-finetune', 'vit')[number % 5]}-{number + 1}"
            number += 1
            world.jobs.append(running(name, size, owner=users[number % 5]))
            used |= dict.fromkeys(range(index, index + size), name)
            index += size + (number % 7 == 0)
        barred = {7: "GPU fell off the bus (Xid 79)"} if at == 3 else {}
        used = {gpu: who for gpu, who in used.items() if gpu < 8 and gpu not in barred}
        world.servers.append(server(f"s{at + 1:03}", used, barred=barred, trouble="GPU 7: Xid 79" if barred else ""))
    reasons = ("waits for 4 GPUs: 3 of 512 are idle", "waits for its turn", "alice has reached her quota of 64 GPUs")
    while len(world.jobs) < 1000:
        number += 1
        name = f"{('sweep', 'resnet50', 'tabular')[number % 3]}-{number}"
        world.jobs.append(job(name, owner=users[number % 5], reason=reasons[number % 3]))
    world.ended = [
        job(f"old-{at}", phase=(JobPhase.FINISHED, JobPhase.FAILED, JobPhase.CANCELLED)[at % 3], started_s=NOW_S - 3000.0,
            finished_s=NOW_S - at, peak_gpus=4, reason="" if at % 3 != 1 else "exit code 1: ValueError: the loss is nan")
        for at in range(450)
    ]  # fmt: skip
    first = world.jobs[0].job
    lines = [
        f"{NOW_S - 400 + at:.3f} {'e' if at % 37 == 0 else 'o'} step {at} loss {1 / (at + 1):.4f}\n"
        for at in range(300)
    ]
    world.logs[f"{first}.0"] = "".join(lines).encode()
    quotas = [
        QuotaView(
            name=user, gpus=64, most_gpus=128, used_gpus=80 - at, borrowed_gpus=max(0, 16 - at), jobs=200, most_jobs=500
        )
        for at, user in enumerate(users)
    ]
    world.quotas = QuotasFound(quotas=tuple(quotas), total_gpus=512, time_s=NOW_S)
    return world
