"""Sia's and Pollux' measurements: time of a step and of its synchronisation, by batch on one GPU and by placement.

They become strong-scaling curves for given global batches. A share has the placement on the fewest servers that was
measured, and of several such ones the median. A global batch B on n GPUs is B / n on each. Where that is more than was
measured, it is trained in k equal parts whose gradients are accumulated: ``(k - 1) (step - sync) + step``, as in Pollux'
simulator; between measured batches times lie on a straight line; below the smallest measured one the share counts as not
measured. Batches are those of Pollux' workloads.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from ...protocol.errors import UserError
from .tables import Table

PLACEMENT_COLUMNS = ("app", "gpu", "local_bsz", "step_time", "sync_time")
BATCHES = {
    "bert": (12, 24, 48, 96, 192, 384),
    "cifar10": (128, 256, 512, 1024, 2048, 4096),
    "deepspeech2": (20, 40, 80, 160, 320, 640),
    "imagenet": (200, 400, 800, 1600, 3200, 6400, 12800),
    "ncf": (256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
    "yolov3": (8, 16, 32, 64, 128, 256, 512),
}

Times = dict[float, list[tuple[float, float]]]  # by batch on one GPU: time of a step, and of its synchronisation (s)
Measured = tuple[str, float | None, str, Mapping[int, list[float]]]


def placement_curves(table: Table) -> Iterator[Measured]:
    """Application, batch, type of GPU and iterations per second by share; the largest batch of each comes first."""
    shares, servers = _shares(table)
    times: dict[tuple[str, str], dict[int, dict[int, Times]]] = defaultdict(lambda: defaultdict(dict))
    step, sync = table.numbers("step_time").tolist(), table.numbers("sync_time").tolist()
    local = table.numbers("local_bsz", least=1).tolist()
    for row, (app, gpu) in enumerate(zip(table.texts("app"), table.texts("gpu"), strict=True)):
        if not step[row]:
            raise table.wrong(row, "step_time", "a step of 0 s")
        of_share = times[app, gpu][shares[row]].setdefault(servers[row], defaultdict(list))
        of_share[local[row]].append((step[row], sync[row]))
    for (app, gpu), by_share in times.items():
        dense = {share: by_servers[min(by_servers)] for share, by_servers in by_share.items()}
        for batch in reversed(BATCHES.get(app, ())):
            rates = {share: _rate(each, batch / share) for share, each in sorted(dense.items()) if share <= batch}
            measured = {share: [rate] for share, rate in rates.items() if rate}
            if measured:
                yield app, float(batch), gpu, measured


def _shares(table: Table) -> tuple[list[int], list[int]]:
    """GPUs and servers of each row."""
    if "placement" not in table:
        if "num_replicas" not in table or "num_nodes" not in table:
            raise UserError(f"{table.source}: line 1: neither a column placement nor num_nodes and num_replicas")
        return table.whole("num_replicas").tolist(), table.whole("num_nodes").tolist()
    texts = table.texts("placement")
    bad = next((row for row, text in enumerate(texts) if not text.isdecimal() or "0" in text), None)
    if bad is not None:
        raise table.wrong(bad, "placement", f"{texts[bad]!r} is not a digit above 0 for each server")
    return [sum(map(int, text)) for text in texts], [len(text) for text in texts]


def _rate(times: Times, local: float) -> float:
    """Iterations per second with `local` samples on each GPU; 0: not measured."""
    known = sorted(times)
    if local < known[0]:
        return 0.0
    parts = math.ceil(local / known[-1])
    step, sync = (
        float(
            np.interp(local / parts, known, [float(np.median([pair[which] for pair in times[size]])) for size in known])
        )
        for which in (0, 1)
    )
    return 1.0 / ((parts - 1) * max(step - sync, 0.0) + step)
