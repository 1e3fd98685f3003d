"""An agent whose clock jumps, by days or years, lives and keeps its workers; so does one whose machine seems to have slept."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).resolve().parents[2]
DAY_S = 86400
YEAR_S = 365 * DAY_S
SLOW_S = 300.0  # between a clock's two readings, on a machine that does much else


@pytest.fixture(scope="module")
def faketime() -> str:
    """The library that stands between a process and its clocks."""
    done = subprocess.run([ROOT / "scripts/need-faketime"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(done.stderr.strip())
    return done.stdout.split()[0]


class Jumping:
    """A cluster of one server, whose agent's clock can be set. steady: its monotonic clock stays as it is."""

    def __init__(self, cluster: Any, library: str, directory: Path, steady: bool) -> None:
        self.cluster, self._file = cluster, directory / "faketime"
        self.set(0)
        cluster.kill("s1")
        cluster.start(
            "s1",
            LD_PRELOAD=library,
            FAKETIME_TIMESTAMP_FILE=str(self._file),
            FAKETIME_NO_CACHE="1",
            **({"FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"} if steady else {}),
        )
        cluster.until("the agent is there again", cluster.all_there)

    def heard_s(self) -> float:
        """When the controller has heard of the agent last, by its own clock."""
        return float(self.cluster.client.servers().servers[0].last_heard_s)

    def is_off_by(self, offset_s: int) -> bool:
        """Does the controller say so?"""
        found = self.cluster.client.servers().servers[0].clock_ahead_s
        return found is not None and abs(found - offset_s) < SLOW_S

    def set(self, offset_s: int) -> None:
        """The clock is so far off from now on."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{offset_s:+d}s\n")
        fresh.replace(self._file)


@pytest.mark.parametrize(
    ("steady", "offsets_s"),
    [
        (True, (-DAY_S, -10 * YEAR_S, DAY_S, 10 * YEAR_S, 0)),
        (False, (60, DAY_S, 10 * YEAR_S)),  # a monotonic clock never goes back
    ],
    ids=["wall clock", "monotonic clock too"],
)
def test_an_agent_whose_clock_jumps_lives_and_keeps_its_workers(
    make_cluster: Callable[..., Any], tmp_path: Path, faketime: str, steady: bool, offsets_s: tuple[int, ...]
) -> None:
    cluster = make_cluster(slots=2, lease_s=30.0)
    enough = tmp_path / "enough"
    jumping = Jumping(cluster, faketime, tmp_path, steady)
    job = cluster.submit(
        str(tmp_path / "out.pt"), "--epochs", "40", "--pace", "0.05", "--enough", str(enough), gpus=(2, 2)
    )
    cluster.until_share(job, 2)
    pids = cluster.pids(job)
    for offset_s in offsets_s:
        jumping.set(offset_s)
        heard_s = jumping.heard_s()
        cluster.until(f"the agent is heard at {offset_s:+d} s", lambda: jumping.heard_s() > heard_s + 3)  # noqa: B023
        step = cluster.job(job).step or 0
        cluster.until_step(job, step + 20)
        assert cluster.processes["s1"].poll() is None, cluster.story()
        assert cluster.pids(job) == pids, f"workers were replaced at {offset_s:+d} s\n{cluster.story()}"
        view = cluster.client.servers().servers[0]
        assert (view.alive, view.state.value, view.trouble) == (True, "alive", "")
        if offset_s > 0:  # the most of a minute or two counts, so this tells at once
            cluster.until(f"the clock has really jumped to {offset_s:+d} s", lambda: jumping.is_off_by(offset_s))  # noqa: B023
    enough.touch()
    view = cluster.until_final(job)
    assert view.restarts == 0
