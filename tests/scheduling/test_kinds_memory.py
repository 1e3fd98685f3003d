"""GPUs with unknown memory."""

from __future__ import annotations

from elasticd.scheduler.kinds import Demand, GpuSort, Stock, never_fits


def test_a_job_that_asks_for_memory_is_told_that_the_gpus_do_not_tell_theirs() -> None:
    servers = [Stock.of([GpuSort("NVIDIA GB10", 0)])]
    text = "a job that asks for memory needs GPUs that tell how much they have; NVIDIA GB10 does not"
    assert never_fits(Demand(memory_bytes=1 << 30), 1, servers) == text
    assert never_fits(Demand(), 1, servers) == ""
