"""`elasticd.Cluster` with a real cluster and real workers: EDL's calls (Table 1), and what they refuse in one sentence."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import elasticd
from elasticd.protocol.errors import ClusterUnreachable, ElasticError, NotAllowed, RequestRefused, UserError
from elasticd.protocol.messages import JobView

pytestmark = pytest.mark.cluster

ELASTICCTL = str(Path(sys.executable).with_name("elasticctl"))
PATIENCE_S = 300.0
TRAIN = Path(__file__).parents[2] / "benchmarks" / "serving" / "train.py"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cluster with four GPUs, on which the job train-1 trains."""
    where = tmp_path_factory.mktemp("api")
    command = [ELASTICCTL, "--dir", str(where / "c")]
    subprocess.run([*command, "up", "--servers", "1", "--gpus", "4"], check=True, cwd=where)
    script = [sys.executable, str(TRAIN), str(where / "model.pt"), "1000000", "0.02", str(where / "stop")]
    submit = ["submit", "--name", "train", "--gpus", "1:4", "--virtual-workers", "4", "--", *script]
    subprocess.run([*command, *submit], check=True, cwd=where)
    until_s = time.monotonic() + PATIENCE_S
    with elasticd.Cluster(directory=where / "c") as found:
        while found.job("train-1").step is None:
            assert time.monotonic() < until_s, "the job does not train"
            time.sleep(0.1)
    yield where / "c"
    subprocess.run([*command, "down", "--purge", "--yes"], check=True, cwd=where)


@pytest.fixture
def cluster(directory: Path) -> Iterator[elasticd.Cluster]:
    with elasticd.Cluster(directory=directory) as found:
        yield found


def test_edl_s_calls(cluster: elasticd.Cluster) -> None:
    assert cluster.scale("train-1", 2).share_gpus == 2
    grown = cluster.scale_out("train-1", 2)
    assert (grown.share_gpus, grown.restarts) == (4, 0)
    assert cluster.scale_in("train-1").share_gpus == 3
    cluster.scale("train-1", None)
    _until_it_has(cluster, 4)
    until_s = time.monotonic() + PATIENCE_S
    while not set(curve := cluster.profile("train-1", 1, 4)) >= {1, 2, 3}:  # all sizes, not halves
        assert time.monotonic() < until_s, "a size is left out only where it takes too long on a busy machine"
    assert curve[1] < curve[2]
    file = cluster.checkpoint("train-1")
    assert Path(file).is_file()
    step = cluster.job("train-1").step
    paused = cluster.pause("train-1")
    assert (paused.workers, paused.share_gpus) == ((), 0)
    cluster.resume("train-1")
    resumed = _until_it_has(cluster, 4)
    assert resumed.step is not None
    assert step is not None
    assert resumed.step >= step


def _until_it_has(cluster: elasticd.Cluster, gpus: int) -> JobView:
    subprocess.run([ELASTICCTL, "--dir", str(cluster._context.directory), "scale", "train-1", str(gpus)], check=True)
    return cluster.scale("train-1", None)


@pytest.mark.parametrize(
    ("call", "arguments", "kind", "words"),
    [
        ("scale_out", ("train-1", 0), UserError, "at least 1"),
        ("scale_out", ("train-1", True), UserError, "at least 1"),
        ("scale_in", ("train-1", 4), UserError, "has to keep one"),
        ("scale", ("train-1", 5), UserError, "4"),
        ("profile", ("train-1", 3, 2), UserError, "cannot be measured with 3 to 2 GPUs"),
        ("profile", ("train-1", 1, 9), UserError, "1 to 9 GPUs"),
        ("checkpoint", ("none-1",), UserError, "none-1"),
        ("pause", ("none-1",), UserError, "none-1"),
        ("resume", ("none-1",), UserError, "none-1"),
        ("job", ("none-1",), UserError, "none-1"),
    ],
)
def test_bad_input_is_one_sentence(
    cluster: elasticd.Cluster, call: str, arguments: tuple[object, ...], kind: type[ElasticError], words: str
) -> None:
    with pytest.raises((kind, RequestRefused, NotAllowed)) as raised:
        getattr(cluster, call)(*arguments)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_no_cluster_is_one_sentence(tmp_path: Path) -> None:
    with elasticd.Cluster(directory=tmp_path) as cluster, pytest.raises(ClusterUnreachable, match="no cluster at"):
        cluster.job("train-1")
