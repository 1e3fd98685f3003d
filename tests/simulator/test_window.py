"""A simulation's window of columns: jobs are in the order of submission, in whatever order they end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticd.protocol.model import JobId
from elasticd.scheduler.curves import Curves
from elasticd.simulator.jobs import Jobs
from elasticd.simulator.workload import Workload

COUNT = 12


def jobs() -> Jobs:
    number = np.arange(COUNT)
    return Jobs(
        Workload(
            names=[JobId(f"j{one}") for one in range(COUNT)],
            submit_s=number * 1.0,
            min_gpus=np.ones(COUNT, dtype=np.int64),
            max_gpus=number + 1,
            requested_gpus=number + 1,
            work_s=1000.0 + number,
            curve=np.zeros(COUNT, dtype=np.int64),
            curves=Curves(np.arange(COUNT + 2.0)[None, :]),
            models=("any",),
        ),
        COUNT,
    )


@given(st.data())
def test_each_job_keeps_what_is_its_own_whoever_comes_and_ends(data: st.DataObject) -> None:
    window = jobs()
    present: list[int] = []
    running: dict[int, int] = {}  # by number: GPUs
    left_s, executed_s = 1000.0 + np.arange(COUNT), np.zeros(COUNT)
    for _ in range(data.draw(st.integers(1, 30))):
        what = data.draw(st.sampled_from(["come", "end", "give", "work"]))
        if what == "come" and window.next < COUNT:
            present.append(window.next)
            window.came()
        elif what == "end" and present:
            over = sorted(data.draw(st.sets(st.sampled_from(present), min_size=1, max_size=3)))
            window.remove(window.places(over))
            for number in over:
                present.remove(number)
                running.pop(number, None)
                assert window.executed_s[number] == executed_s[number]
        elif what == "give" and present:
            number = data.draw(st.sampled_from(present))
            had, running[number] = running.get(number, 0), data.draw(st.integers(0, 3))
            place, shares = window.places(np.array([number])), np.array([running[number]])
            starts = not had and running[number] > 0
            window.give(place, shares, new=place if starts else place[:0], stops=had > 0 and not running[number])
            running = {number: share for number, share in sorted(running.items()) if share}
        elif what == "work" and running:
            rates = np.array([float(share) for share in running.values()])
            window.work(rates, 1.5, 2.0)
            left_s[list(running)] -= rates * 1.5
            executed_s[list(running)] += 2.0
        columns, at = window.seen(), window.window
        assert window.present.tolist() == present
        assert window.run.tolist() == list(running)
        assert columns.share[at].tolist() == [running.get(number, 0) for number in present]
        assert columns.requested_gpus[at].tolist() == [number + 1 for number in present]
        assert columns.submitted_s[at].tolist() == present
        assert columns.left_s[at] == pytest.approx(left_s[present])
        assert columns.done_s[at] == pytest.approx(1000.0 + np.array(present) - left_s[present])
        assert columns.executed_s[at] == pytest.approx(executed_s[present])
