"""Validation of all values that agents and workers report.

It runs where the values arrive, so that no record, view or policy ever holds a value that is NaN, infinite or out of
range.

Values on which membership depends (generations, steps, sequence) must be valid, or the whole message is dropped. Values
for users and for the scheduler are dropped one by one. So a script with a loss of NaN continues, and users see the
word.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

from msgspec.structs import asdict, replace

from ...protocol.batches import wrong_in
from ...protocol.limits import MAX_BATCH_FACTOR, MAX_PACES, MAX_STRAGGLERS, MOST_PACE
from ...protocol.messages import AgentHello, WorkerExit, WorkerUse
from ...protocol.model import Resize, Server, Steady, WorkerStatus
from ...scheduler.speedup_curve import Measured
from ..jobs.records import Progress

MAX_COUNT = 2**53  # bound of steps, generations and bytes, up to which JSON and a float are exact
MAX_RATE = 1e12  # samples or steps per second
MAX_DURATION_S = 1e9  # about thirty years
MIN_STEP_S = 1e-9
MAX_NAME = 256
MAX_PATH = 4096  # characters of a path on a server
MAX_TEXT = 2000
MAX_METRICS = 256
MAX_RESIZES = 64
MAX_UNHEARD = 4096
MAX_GPUS_OF_A_SERVER = 1024
MAX_NICS_OF_A_SERVER = 256
MAX_DEPTH = 64  # PCI devices above a device
MAX_PORT = 65_535
MAX_WORKERS_OF_A_SERVER = 100_000  # workers that run, or ended while there was no controller


def unusable(status: WorkerStatus) -> str:
    """Return why the whole status must be dropped; "" if it is usable."""
    counts = {
        "pid": status.pid,
        "generation": status.generation,
        "order": status.order,
        "floor": status.floor,
        "sequence": status.sequence,
        "saved_generation": status.saved_generation,
        "save_failures": status.save_failures,
    }
    steps = {"applied": status.applied, "saved": status.saved}
    for field, value in counts.items():
        if not 0 <= value <= MAX_COUNT:
            return f"{field}: {value}"
    for field, step in steps.items():
        if step is not None and not -1 <= step <= MAX_COUNT:
            return f"{field}: {step}"
    if max(len(status.worker), len(status.job), len(status.address)) > MAX_NAME:
        return "a name or an address is too long"
    return ""


def sensible(status: WorkerStatus) -> bool:
    """Return whether `unusable` and `without_odd_figures` would find no fault in `status`.

    It follows a status without a fault, and differs from it in nothing but what changes with progress.
    """
    return (
        -1 <= (status.applied or 0) <= MAX_COUNT
        and 0 <= status.sequence <= MAX_COUNT
        and next(_odd_figures(status), None) is None
        and not status.odd_metrics
        and len(status.metrics) <= MAX_METRICS
        and all(math.isfinite(value) and len(name) <= MAX_NAME for name, value in status.metrics.items())
        and len(status.note) <= MAX_TEXT
    )


def sensible_use(report: WorkerUse) -> bool:
    """Return whether all values of a report of a worker's use are in range."""
    use = report.use
    counts = (use.gpu_s, use.busy_gpu_s, use.cpu_s, use.wall_s, use.memory_bytes, use.gpu_memory_bytes)
    return all(_within(count, MAX_COUNT) for count in counts) and _within(report.idle_s or 0.0)


def without_odd_figures(status: WorkerStatus) -> tuple[WorkerStatus, tuple[str, ...]]:
    """Return `status` without values that cannot be used in calculations, and a description of each of these."""
    kept: dict[str, object] = {}
    odd: list[str] = []
    for field, default in _odd_figures(status):
        kept[field] = default
        value = getattr(status, field)
        odd.append(f"{field}: {value if isinstance(value, int | float) else 'out of range'}")
    metrics, words, left_out = _usable_metrics(status.metrics)
    if words or left_out or status.odd_metrics:
        kept["metrics"], kept["odd_metrics"] = metrics, words
        odd += [f"metric {name}: {word}" for name, word in words.items()]
        odd += [f"metric {name}" for name in left_out]
    resizes = tuple(resize for resize in status.resizes[-MAX_RESIZES:] if usable_resize(resize))
    if len(resizes) < len(status.resizes):
        kept["resizes"] = resizes
        odd.append("resizes: too many, or of no sensible size")
    if len(status.unheard) > MAX_UNHEARD:
        kept["unheard"] = status.unheard[:MAX_UNHEARD]
    if len(status.note) > MAX_TEXT:
        kept["note"] = status.note[:MAX_TEXT]
    if len(status.news) > MAX_TEXT:
        kept["news"] = status.news[:MAX_TEXT]
    return (replace(status, **kept) if kept else status), tuple(odd)


def _odd_figures(status: WorkerStatus) -> Iterator[tuple[str, object]]:
    """Yield the fields with invalid values, and the neutral value for each."""
    if not _within(status.samples_per_s, MAX_RATE):
        yield "samples_per_s", 0.0
    for field in ("median_step_s", "saving_s", "longest_step_s", "waits_s", "unconnected_s", "exchange_s"):
        if not _within(getattr(status, field)):
            yield field, 0.0
    if not _steady_fits(status.steady):
        yield "steady", Steady()
    if not _batch_fits(status):
        yield "batch_changes", ()
        yield "batch_ceiling", 0
    if not _stragglers_fit(status):
        yield "stragglers", ()
    if not _paces_fit(status):
        yield "paces", {}
    for field in ("epoch", "batch_samples"):
        if not 0 <= getattr(status, field) <= MAX_COUNT:
            yield field, 0
    if status.total_steps is not None and not 0 <= status.total_steps <= MAX_COUNT:
        yield "total_steps", None


def _usable_metrics(metrics: dict[str, float]) -> tuple[dict[str, float], dict[str, str], tuple[str, ...]]:
    """Return the usable metrics, the words of those that are not finite, and the dropped ones.

    Metrics are dropped if they are too many or their names too long.
    """
    named = {name: value for name, value in metrics.items() if len(name) <= MAX_NAME}
    kept = dict(list(named.items())[:MAX_METRICS])
    finite = {name: value for name, value in kept.items() if math.isfinite(value)}
    words = {name: f"{value}" for name, value in kept.items() if name not in finite}
    return finite, words, tuple(f"{name[:MAX_NAME]}: {value}" for name, value in metrics.items() if name not in kept)


def _within(value: float, most: float = MAX_DURATION_S) -> bool:
    return 0 <= value <= most  # false for NaN


def _batch_fits(status: WorkerStatus) -> bool:
    return 0 <= status.batch_ceiling <= MAX_BATCH_FACTOR and next(wrong_in(status.batch_changes), None) is None


def _steady_fits(steady: Steady) -> bool:
    step_fits = steady.step_s == 0 or MIN_STEP_S <= steady.step_s <= MAX_DURATION_S
    return step_fits and 0 <= steady.generation <= MAX_COUNT and 0 <= steady.steps <= MAX_COUNT


def _stragglers_fit(status: WorkerStatus) -> bool:
    return len(status.stragglers) <= MAX_STRAGGLERS and all(
        len(one.worker) <= MAX_NAME
        and all(map(_within, (one.slowdown, one.samples, one.hosts, one.without)))
        and 0.0 < one.kept <= 1.0 <= one.without
        and _within(one.since_s, MAX_COUNT)
        for one in status.stragglers
    )


def _paces_fit(status: WorkerStatus) -> bool:
    return len(status.paces) <= MAX_PACES and all(
        len(worker) <= MAX_NAME and 1.0 / MOST_PACE <= pace <= MOST_PACE for worker, pace in status.paces.items()
    )


def usable_resize(resize: Resize) -> bool:
    """Return whether all values of a measured resize are in range."""
    counts = (resize.generation, resize.step + 1, resize.workers_before, resize.workers_after)
    times_s = (resize.longest_gap_s, resize.median_step_s, resize.median_step_after_s)
    return all(0 <= count <= MAX_COUNT for count in counts) and all(map(_within, times_s))


def exit_within_bounds(ended: WorkerExit) -> WorkerExit:
    """Return `ended` with its reason and exit code limited to valid sizes."""
    code = ended.exit_code
    fits = code is None or -256 <= code <= 255
    return replace(ended, reason=ended.reason[:MAX_TEXT], exit_code=code if fits else None)


def end_fault(ended: WorkerExit) -> str:
    """Return why a worker's end must be dropped; "" if it is usable."""
    return "a name is too long" if max(map(len, (ended.worker, ended.job, ended.uid))) > MAX_NAME else ""


def hello_fault(hello: AgentHello) -> str:
    """Return the first fault in an agent's report about itself, its server and its workers; "" if there is none."""
    return next(itertools.chain(_server_faults(hello.server), _hello_faults(hello)), "")


def _hello_faults(hello: AgentHello) -> Iterator[str]:
    if max(map(len, (hello.incarnation, hello.agent, hello.cluster))) > MAX_NAME:
        yield f"the name of its incarnation, its identity or its cluster is longer than {MAX_NAME} characters"
    told = (hello.workers, hello.starting, hello.exited, hello.processes)
    if max(map(len, told)) > MAX_WORKERS_OF_A_SERVER:
        yield f"it names more than {MAX_WORKERS_OF_A_SERVER} workers"
    names: list[str] = list(hello.starting)
    for local in hello.processes:
        names += (local.worker, local.job, local.uid)
        if len(local.gpus) > MAX_GPUS_OF_A_SERVER or len(set(local.gpus)) < len(local.gpus):
            yield "a worker has more GPUs than a server can have, or one of them twice"
    for ended in hello.exited:
        names += (ended.worker, ended.job, ended.uid)
    if max(map(len, names), default=0) > MAX_NAME:
        yield f"the name of a worker is longer than {MAX_NAME} characters"


def _server_faults(server: Server) -> Iterator[str]:
    if not 0 < len(server.server) <= MAX_NAME or len(server.address) > MAX_NAME:
        yield f"its name or address is empty or longer than {MAX_NAME} characters"
    if max(len(server.version), *(max(len(gpu.name), len(gpu.uuid)) for gpu in server.gpus), 0) > MAX_NAME:
        yield f"its version, or the name of a GPU, is longer than {MAX_NAME} characters"
    if any(len(gpu.place.nvlinks) > MAX_GPUS_OF_A_SERVER for gpu in server.gpus):
        yield "a GPU has more links than there are GPUs"
    places = [gpu.place for gpu in server.gpus]
    numbers = itertools.chain(*((place.socket or 0, place.switch or 0, *place.nvlinks) for place in places))
    if any(not 0 <= number <= MAX_COUNT for number in numbers) or any(len(place.rack) > MAX_NAME for place in places):
        yield f"where a GPU sits has a number that is negative or enormous, or a rack longer than {MAX_NAME} characters"
    if any(not 0 <= gpu.port <= MAX_PORT for gpu in server.gpus):
        yield "a port is negative or greater than any can be"
    yield from _wiring_faults(server)
    if server.checkpoints is not None:
        texts = (server.checkpoints.path, server.checkpoints.kind, server.checkpoints.place)
        if max(map(len, texts)) > MAX_PATH:
            yield f"the path of its checkpoints is longer than {MAX_PATH} characters"
    if len(server.gpus) > MAX_GPUS_OF_A_SERVER:
        yield f"it has {len(server.gpus)} GPUs; at most {MAX_GPUS_OF_A_SERVER} are known of a server"
    indices = [gpu.index for gpu in server.gpus]
    if len(set(indices)) < len(indices):
        yield "two of its GPUs have the same index"
    counts = (*indices, *(gpu.memory_bytes for gpu in server.gpus), server.cpu_cores, server.memory_bytes)
    if any(not 0 <= count <= MAX_COUNT for count in counts):
        yield "an index, a number of cores or an amount of memory is negative or enormous"
    if (there := server.allocatable) is not None:
        amounts = (there.cpus, there.worker_cpus, there.memory_bytes, there.worker_memory_bytes)
        if not all(0 <= amount <= MAX_COUNT for amount in amounts) or len(there.unheld) > MAX_PATH:
            yield "the cores or the memory for its jobs are negative, enormous or no number, or a text is too long"
    if len(server.no_containers) > MAX_PATH:
        yield f"its reason for running no containers is longer than {MAX_PATH} characters"


def _wiring_faults(server: Server) -> Iterator[str]:
    wiring = server.wiring
    adapters = wiring.adapters or ()
    if len(wiring.gpus) > MAX_GPUS_OF_A_SERVER or max(len(wiring.nics), len(adapters)) > MAX_NICS_OF_A_SERVER:
        yield "it tells the wiring of more GPUs or network cards than a server has"
        return
    texts = [server.rack, wiring.driver]
    counts: list[float] = []
    for gpu in wiring.gpus:
        texts += (gpu.pci, gpu.pcie, gpu.parent, *gpu.above)
        counts += (gpu.index, gpu.node or 0, gpu.pcie_bytes_per_s, *(links.bytes_per_s for links in gpu.nvlinks))
        counts += (each for links in gpu.nvlinks for each in (links.count, links.peer or 0))
        counts += gpu.peers or ()
        many = max(len(gpu.nvlinks), len(gpu.peers or ()))
        if len(gpu.above) > MAX_DEPTH or len(gpu.cpus) > MAX_TEXT or many > MAX_GPUS_OF_A_SERVER:
            yield f"the wiring of its GPU {gpu.index} is longer than any can be"
    for nic in wiring.nics:
        texts += (nic.name, nic.pci, *nic.above)
        counts += (nic.node or 0, nic.bytes_per_s)
        if len(nic.above) > MAX_DEPTH:
            yield "the wiring of a network card is longer than any can be"
    for adapter in adapters:
        texts += (adapter.name, adapter.link_layer, adapter.state)
        counts.append(adapter.bytes_per_s)
    if max(map(len, texts)) > MAX_NAME:
        yield f"its rack, or a name in its wiring, is longer than {MAX_NAME} characters"
    if not all(0 <= count <= MAX_COUNT for count in counts):
        yield "a number in its wiring is negative or enormous"


# --------------------------------------------------------------------------------------------------------- recorded figures


def mended_progress(progress: Progress) -> Progress:
    """Return progress that an older version may have recorded, without invalid values."""
    fits: dict[str, Callable[[], bool]] = {
        "step": lambda: progress.step is None or -1 <= progress.step <= MAX_COUNT,
        "total_steps": lambda: progress.total_steps is None or 0 <= progress.total_steps <= MAX_COUNT,
        "epoch": lambda: 0 <= progress.epoch <= MAX_COUNT,
        "batch_samples": lambda: 0 <= progress.batch_samples <= MAX_COUNT,
        "samples_per_s": lambda: _within(progress.samples_per_s, MAX_RATE),
        "median_step_s": lambda: _within(progress.median_step_s),
    }
    kept = {field: value for field, value in asdict(progress).items() if field in fits and fits[field]()}
    metrics, words, _ = _usable_metrics(progress.metrics)
    return Progress(**kept, metrics=metrics, odd_metrics=progress.odd_metrics | words)


def usable_measurement(entry: Measured) -> bool:
    """Return whether the scheduler can use the measurement."""
    rates = entry.recent
    return bool(rates) and all(0 < rate <= 1 / MIN_STEP_S for rate in rates) and math.isfinite(entry.at_s)
