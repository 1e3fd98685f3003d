"""Servers with other instruction sets and numbers of threads: workers compute the same bits only under `heterogeneous` (D2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from elasticd.protocol.messages import GetEvents, JobView
from elasticd.protocol.model import Determinism, JobPhase

from .conftest import Cluster

pytestmark = pytest.mark.cluster

SCRIPT = Path(__file__).with_name("train_processors.py")
BEST = "avx512" if torch.backends.cpu.get_cpu_capability() == "AVX512" else "avx2"
SERVERS = {
    "s1": {"ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "1", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "s2": {"ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "s3": {"ATEN_CPU_CAPABILITY": BEST, "OMP_NUM_THREADS": "1"},
}


class Unlike(Cluster):
    """Each server starts workers with settings that stand for another processor."""

    def write(self, name: str, /, **options: object) -> None:
        super().write(name, **options, **({"worker_environment": SERVERS[name]} if name in SERVERS else {}))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unlike]:
    options: dict[str, object] = {"measuring": {"way_down": False}}
    made = Unlike(tmp_path_factory.mktemp("unlike"), len(SERVERS), 1, "max-min", 60.0, options)
    yield made
    made.close()


def trained(cluster: Unlike, determinism: Determinism, gpus: int) -> tuple[JobView, Path]:
    """The end of a job with workers on so many servers, which compare every step, and its model."""
    path = cluster.directory / f"{determinism.value}-{gpus}.pt"
    job = cluster.submit(str(path), gpus=(gpus, gpus), script=SCRIPT, determinism=determinism, compare_every=1)
    return cluster.until_over(job), path


def test_unlike_servers_train_to_the_same_bits_only_where_algorithms_are_fixed(cluster: Unlike) -> None:
    one, alone = trained(cluster, Determinism.HETEROGENEOUS, 1)
    all_, together = trained(cluster, Determinism.HETEROGENEOUS, 3)
    assert (one.phase, all_.phase) == (JobPhase.FINISHED, JobPhase.FINISHED), (
        f"{one.reason} {all_.reason}\n{cluster.story()}"
    )
    mine, theirs = (torch.load(path, weights_only=True) for path in (alone, together))
    assert [name for name in mine if not torch.equal(mine[name], theirs[name])] == []
    told = [event.text for event in cluster.client.ask(GetEvents(job=all_.job)).events]
    assert any("determinism: heterogeneous holds: " in text for text in told), told


def test_without_it_the_comparison_of_micro_batches_finds_the_unlike_servers(cluster: Unlike) -> None:
    view, _ = trained(cluster, Determinism.ELASTIC, 3)
    assert view.phase is JobPhase.FAILED
    assert "the gradient" in view.reason, view.reason
