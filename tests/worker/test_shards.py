"""Shards in a script, and how they are read: each sample once, from any position, on any worker."""

from __future__ import annotations

import gzip
import io
import json
import multiprocessing
import multiprocessing.process
import random
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

import elasticd as elastic
from elasticd.protocol.errors import UserError
from elasticd.worker.data.choice import Job, feed_of
from elasticd.worker.data.dataloader import Wanted
from elasticd.worker.data.loading import LoaderOptions
from elasticd.worker.data.partitions import Partition, Piece
from elasticd.worker.data.reading import Mark, Reading, ShardReader, StreamRequest
from elasticd.worker.data.shards import divided
from elasticd.worker.data.streams import MARK_STEPS, Streams
from elasticd.worker.driver import LocalControl
from elasticd.worker.inband import Part
from elasticd.worker.run import Run


def alone(virtual_workers: int) -> Run:
    return Run(LocalControl.alone(virtual_workers), None, virtual_workers, seed=3)


def batches_of(dataset: Any, virtual_workers: int = 4, epochs: int = 1, **options: Any) -> list[list[Any]]:
    """The numbers that a loop reads, by epoch."""
    run = alone(virtual_workers)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"batch_size": 3, **options}
    model, elastic_optimizer, batches = run.prepare(model, optimizer, dataset, **options)
    found: list[list[Any]] = []
    for _ in run.epochs(epochs):
        found.append([])
        for batch in batches:
            found[-1].append(batch.tolist() if isinstance(batch, torch.Tensor) else batch)
            model(torch.zeros(1)).sum().backward()
            elastic_optimizer.step()
    run.finish()
    return found


def flat(batches: list[Any]) -> list[Any]:
    return [sample for batch in batches for sample in batch]


def request(virtual_worker: int = 0, first: int = 0, **options: Any) -> StreamRequest:
    known: dict[str, Any] = {
        "number": 1,
        "epoch": 0,
        "part": Partition(0, first),
        "waiting": (),
        "pieces": None,
        "size": 4,
        "seed": 3,
        **options,
    }
    return StreamRequest(virtual_worker=virtual_worker, **known)


# -- the loop


def test_a_loop_over_shards_sees_each_sample_once_an_epoch_in_another_order_each_time() -> None:
    shards = elastic.Shards([range(10), range(10, 13), range(13, 50), ()], open=iter)
    first, second = batches_of(shards, epochs=2)
    assert sorted(flat(first)) == sorted(flat(second)) == list(range(50))
    assert first != second
    assert batches_of(shards, epochs=2) == [first, second]


def test_without_shuffling_one_virtual_worker_sees_shards_as_they_are() -> None:
    shards = elastic.Shards([range(10), range(10, 13), range(13, 20)], open=iter)
    (seen,) = batches_of(shards, virtual_workers=1, shuffle=False)
    assert flat(seen) == list(range(20))


def test_a_job_may_end_in_the_middle_of_an_epoch_and_other_shards_are_not_opened() -> None:
    opened: list[int] = []

    def read(shard: int) -> Iterator[int]:
        opened.append(shard)
        yield from range(100)

    run = alone(2)
    model = torch.nn.Linear(1, 1)
    model, optimizer, batches = run.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), elastic.Shards(range(50), open=read), batch_size=5
    )
    for _ in run.epochs(1):
        for number, _ in enumerate(batches):
            model(torch.zeros(1)).sum().backward()
            optimizer.step()
            if number == 7:
                break
        break
    assert len(opened) == 2


def feed(dataset: Any, updates: int = 1) -> Streams:
    found = feed_of(dataset, Wanted(3), LoaderOptions(), Job(4, 3, torch.device("cpu"), updates)).batching
    assert isinstance(found, Streams)
    return found


def trains(streams: Streams, epochs: int, step: int = 0, end: int | None = None) -> list[list[list[int]]]:
    """The batches of each step, where one worker hosts all."""
    streams.total_steps(epochs)
    streams.assign(step, range(4), end)
    found = []
    while streams.next_epoch < epochs and step != end:
        streams.begin(step)
        found.append([streams.batch(step, v).tolist() for v in range(4) if streams.has_samples(step, v)])
        part = Part(step, (0, 1, 2, 3))
        if streams.wants(part):
            streams.read(part, [streams.payload(part)])
        streams.applied(step)
        step += 1
    return found


def test_several_updates_are_made_from_each_batch() -> None:
    shards = elastic.Shards([range(10), range(10, 13), range(13, 31)], open=iter)
    once, twice = trains(feed(shards), 1), trains(feed(shards, updates=2), 1)
    assert twice == [batches for batches in once for _ in range(2)]


@pytest.mark.parametrize("divides_itself", [False, True])
def test_a_job_that_has_ended_can_be_given_more_epochs_or_steps(divides_itself: bool) -> None:
    dataset = Counting() if divides_itself else elastic.Shards([range(10), range(10, 13), range(13, 41)], open=iter)
    whole = trains(feed(dataset), 3)
    for epochs, end in ((1, None), (2, None), (3, 2), (3, 5)):
        first, second = feed(dataset), feed(dataset)
        begun = trains(first, epochs, end=end)
        assert 0 < len(begun) < len(whole)
        second.load(first.state())
        assert begun + trains(second, 3, step=len(begun)) == whole


def test_what_is_random_depends_on_the_sample_alone() -> None:
    def shuffled(shard: int) -> Iterator[float]:
        """A pipeline with a buffer that is shuffled by the global generator."""
        buffer: list[int] = []
        for sample in range(100 * shard, 100 * shard + 30):
            buffer.append(sample)
            if len(buffer) > 8:
                yield buffer.pop(random.randrange(len(buffer))) + random.random() / 2
        yield from map(float, buffer)

    shards = elastic.Shards(range(5), open=shuffled)
    (one,) = batches_of(shards)
    random.random()
    assert batches_of(shards) == [one]
    assert batches_of(shards, num_workers=2) == [one]
    assert sorted(map(int, flat(one))) == [100 * shard + i for shard in range(5) for i in range(30)]


def test_a_custom_collate_function_gets_the_samples() -> None:
    (seen,) = batches_of(elastic.Shards([range(7)], open=iter), virtual_workers=2, collate_fn=sum, batch_size=2)
    assert sum(seen) == sum(range(7))


# -- PyTorch's iterable datasets


class Counting(IterableDataset[int]):
    """Divides its data as in PyTorch's manual."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        yield from range(info.id, 41, info.num_workers)


class Undivided(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(11)


def test_each_virtual_worker_is_one_worker_of_an_iterable_dataset() -> None:
    (seen,) = batches_of(Counting(), batch_size=2)
    assert seen[:4] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert sorted(flat(seen)) == list(range(41))
    assert get_worker_info() is None


def test_an_iterable_dataset_that_does_not_divide_itself_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"the IterableDataset Undivided does not look at .*get_worker_info"):
        batches_of(Undivided())
    (seen,) = batches_of(Undivided(), virtual_workers=1)
    assert flat(seen) == list(range(11))
    (seen,) = batches_of(elastic.Shards([Undivided()], open=iter))
    assert sorted(flat(seen)) == list(range(11))


def test_an_iterable_dataset_that_holds_a_file_is_refused_by_name(tmp_path: Path) -> None:
    class Holding(Counting):
        def __init__(self) -> None:
            self.file = (tmp_path / "a").open("w")

    with pytest.raises(UserError, match=r"the IterableDataset Holding cannot be copied.*in its __iter__"):
        batches_of(Holding())


def test_what_an_iterable_dataset_notes_of_its_iteration_is_each_virtual_workers_own() -> None:
    class Noting(Counting):
        at = 0

        def __iter__(self) -> Iterator[int]:
            for sample in super().__iter__():
                self.at += 1
                yield 1000 * self.at + sample

    parts = divided(Noting(), 3)
    iterators = [iter(parts.open(number)) for number in range(3)]
    assert [next(each) for each in (*iterators, *iterators)] == [1000, 1001, 1002, 2003, 2004, 2005]


# -- one reader


class Numbers:
    """Samples that report their position. Counts the readings."""

    def __init__(self, length: int) -> None:
        self.length, self.at, self.pulled = length, 0, 0

    def __iter__(self) -> Iterator[int]:
        while self.at < self.length:
            self.at += 1
            self.pulled += 1
            yield self.at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def reader_of(length: int, opened: list[Numbers]) -> ShardReader:
    def read(shard: int) -> Numbers:
        opened.append(Numbers(length))
        return opened[-1]

    return ShardReader(elastic.Shards([0], open=read), collate=list, keeps=True)


def test_a_reader_goes_on_where_it_stands_and_keeps_the_last_batches() -> None:
    opened: list[Numbers] = []
    reader = reader_of(30, opened)
    assert [reader.read(request(first=first)).batch for first in (0, 4, 8)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
    ]
    assert reader.read(request(first=4)).batch == [4, 5, 6, 7]
    assert (len(opened), opened[0].pulled) == (1, 12)
    assert reader.read(request(part=Partition(0, 13, 4), size=9)) == Reading(
        0, (Piece(Partition(0, 13, 4), 5),), [13, 17, 21, 25, 29], {0: 30}
    )
    assert len(opened) == 1


def test_whoever_takes_a_shard_over_begins_at_its_mark() -> None:
    opened: list[Numbers] = []
    reader = reader_of(1000, opened)
    reader.read(request(first=496))
    mark = reader.read(request(first=500, wants_mark=True)).mark
    assert mark == Mark(0, 0, 500, {"at": 500})
    other = reader_of(1000, opened)
    assert other.read(request(first=506, marks=(mark,))).batch == [506, 507, 508, 509]
    assert opened[-1].pulled == 10
    assert other.read(request(virtual_worker=1, first=400, marks=(mark,))).batch == [400, 401, 402, 403]
    assert opened[-1].pulled == 404, "a mark behind what is wanted is of no use"
    assert other.read(request(virtual_worker=2, first=506, epoch=1, marks=(mark,))).batch[0] == 506
    assert opened[-1].pulled == 510, "one of another epoch neither"


def test_a_shard_that_is_shorter_than_before_is_named() -> None:
    with pytest.raises(UserError, match="shard 0 ended after 3 samples, and had more"):
        reader_of(3, []).read(request(pieces=(Piece(Partition(0), 4),)))


def test_a_shard_that_becomes_longer_is_named() -> None:
    lengths = iter([6, 9])
    with pytest.raises(UserError, match="shard 0 has more samples than when it was read before"):
        batches_of(
            elastic.Shards([0], open=lambda shard: range(next(lengths))), virtual_workers=1, epochs=2, batch_size=4
        )


# -- marks in a job


def test_marks_travel_with_the_state() -> None:
    run = alone(2)
    model = torch.nn.Linear(1, 1)
    shards = elastic.Shards([0, 1], open=lambda shard: Numbers(10 * MARK_STEPS))
    model, optimizer, batches = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), shards, batch_size=2)
    states: list[Any] = []
    for _ in run.epochs(1):
        for _ in batches:
            model(torch.zeros(1)).sum().backward()
            optimizer.step()
            assert run._trainer is not None
            states.append(run._trainer.held.header({})["data"]["marks"])
    assert states[0] == []
    epoch_shard_at = [mark["list"][:3] for mark in states[2 * MARK_STEPS]]
    assert sorted(epoch_shard_at) == [[0, 0, 2 * MARK_STEPS], [0, 1, 2 * MARK_STEPS]]


# -- files


def test_parts_of_a_text_file_give_each_line_once(tmp_path: Path) -> None:
    chance = random.Random(1)
    lines = ["é" * chance.randint(0, 30) for _ in range(100)]
    path = tmp_path / "lines.txt"
    for end in ("", "\n"):
        path.write_text("\n".join(lines) + end)
        for parts in (1, 2, 7, 60):
            found = [list(elastic.Lines(path, part=part, parts=parts)) for part in range(parts)]
            assert flat(found) == lines, (parts, end)


@pytest.mark.parametrize("kind", ["text", "gzip", "tar"])
def test_a_file_can_be_opened_at_each_sample(kind: str, tmp_path: Path) -> None:
    rows = [{"number": number, "text": "x" * (number % 7)} for number in range(40)]
    path = tmp_path / {"text": "rows.jsonl", "gzip": "rows.jsonl.gz", "tar": "rows.tar"}[kind]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if kind == "text":
        path.write_text(text)
    elif kind == "gzip":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        write_tar(path, rows)

    def opened() -> Any:
        if kind == "tar":
            return elastic.TarSamples(path, decode=lambda sample: json.loads(sample["json"]))
        return elastic.Lines(path, parse=json.loads)

    source = opened()
    states = []
    for number, row in enumerate(source):
        assert row == rows[number]
        states.append(source.state_dict())
    assert len(states) == len(rows)
    for number, state in enumerate(states):
        other = opened()
        other.load_state_dict(state)
        assert list(other) == rows[number + 1 :]


def write_tar(path: Path, rows: list[dict[str, Any]]) -> None:
    """Samples of two files each, in a folder with a name longer than a tar header's field."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for number, row in enumerate(rows):
            for extension, content in (("json", json.dumps(row)), ("label.txt", str(number))):
                member = tarfile.TarInfo(f"{'long/' * 60}{number:04d}.{extension}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content.encode()))


def test_a_tar_sample_has_its_files_by_extension(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [{"a": 1}])
    (sample,) = elastic.TarSamples(tmp_path / "a.tar")
    assert sample == {"__key__": "long/" * 60 + "0000", "json": b'{"a": 1}', "label.txt": b"0"}


# -- refusals


def test_wrong_shards_get_the_right_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did a pattern match no file"):
        elastic.Shards([], open=iter)
    with pytest.raises(UserError, match="cannot be called"):
        elastic.Shards(["a"], open="b")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"open\('a'\) returned a NoneType"):
        batches_of(elastic.Shards(["a"], open=lambda shard: None))  # type: ignore[arg-type,return-value]
    with pytest.raises(UserError, match="drop_last=True"):
        batches_of(Counting(), drop_last=True)
    with pytest.raises(UserError, match="none of the 2 shards has a sample"):
        batches_of(elastic.Shards([(), ()], open=iter))
    with pytest.raises(UserError, match="batch_size is 0"):
        batches_of(Counting(), batch_size=0)
    with pytest.raises(UserError, match="num_workers is -1"):
        batches_of(Counting(), num_workers=-1)
    with pytest.raises(UserError, match="there is no part 3 of 3"):
        elastic.Lines(tmp_path / "a", part=3, parts=3)
    with pytest.raises(UserError, match="cannot be divided by bytes"):
        elastic.Lines(tmp_path / "a.gz", part=1, parts=3)


def test_reading_processes_are_begun_by_the_scripts_own_function(tmp_path: Path) -> None:
    batches_of(
        elastic.Shards([range(9), range(9)], open=iter),
        num_workers=2,
        worker_init_fn=lambda number: (tmp_path / str(number)).touch(),
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_an_error_of_a_reading_process_is_that_of_the_script() -> None:
    def read(shard: int) -> Iterator[int]:
        yield 1
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        batches_of(elastic.Shards([0], open=read), num_workers=1)


def reading_processes_end(but: Collection[multiprocessing.process.BaseProcess] = ()) -> None:
    for process in set(multiprocessing.active_children()).difference(but):
        until = time.monotonic() + 300.0
        while (
            process.exitcode is None and time.monotonic() < until
        ):  # `join` returns nothing where another thread has waited for the process
            process.join(0.1)
        assert process.exitcode is not None, "a reading process has outlived its training"


@pytest.mark.parametrize("data", [elastic.Shards([range(90)] * 4, open=iter), list(range(200))])
@pytest.mark.parametrize("wants", [2, 40], ids=["left early", "to its end"])
def test_reading_processes_end_with_the_training_and_not_with_the_script(data: Any, wants: int) -> None:
    others = multiprocessing.active_children()  # of an earlier test whose error pytest still holds, with its frames
    run = alone(2)
    model = torch.nn.Linear(1, 1)
    model, optimizer, batches = run.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), data, batch_size=5, num_workers=2
    )
    for _ in run.epochs(1):
        for _ in batches:
            if run.steps_done == wants:
                break
            model(torch.zeros(1)).sum().backward()
            optimizer.step()
        if run.steps_done == wants:
            break
    if wants == 2:
        assert set(multiprocessing.active_children()).difference(others)
    run.finish()
    reading_processes_end(others)


def test_a_reading_process_that_hangs_does_not_outlive_the_training() -> None:
    def read(shard: int) -> Iterator[int]:
        yield from range(12)
        threading.Event().wait()

    others = multiprocessing.active_children()
    run = alone(1)
    model = torch.nn.Linear(1, 1)
    model, optimizer, batches = run.prepare(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        elastic.Shards([0], open=read),
        batch_size=5,
        num_workers=1,
    )
    run.begin(1, max_steps=50)
    for _ in batches:
        if run.steps_done == 1:
            break
        model(torch.zeros(1)).sum().backward()
        optimizer.step()
    run.finish()
    reading_processes_end(others)


def test_an_error_in_the_loop_ends_the_reading_processes() -> None:
    def fails() -> None:
        run = alone(2)
        model = torch.nn.Linear(1, 1)
        model, _, batches = run.prepare(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            elastic.Shards([range(90)] * 4, open=iter),
            batch_size=5,
            num_workers=2,
        )
        for _ in run.epochs(1):
            for _ in batches:
                raise KeyError("a")

    others = multiprocessing.active_children()
    with pytest.raises(KeyError):
        fails()
    reading_processes_end(others)


def test_samples_are_counted_by_the_epoch_that_they_belong_to() -> None:
    seen = batches_of(elastic.Shards([range(9), range(9, 30)], open=iter), virtual_workers=3, epochs=3)
    assert [Counter(flat(epoch)) for epoch in seen] == [Counter(range(30))] * 3
