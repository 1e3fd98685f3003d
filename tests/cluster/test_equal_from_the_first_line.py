"""What scripts draw before they join is equal on all servers; where data differ all the same, the newcomer is told so by name."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elasticd.protocol import exits

SCRIPT = Path(__file__).with_name("train_unequal.py")
MakeCluster = Callable[..., Any]

pytestmark = pytest.mark.cluster


def submit(cluster: Any, kind: str, out: Path) -> str:
    out.mkdir()
    job: str = cluster.submit(kind, str(out), gpus=(2, 2), virtual_workers=2, script=SCRIPT)
    return job


@pytest.mark.parametrize("kind", ["shuffled", "split"])
def test_what_is_drawn_before_the_script_joins_is_the_same_on_all_servers(
    make_cluster: MakeCluster, tmp_path: Path, kind: str
) -> None:
    """A shuffled list, a split dataset, class numbers and the order of modules from a set, weights: in executed and forked
    processes, with every sample used once an epoch."""
    cluster = make_cluster(servers=2, slots=1)
    cluster.until_final(submit(cluster, kind, tmp_path / "out"))
    drawn = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("drawn.*")]
    assert len(drawn) == 2
    assert drawn[0] == drawn[1]
    assert drawn[0]["names"] != sorted(drawn[0]["names"])
    used = Counter(line for path in (tmp_path / "out").glob("used.*") for line in path.read_text().splitlines())
    once = Counter(line.rpartition(" ")[0] for line in used)
    assert once == Counter(f"{epoch} {name}" for epoch in range(2) for name in drawn[0]["names"])
    again = Counter(line.rpartition(" ")[2] for line, count in used.items() if count > 1)
    assert set(again.values()) <= {2}, "but for the micro-batch of a cross-check no sample is used again"
    assert len(again) < 8
    cluster.until_final(submit(cluster, kind, tmp_path / "other"))
    other = json.loads(next((tmp_path / "other").glob("drawn.*")).read_text())
    assert other["names"] != drawn[0]["names"]  # each job has a seed of its own
    assert (other["labels"], other["layers"]) == (drawn[0]["labels"], drawn[0]["layers"])


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("reversed", "Its 'files': entry 0 is 'image-00.png' there and 'image-31.png' here"),
        ("evaluated", "of the dataset given to run.evaluate() differs between"),
    ],
)
def test_a_worker_with_other_data_ends_and_names_the_sample(
    make_cluster: MakeCluster, tmp_path: Path, kind: str, said: str
) -> None:
    cluster = make_cluster(servers=2, slots=1)
    job = submit(cluster, kind, tmp_path / "out")

    def unlike() -> list[Any]:
        return [each for each in cluster.job(job).past_workers if each.exit_code == exits.UNLIKE]

    ends = cluster.until("a worker ends since its data differ", unlike)
    assert said in ends[0].reason
    assert int(ends[0].worker.rpartition(".")[2]) % 2 == 1


def test_a_job_that_begins_again_compares_its_data_with_those_of_its_checkpoint(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(servers=2, slots=1)
    (out := tmp_path / "out").mkdir()
    job = cluster.submit("reversed", str(out), "--slowly", gpus=(1, 1), virtual_workers=2, script=SCRIPT,
                         checkpoint_every_s=0.5)  # fmt: skip
    cluster.until("there is a checkpoint", lambda: list((tmp_path / "checkpoints").glob(f"{job}*/*.pt")))
    (pid,) = cluster.pids(job).values()
    os.kill(pid, signal.SIGKILL)

    def unlike() -> list[Any]:
        return [each for each in cluster.job(job).past_workers if each.exit_code == exits.UNLIKE]

    (end,) = cluster.until("a worker ends since its data differ", unlike)
    assert end.worker == f"{job}.1"
    assert f"between {job}.0 on 127.0.0.1 and {job}.1 on 127.0.0.1" in end.reason
