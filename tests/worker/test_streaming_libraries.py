"""Sequential datasets of other libraries, where these are installed: each sample once per epoch."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch

import elasticd as elastic
from elasticd.worker.driver import LocalControl
from elasticd.worker.run import Run

SIZES = (5, 17, 9, 30, 2)


def seen_in(dataset: Any, virtual_workers: int = 4, **options: Any) -> list[list[list[int]]]:
    """The numbers that a loop of two epochs reads."""
    run = Run(LocalControl.alone(virtual_workers), None, virtual_workers, seed=3)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, elastic_optimizer, batches = run.prepare(model, optimizer, dataset, batch_size=3, **options)
    found: list[list[list[int]]] = []
    for _ in run.epochs(2):
        found.append([])
        for batch in batches:
            found[-1].append(batch["number"].tolist())
            model(torch.zeros(1)).sum().backward()
            elastic_optimizer.step()
    run.finish()
    return found


def each_once(epochs: list[list[list[int]]]) -> None:
    assert len(epochs) == 2
    for epoch in epochs:
        assert sorted(number for batch in epoch for number in batch) == list(range(sum(SIZES)))


# -- WebDataset


@pytest.fixture
def archives(tmp_path: Path) -> list[str]:
    number = 0
    for shard, size in enumerate(SIZES):
        with tarfile.open(tmp_path / f"{shard}.tar", "w") as archive:
            for _ in range(size):
                content = json.dumps({"number": number}).encode()
                member = tarfile.TarInfo(f"{number:05d}.json")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
                number += 1
    return sorted(map(str, tmp_path.glob("*.tar")))


def test_archives_of_webdataset_are_shards(archives: list[str]) -> None:
    wds = pytest.importorskip("webdataset")

    def read(path: str) -> Any:
        return wds.WebDataset(path, shardshuffle=False).decode().map(lambda sample: sample["json"])

    one = seen_in(elastic.Shards(archives, open=read))
    each_once(one)
    assert seen_in(elastic.Shards(archives, open=read), num_workers=2) == one
    ours = elastic.Shards(
        archives, open=lambda path: elastic.TarSamples(path, lambda sample: json.loads(sample["json"]))
    )
    assert seen_in(ours) == one


def test_a_pipeline_of_webdataset_that_shuffles_with_a_seed_gives_one_order(archives: list[str]) -> None:
    wds = pytest.importorskip("webdataset")

    def read(path: str) -> Any:
        return wds.WebDataset(path, shardshuffle=False).shuffle(8, seed=1).decode().map(lambda sample: sample["json"])

    one = seen_in(elastic.Shards(archives, open=read))
    each_once(one)
    assert seen_in(elastic.Shards(archives, open=read)) == one


def test_a_webdataset_divides_itself(archives: list[str]) -> None:
    wds = pytest.importorskip("webdataset")
    dataset = wds.WebDataset(archives, shardshuffle=False).decode().map(lambda sample: sample["json"])
    each_once(seen_in(dataset))


# -- Hugging Face datasets


def test_a_streamed_dataset_of_hugging_face_divides_itself_or_is_shards(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    number = 0
    for shard, size in enumerate(SIZES):
        rows = [json.dumps({"number": number + row}) for row in range(size)]
        (tmp_path / f"{shard}.jsonl").write_text("\n".join(rows) + "\n")
        number += size
    files = sorted(map(str, tmp_path.glob("*.jsonl")))
    stream = datasets.load_dataset(
        "json", data_files=files, split="train", streaming=True, cache_dir=str(tmp_path / "c")
    )
    assert stream.num_shards == len(SIZES)
    shards = elastic.Shards(
        range(stream.num_shards), open=lambda number: stream.shard(num_shards=stream.num_shards, index=number)
    )
    one = seen_in(shards)
    each_once(one)
    assert seen_in(shards, num_workers=2) == one
    each_once(seen_in(stream))
