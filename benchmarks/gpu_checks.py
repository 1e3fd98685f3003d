"""Checks of CUDA's and NCCL's rules (docs/design/gpus.md) on this machine: part of `make bench-gpu`.

    python -m benchmarks.gpu_checks NAME cuda|cpu RANK DIRECTORY

runs one check in its own process and writes the result; `look` runs them all, and reports which cannot be run here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import elasticd as elastic
from elasticd.agent.accounts import myself
from elasticd.agent.environment import Surroundings, environment
from elasticd.protocol.errors import UserError
from elasticd.protocol.messages import StartWorker
from elasticd.protocol.model import Determinism, Gpu, GpuKind, GpuRange, JobId, JobSpec, WorkerId
from elasticd.protocol.variables import NCCL_ENVIRONMENT, REPEATABLE
from elasticd.worker.communication.groups import Groups, nccl, warm_up
from elasticd.worker.determinism import ask_for, remedy
from elasticd.worker.ending import freeze_threads_at_exit
from elasticd.worker.events import CheckpointFailed, CheckpointSaved, SaveCheckpoint
from elasticd.worker.state.checkpoint import COPYING, CheckpointWriter

from .runtime.processes import ROOT, Family
from .runtime.workloads import build, sgd

WITHIN_S = 300.0
REPEATED = 10
ABORTED_WITHIN_S, STANDSTILL_S = 5.0, 0.5
COPY_SLOWS_STEPS, FIRST_STEP = 1.5, 3.0
MIB = 1 << 20


@dataclass(frozen=True)
class Found:
    """Result of a check. ok: None if it was not run, with the reason in `why`."""

    name: str
    ok: bool | None
    text: str
    numbers: dict[str, Any] = field(default_factory=dict)

    def show(self) -> Found:
        """Print the result. Returns itself."""
        state = "not measured" if self.ok is None else "ok" if self.ok else "failed"
        print(f"rules: {self.name}: {state}: {self.text}", flush=True)
        return self

    def document(self) -> dict[str, Any]:
        return asdict(self)


# ------------------------------------------------------------------------------------------ each in its own process


def attention(device: torch.device, rank: int, directory: Path) -> Found:
    """Check that the backward pass of each kernel available to torch is deterministic, or refused."""
    count = 4 if device.type == "cuda" else 2
    numbers: dict[str, Any] = {}
    for level in (Determinism.NONE, Determinism.ELASTIC):
        ask_for(level, device)
        for kind in (torch.float32, torch.bfloat16):
            size = (count, 8, 1024 if device.type == "cuda" else 128, 64)
            torch.manual_seed(1)
            q, k, v = (torch.randn(size, device=device, dtype=kind, requires_grad=True) for _ in range(3))
            mask = torch.zeros(size[2], size[2], device=device, dtype=kind)
            for backend in (
                None,
                SDPBackend.FLASH_ATTENTION,
                SDPBackend.EFFICIENT_ATTENTION,
                SDPBackend.CUDNN_ATTENTION,
            ):
                for bias in (None, mask):
                    kernel = backend.name if backend else "the one chosen"
                    name = f"{level.value}: {kernel}, {kind}, {'no mask' if bias is None else 'mask'}"
                    numbers[name] = _different(q, k, v, bias, backend)
    plain, ours = ([x for name, x in numbers.items() if name.startswith(level)] for level in ("none", "elastic"))
    differ, without = (sum(x > 1 for x in seen if isinstance(x, int)) for seen in (ours, plain))
    repeat = ours.count(1)
    return Found(
        CHECKS["attention"].name,
        differ == 0 and repeat > 0,
        f"of {len(ours)} kernels and shapes {repeat} repeat, {len(ours) - repeat - differ} are not taken, {differ} differ in "
        f"{REPEATED} runs; with `determinism: none` {without} differ",
        numbers,
    )


def _different(q: Any, k: Any, v: Any, bias: Any, backend: SDPBackend | None) -> int | str:
    """Return the number of different gradients, or the reason why there are none."""
    seen = set()
    try:
        for _ in range(REPEATED):
            if backend is None:
                out = scaled_dot_product_attention(q, k, v, bias)
            else:
                with sdpa_kernel(backend):
                    out = scaled_dot_product_attention(q, k, v, bias)
            gradients = torch.autograd.grad(out.float().square().sum(), (q, k, v))
            seen.add(tuple(g.cpu().view(torch.uint8).numpy().tobytes() for g in gradients))
    except RuntimeError as error:
        return remedy(error) or str(error).partition("\n")[0]
    return len(seen)


def variables(device: torch.device, rank: int, directory: Path) -> Found:
    """Check that an agent's environment is complete when a script begins, before CUDA starts."""
    before = dict(os.environ)
    wanted = {**NCCL_ENVIRONMENT, **REPEATABLE}
    missing = [name for name in wanted if name not in before]
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return Found(
        CHECKS["variables"].name,
        not missing and not started,
        f"{len(wanted) - len(missing)} of {len(wanted)} when the script begins; CUDA {'has' if started else 'has not'} started",
        {"missing": missing},
    )


def memory(device: torch.device, rank: int, directory: Path) -> Found:
    """Measure the device memory of a communicator's two groups, four times, and whether an abort returns it."""
    torch.zeros(1, device=device)
    free = [_free(device)]
    made = []
    for number in range(4):
        made.append(_pair(device, rank, directory, str(number)))
        free.append(_free(device))
    for groups in made:
        groups.abort_device()
    torch.cuda.synchronize(device)
    left = free[0] - _free(device)
    each = [before - after for before, after in pairwise(free)]
    return Found(
        CHECKS["memory"].name,
        left <= max(each),
        f"{', '.join(f'{size / MIB:.0f}' for size in each)} MiB one after the other, {left / MIB:.0f} MiB left after the abort",
        {"bytes": each, "left": left},
    )


def _free(device: torch.device) -> int:
    torch.cuda.synchronize(device)
    return int(torch.cuda.mem_get_info(device)[0])


def _pair(device: torch.device, rank: int, directory: Path, name: str) -> Groups:
    """Return the device groups of a communicator of two ranks."""
    store = torch.distributed.FileStore(str(directory / name), 2)
    collectives, transfers = (
        nccl(torch.distributed.PrefixStore(each, store), rank, 2, timedelta(seconds=WITHIN_S), device, "")
        for each in ("device", "transfer")
    )
    for group in (collectives, transfers):
        warm_up(group, rank, 2, device)
    return Groups(None, None, collectives, transfers)  # type: ignore[arg-type]


def abort(device: torch.device, rank: int, directory: Path) -> Found:
    """Leave rank 0 alone in an all-reduce in both groups, and abort both. Python threads must run meanwhile."""
    groups = _pair(device, rank, directory, "abort")
    row = torch.ones(1 << 20, device=device)
    works = [group.allreduce([row]) for group in (groups.device, groups.device_transfer) if group and rank == 0]
    time.sleep(1.0)
    hung = not any(work.is_completed() for work in works)
    gaps, over = [0.0], threading.Event()

    def tick() -> None:
        last = time.monotonic()
        while not over.wait(0.001):
            now = time.monotonic()
            gaps.append(now - last)
            last = now

    ticker = threading.Thread(target=tick)
    ticker.start()
    began = time.monotonic()
    groups.abort_device()
    torch.cuda.synchronize(device)
    took = time.monotonic() - began
    over.set()
    ticker.join()
    return Found(
        CHECKS["abort"].name,
        hung and took <= ABORTED_WITHIN_S and max(gaps) <= STANDSTILL_S,
        f"{took * 1e3:.0f} ms until the device is idle, Python stood still for {max(gaps) * 1e3:.0f} ms at most",
        {"took_s": took, "standstill_s": max(gaps), "hung": hung},
    )


def checkpoint(device: torch.device, rank: int, directory: Path) -> Found:
    """Compare steps while a state is copied to the host with undisturbed steps."""
    state = [torch.ones(16 * MIB if device.type == "cuda" else 4 * MIB, device=device) for _ in range(16)]
    a = torch.randn(4096 if device.type == "cuda" else 512, device=device).diag()

    def step() -> float:
        began = time.perf_counter()
        for _ in range(3):
            a @ a
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        return time.perf_counter() - began

    alone = median([step() for _ in range(50)][10:])
    said: SimpleQueue[CheckpointSaved | CheckpointFailed] = SimpleQueue()
    writer = CheckpointWriter(directory / "checkpoints", 1, said.put)
    meanwhile: list[float] = []
    written: list[CheckpointSaved | CheckpointFailed] = []
    copying_s = 0.0
    for number in range(3):
        began = time.perf_counter()
        writer.save(SaveCheckpoint(number, number, 0, 1), {}, state)
        while any(thread.name == COPYING for thread in threading.enumerate()):
            meanwhile.append(step())
        writer.settle()
        copying_s += time.perf_counter() - began
        written.append(said.get(timeout=WITHIN_S))
    rate = 3 * sum(tensor.nbytes for tensor in state) / copying_s / 1e9
    slower = median(meanwhile) / alone if meanwhile else 1.0
    return Found(
        CHECKS["checkpoint"].name,
        all(isinstance(x, CheckpointSaved) for x in written) and bool(meanwhile) and slower <= COPY_SLOWS_STEPS,
        f"a step takes {slower:.2f} of its {alone * 1e3:.2f} ms meanwhile ({len(meanwhile)} steps); {rate:.1f} GB/s",
        {"alone_s": alone, "meanwhile_s": meanwhile},
    )


def first_step(device: torch.device, rank: int, directory: Path) -> Found:
    """Measure a process's first step, for which all workers wait when it joins."""
    run = elastic.join()
    workload = build("transformer-10M" if device.type == "cuda" else "stack-0.1M")
    model, optimizer, batches = run.prepare(workload.model, sgd(workload.model), workload.data, workload.batch_size)
    took: list[float] = []
    for _ in run.epochs(1000):
        began = time.perf_counter()
        for x, y in batches:
            workload.loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            took.append(time.perf_counter() - began)
            if len(took) == 30:
                break
            began = time.perf_counter()
        if len(took) == 30:
            break
    later = median(took[10:])
    return Found(
        CHECKS["first_step"].name,
        took[0] <= FIRST_STEP * later,
        f"{took[0] * 1e3:.1f} ms, later ones {later * 1e3:.1f} ms",
        {"took_s": took},
    )


def ends(device: torch.device, rank: int, directory: Path) -> Found:
    """End the process right after its last collective, with its groups alive; `look` checks the exit code."""
    groups = _pair(device, rank, directory, "ends")
    assert groups.device is not None
    groups.device.allreduce([torch.ones(1 << 20, device=device)])
    return Found(CHECKS["ends"].name, True, "exit code 0 on both ranks")


def filled(device: torch.device, rank: int, directory: Path) -> Found:
    """Check that memory is not filled before its first use under `determinism: elastic`, and measure what that would cost."""
    ask_for(Determinism.ELASTIC, device)
    filling = torch.utils.deterministic

    def seconds() -> float:
        began = time.perf_counter()
        torch.empty(64 * MIB, device=device)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    off = not filling.fill_uninitialized_memory  # type: ignore[attr-defined]
    without = median(seconds() for _ in range(10))
    filling.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    with_it = median(seconds() for _ in range(10))
    return Found(
        CHECKS["filled"].name,
        off,
        f"256 MiB: {without * 1e3:.3f} ms, filled {with_it * 1e3:.3f} ms",
        {"off": off, "without_s": without, "filled_s": with_it},
    )


def graphs(device: torch.device, rank: int, directory: Path) -> Found:
    """Check that a capture after `join`, and a model compiled with graphs, are refused with an alternative named."""
    run = elastic.join()
    workload = build("stack-0.1M")

    def capture() -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.zeros(1, device=device)

    def prepare() -> None:
        model = torch.compile(workload.model, mode="reduce-overhead")
        run.prepare(model, sgd(workload.model), workload.data, workload.batch_size)

    said = []
    for attempt in (capture, prepare):
        try:
            attempt()
        except UserError as error:
            said.append(str(error))
    refused = len(said) == 2 and all("torch.compile(model)" in each for each in said)
    return Found(CHECKS["graphs"].name, refused, f"{len(said)} of 2 refused with what to write instead", {"said": said})


@dataclass(frozen=True)
class Check:
    """A check. run: function called in `gpus` processes. on_cpu: it is meaningful without a GPU."""

    run: Callable[[torch.device, int, Path], Found]
    name: str
    gpus: int = 1
    on_cpu: bool = True


CHECKS: dict[str, Check] = {
    "attention": Check(attention, "attention's backward pass repeats itself or is refused"),
    "variables": Check(variables, "variables are there before CUDA starts"),
    "abort": Check(abort, "abort ends hung kernels in time, and not under the GIL", 2, on_cpu=False),
    "memory": Check(memory, "memory of several communicators is given back", 2, on_cpu=False),
    "checkpoint": Check(checkpoint, "a checkpoint is copied beside the training's stream", on_cpu=False),
    "first_step": Check(first_step, "a joiner's first step is as fast as later ones"),
    "ends": Check(ends, "a process with communicators ends cleanly", 2, on_cpu=False),
    "filled": Check(filled, "memory is not filled before its first use"),
    "graphs": Check(graphs, "CUDA graphs are refused by name", on_cpu=False),
}


# ---------------------------------------------------------------------------------------------------------- from outside


def not_measured(name: str, why: str) -> Found:
    return Found(CHECKS[name].name, None, why)


def look(family: Family, device: str, gpus: int, shared: bool = False) -> list[Found]:
    """Run all checks that this machine allows. gpus: number of GPUs here. shared: two ranks may share the first one."""
    found = []
    for name, check in CHECKS.items():
        if device == "cpu" and not check.on_cpu:
            result = not_measured(name, "no GPU")
        elif device == "cuda" and gpus < check.gpus and not shared:
            result = not_measured(name, f"{check.gpus} GPUs are needed, there is {gpus}")
        else:
            result = _run(family, name, device, check.gpus, shared)
        found.append(result.show())
    return found


def _run(family: Family, name: str, device: str, count: int, shared: bool) -> Found:
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as temporary:
        directory = Path(temporary)
        log = directory / "log"
        processes = []
        for rank in range(count):
            command = [sys.executable, "-m", "benchmarks.gpu_checks", name, device, str(rank), temporary]
            processes.append(family.start(command, given(device, rank) | visible(device, rank, count, shared), log))
        codes: list[int | None] = []
        for process in processes:
            try:
                codes.append(process.wait(WITHIN_S))
            except subprocess.TimeoutExpired:
                process.kill()
                codes.append(None)
        result = directory / "found-0"
        if any(code != 0 for code in codes) or not result.exists():
            said = log.read_text(errors="replace").strip().splitlines()[-1:]
            text = f"exit codes {codes} (None: not within {WITHIN_S:.0f} s): {' '.join(said)}"
            return Found(CHECKS[name].name, False, text)
        return Found(**json.loads(result.read_text()))


def given(device: str, rank: int) -> dict[str, str]:
    """Return the variables that an agent gives to a worker that joins others, on a GPU of this machine."""
    memory_bytes = torch.cuda.get_device_properties(0).total_memory if device == "cuda" else 0
    gpu = Gpu(index=rank, kind=GpuKind.CUDA, name="of this machine", memory_bytes=memory_bytes)
    spec = JobSpec(
        name="bench", command=("true",), gpus=GpuRange(min=1, max=2), virtual_workers=2, workdir=str(ROOT), env={}
    )
    start = StartWorker(
        job=JobId("bench-1"), worker=WorkerId("bench-1.0"), gpu=rank, spec=spec, generation=2, checkpoint_step=None
    )
    around = Surroundings(agent_address="ipc://none", address="127.0.0.1", checkpoints=Path("none"), gpus=(gpu,))
    made = environment(start, gpu, around, myself(), tempfile.gettempdir())
    return {name: value for name, value in made.items() if not name.startswith("ELASTICD_")}


def visible(device: str, rank: int, gpus: int, shared: bool) -> dict[str, str]:
    """Return the variables by which a rank has its own GPU among the first `gpus`, or shares the first one. NCCL refuses two
    ranks on one GPU of one host, so each then gets its own host id, and they communicate over sockets."""
    if device == "cpu":
        return {"CUDA_VISIBLE_DEVICES": ""}
    if shared:
        return {"CUDA_VISIBLE_DEVICES": "0", "NCCL_HOSTID": f"bench-{rank}"}
    return {"CUDA_VISIBLE_DEVICES": str(rank % gpus)}


def main() -> None:
    name, kind, rank, directory = sys.argv[1:]
    torch.set_num_threads(1)
    freeze_threads_at_exit()  # as workers do
    device = torch.device("cuda", 0) if kind == "cuda" else torch.device("cpu")
    found = CHECKS[name].run(device, int(rank), Path(directory))
    (Path(directory) / f"found-{rank}").write_text(json.dumps(found.document()))


if __name__ == "__main__":
    main()
