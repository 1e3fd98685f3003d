"""The speed of a simulated job on GPUs of several types (EasyScale 3.4)."""

from __future__ import annotations

import numpy as np
import pytest

from elasticd.protocol.model import JobId, ServerId
from elasticd.scheduler.curves import Curves
from elasticd.scheduler.kinds import GpuSort
from elasticd.scheduler.view import ServerInView
from elasticd.simulator.typed import Typed
from elasticd.simulator.workload import Workload


def test_unlike_gpus_add_up_as_far_as_whole_virtual_workers_allow() -> None:
    fast, slow = GpuSort("V100"), GpuSort("T4")
    server = ServerInView(ServerId("s"), (0, 1, 2, 3), sorts=(fast, fast, slow, slow))
    alone = np.array([0.0, 1.0, 2.0, 8 / 3, 4.0])
    table = Curves(np.vstack([alone, alone / 2]), on={"V100": np.array([0]), "T4": np.array([1])})
    ones = np.ones(1, dtype=np.int64)
    workload = Workload([JobId("a")], np.zeros(1), ones, 4 * ones, 8 * ones, np.ones(1), 0 * ones, table, ("m",))
    typed, added = Typed(workload, [server]), []

    def add(row: np.ndarray[tuple[int], np.dtype[np.float64]]) -> int:
        added.append(float(row[4]))
        return 1 + len(added)

    assert (typed.curve(0, 0b0011, add), typed.curve(0, 0b1100, add)) == (0, 1)
    assert typed.curve(0, 0b1111, add) == typed.curve(0, 0b1111, add) == 2
    assert added == [pytest.approx(8 / 3)], (
        "three turns on each fast GPU, one on each slow one, which the fast ones need not wait for"
    )
