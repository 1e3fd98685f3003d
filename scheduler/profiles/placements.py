"""Sia's and Pollux' measurements: time of a step and of its synchronisation, by batch on one GPU and by placement.

They become strong-scaling curves for given global batches. A share has the placement on the fewest servers that was
measured, and of several such ones the median. A global batch B on n GPUs is B / n on each. If that exceeds the measured
batches, it is trained in k equal micro-batches with accumulated gradients: ``(k - 1) (step - sync) + step``, as in
Pollux' simulator. Between measured batches times lie on a straight line; below the smallest measured batch the share
counts as not measured. Batches are those of Pollux' workloads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ...protocol.errors import UserError
from ..arrays import Floats
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

_Samples = dict[float, list[tuple[float, float]]]  # by batch on one GPU: time of a step, and of its synchronisation (s)
Measured = tuple[str, float | None, str, Mapping[int, list[float]]]


@dataclass(frozen=True)
class Times:
    """Median durations of steps with one share, by batch on one GPU, in ascending order.

    All arrays have the same length.
    """

    local: Floats  # samples on each GPU
    step_s: Floats
    sync_s: Floats  # part of the step in which only the gradient all-reduce runs

    def rates(self, local: Floats) -> Floats:
        """Return the iterations per second with `local` samples on each GPU; 0: not measured."""
        parts = np.ceil(local / self.local[-1])
        step_s = np.interp(local / parts, self.local, self.step_s)
        sync_s = np.interp(local / parts, self.local, self.sync_s)
        rates = 1.0 / ((parts - 1) * np.maximum(step_s - sync_s, 0.0) + step_s)
        return np.asarray(np.where(local < self.local[0], 0.0, rates))


Placed = Mapping[tuple[str, str], Mapping[int, Times]]  # by application and type of GPU, and by share


def placement_times(table: Table) -> Placed:
    """Return the measurements of each share on the fewest servers."""
    shares, servers = _shares(table)
    times: dict[tuple[str, str], dict[int, dict[int, _Samples]]] = defaultdict(lambda: defaultdict(dict))
    step, sync = table.numbers("step_time").tolist(), table.numbers("sync_time").tolist()
    local = table.numbers("local_bsz", least=1).tolist()
    for row, (app, gpu) in enumerate(zip(table.texts("app"), table.texts("gpu"), strict=True)):
        if not step[row]:
            raise table.wrong(row, "step_time", "a step of 0 s")
        of_share = times[app, gpu][shares[row]].setdefault(servers[row], defaultdict(list))
        of_share[local[row]].append((step[row], sync[row]))
    return {
        key: {share: _medians(by_servers[min(by_servers)]) for share, by_servers in sorted(by_share.items())}
        for key, by_share in times.items()
    }


def placement_curves(placed: Placed) -> Iterator[Measured]:
    """Yield application, batch, type of GPU and iterations per second by share, the largest batch of each first."""
    for (app, gpu), by_share in placed.items():
        for batch in reversed(BATCHES.get(app, ())):
            rates = {
                share: float(times.rates(np.array(batch / share)))
                for share, times in by_share.items()
                if share <= batch
            }
            measured = {share: [rate] for share, rate in rates.items() if rate}
            if measured:
                yield app, float(batch), gpu, measured


def _shares(table: Table) -> tuple[list[int], list[int]]:
    """Return the GPUs and servers of each row."""
    if "placement" not in table:
        if "num_replicas" not in table or "num_nodes" not in table:
            raise UserError(f"{table.source}: line 1: neither a column placement nor num_nodes and num_replicas")
        return table.whole("num_replicas").tolist(), table.whole("num_nodes").tolist()
    texts = table.texts("placement")
    bad = next((row for row, text in enumerate(texts) if not text.isdecimal() or "0" in text), None)
    if bad is not None:
        raise table.wrong(bad, "placement", f"{texts[bad]!r} is not a digit above 0 for each server")
    return [sum(map(int, text)) for text in texts], [len(text) for text in texts]


def _medians(samples: _Samples) -> Times:
    local = sorted(samples)
    step_s, sync_s = (
        np.array([float(np.median([pair[at] for pair in samples[size]])) for size in local]) for at in (0, 1)
    )
    return Times(np.array(local), step_s, sync_s)
