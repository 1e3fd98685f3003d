"""Values that a script keeps are found by name; others are not named."""

from __future__ import annotations

import collections
import contextlib
import copy
import fcntl
import gc
import io
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest
import torch
from torch import nn

from elasticd.protocol.errors import PeerError
from elasticd.worker.kept import Kind, Reach, differences
from elasticd.worker.value_kinds import leave_out
from elasticd.worker.variables.frames import names_bound
from elasticd.worker.variables.local_names import LocalNames
from elasticd.worker.variables.reachable import Limits, look
from tests.worker import reach_cases
from tests.worker.reach_cases import CACHES, KEPT, NAMESAKES, ORDINARY, PAIRED

ROOT = Path(__file__).parents[2]
Answers = dict[str, Any]


@pytest.fixture(scope="session")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Answers, Answers]:
    """Results of two processes with different hash seeds for all scripts, made once for all processes of a run of the tests."""
    own = tmp_path_factory.getbasetemp()
    results = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "seen.json"
    with results.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not results.exists():
            results.write_text(json.dumps(_look_at_all()))
    one, other = json.loads(results.read_text())
    return one, other


def _look_at_all() -> list[Answers]:
    texts = json.dumps({**ORDINARY, **{name: text for name, (text, _) in KEPT.items()}})
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", reach_cases.__name__],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")
    ]
    outs = [process.communicate(texts)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    return [json.loads(out) for out in outs]


@pytest.mark.parametrize("name", ORDINARY)
def test_a_script_that_keeps_nothing_has_no_names_that_differ(seen: tuple[Answers, Answers], name: str) -> None:
    """Neither between two workers after the same bodies, nor between one after some bodies and one before the first."""
    one, other = (each[name] for each in seen)
    found = differences(Reach.of(one["now"]), Reach.of(other["now"]))
    assert [each.name for each in found if each.changed] == []
    found = differences(Reach.of(one["now"]), Reach.of(other["begun"]))
    assert [each.name for each in found if each.changed] == []
    assert one["now"][2] is None


def test_a_generator_around_the_batches_is_named_where_no_value_differs(seen: tuple[Answers, Answers]) -> None:
    told = seen[0][PAIRED]["all"]
    assert told.startswith("paired.first (script.py:17) may follow from the batches that this worker has read: ")
    assert "each worker's paired() has its own" in told


@pytest.mark.parametrize("name", CACHES)
def test_a_cache_is_named_where_nothing_else_explains_other_gradients(seen: tuple[Answers, Answers], name: str) -> None:
    told = seen[0][name]["told"]
    assert set(told) == {"mask", "offset"}
    assert all("must follow from the arguments alone" in each for each in told.values())


@pytest.mark.parametrize("name", KEPT)
def test_what_a_script_keeps_differs_by_name_with_the_line_to_write(seen: tuple[Answers, Answers], name: str) -> None:
    one, other = (each[name] for each in seen)
    expected = KEPT[name][1]
    found = differences(Reach.of(one["now"]), Reach.of(other["begun"]))
    assert {each.name for each in found if each.changed} == set(expected)
    for each, words in expected.items():
        assert words in one["told"][each]
    first = [one["told"][each.name] for each in found if each.changed][:3]
    together = one["all"].replace("schedule_number=", "number=")  # a second value of one name gets a longer one
    assert together == "; ".join([*first, *([f"and {len(expected) - 3} more"] if len(expected) > 3 else [])])


def test_a_function_s_variable_is_not_taken_for_another_function_s_of_the_same_name(
    seen: tuple[Answers, Answers],
) -> None:
    assert seen[0][NAMESAKES]["carried"] == ["gate.count", "schedule.number"]


def test_times_at_which_processes_began_differ_from_the_beginning_and_are_told_as_such(
    seen: tuple[Answers, Answers],
) -> None:
    one, other = (each["configuration, logs and times"] for each in seen)
    found = differences(Reach.of(one["now"]), Reach.of(other["now"]))
    assert [(each.name, each.changed) for each in found] == [("start", False)]


# -- in this process: `of` inspects its own variables


DEFAULT = Limits(seconds=60.0)  # generous for a loaded machine


def of(limits: Limits = DEFAULT, known: Any = (), beside: Any = None, **values: Any) -> Reach:
    """The values of a function with these variables."""
    namespace: dict[str, Any] = {"values": values, "result": None, "__name__": __name__}
    lines = [f"    {name} = values[{name!r}]" for name in values]
    code = "def script(see, values):\n" + "\n".join([*lines, "    return see()"])
    exec(compile(code, "script.py", "exec"), namespace)

    def see() -> Reach:
        frame = sys._getframe(1)
        return look(frame, frozenset(values), known, limits, beside=beside)

    with (
        tempfile.TemporaryDirectory() as elsewhere,
        contextlib.chdir(elsewhere),
    ):  # these tests are not part of the script
        seen_: Reach = namespace["script"](see, values)
    return seen_


def digest(value: Any) -> int | None:
    return of(value=value).names["value"].digest


def names(one: Reach, other: Reach) -> list[str]:
    return [each.name for each in differences(one, other)]


DIFFERENT = [
    (0, 0.0),
    (0.0, -0.0),
    (1, True),
    ("1", 1),
    (b"a", "a"),
    ([1, 2], (1, 2)),
    ([1, 2], [2, 1]),
    ([[1], [2]], [[1, 2], []]),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({1: 2}, {2: 1}),
    ({1, 2}, {1, 3}),
    (collections.deque([1], 2), collections.deque([1], 3)),
    (torch.zeros(2), torch.zeros(2, 1)),
    (torch.zeros(2), torch.zeros(2, dtype=torch.int32)),
    (torch.tensor(0.0), torch.tensor(-0.0)),
    (torch.zeros(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16)),
    (torch.tensor([1 + 2j]).conj(), torch.tensor([1 + 2j])),
    (numpy.zeros(2), numpy.zeros(2, numpy.float32)),
    (numpy.float32(1), numpy.float32(2)),
    (numpy.array([None, [1]], object), numpy.array([None, [2]], object)),
    (bytearray(b"ab"), bytearray(b"ac")),
    (2**100, 2**100 + 1),
    ("x" * (3 << 20), "x" * (3 << 20) + "y"),
    (list(range(100_000)), [*range(99_999), 0]),
    ([[each] for each in range(10_000)], [*([each] for each in range(9_999)), [0]]),
    (nn.Linear(2, 2), nn.Linear(2, 2)),
    (itertools.islice([1, 2, 3], 1), itertools.islice([1, 2, 3], 2)),
    (iter({1, 2}), iter({1})),
    (range(3), range(4)),
]
EQUAL = [
    (torch.zeros(2, 3).t(), torch.zeros(3, 2)),
    (torch.ones(2, requires_grad=True) * 2, torch.full((2,), 2.0)),
    (float("nan"), float("nan")),
    ({"a", "b", "c"}, {"c", "b", "a"}),
    (torch.device("cuda", 0), torch.device("cuda", 1)),
    (threading.Lock(), threading.Lock()),
    (torch.empty(2, device="meta"), torch.empty(2, device="meta")),
    (lambda: 1, lambda: 1),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_values_have_different_digests(one: Any, other: Any) -> None:
    assert digest(one) is not None
    assert digest(one) != digest(other)
    if "iterator" not in type(one).__name__:
        assert digest(one) == digest(copy.deepcopy(one))


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_equal_values_have_equal_digests(one: Any, other: Any) -> None:
    assert names(of(value=[one]), of(value=[other])) == []
    assert digest([one]) is not None


def test_the_most_specific_name_is_told_and_a_container_in_place_of_many_items() -> None:
    def stories(count: int, steps: float, item: float) -> dict[str, Any]:
        return {
            "nested": {"inner": {"count": count, "same": 1}},
            "many": [torch.full((2,), item), torch.full((2,), item)],
            "one": [torch.zeros(2), torch.full((2,), item)],
            "pair": (count, steps),
        }

    found = names(of(**stories(1, 1.0, 1.0)), of(**stories(2, 2.0, 2.0)))
    assert found == ["nested['inner']['count']", "many", "pair", "one[1]"]


def test_only_names_that_both_have_are_compared() -> None:
    assert names(of(both=1, one=1), of(both=2, other=1)) == ["both"]


def test_an_attribute_that_only_one_has_is_told() -> None:
    class Holder:
        pass

    one, other = Holder(), Holder()
    one.here = other.here = 0  # type: ignore[attr-defined]
    one.added = 1  # type: ignore[attr-defined]
    (found,) = differences(of(holder=one), of(holder=other))
    assert (found.name, found.others, found.owners) == ("holder.added", None, ("Holder",))


def test_a_value_with_two_names_is_told_once() -> None:
    rng, other = torch.Generator(), torch.Generator().manual_seed(9)
    assert names(of(rng=rng, again=[rng], third=rng), of(rng=other, again=[other], third=other)) == ["rng"]


def test_the_other_names_of_a_value_and_of_what_contains_it_are_known() -> None:
    class Rows(torch.utils.data.Dataset[Any]):
        def __init__(self, labels: Any) -> None:
            self.labels = labels

    class Tracker:
        def __init__(self, stats: dict[str, int]) -> None:
            self.stats = stats

    def script(value: int) -> Reach:
        labels, stats = torch.tensor([0, value]), {"seen": value, "same": 1}
        return of(beside={"dataset": Rows(labels)}, labels=labels, stats=stats, tracker=Tracker(stats))

    found = {each.name: each for each in differences(script(1), script(2))}
    assert found.keys() == {"labels", "stats['seen']"}
    (rows,) = found["labels"].also
    assert (rows.name, rows.owners, rows.in_data) == ("dataset.labels", ("Rows",), True)
    (tracked,) = found["stats['seen']"].also
    assert (tracked.name, tracked.owners) == ("tracker.stats['seen']", ("Tracker", "dict"))


def test_what_the_job_carries_is_left_out_but_not_what_a_class_of_the_script_keeps_beside() -> None:
    class Net(nn.Linear):
        calls = 0

    def job(calls: int, weight: float) -> Reach:
        model = Net(2, 2)
        model.calls = calls
        nn.init.constant_(model.weight, weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=weight)
        parameters = list(model.parameters())
        return of(known=leave_out([model, optimizer]), model=model, optimizer=optimizer, parameters=parameters)

    assert names(job(0, 1.0), job(0, 2.0)) == []
    assert names(job(0, 1.0), job(1, 2.0)) == ["model.calls"]


def test_the_data_set_is_looked_at_beside_the_variables() -> None:
    class Rows(torch.utils.data.Dataset[Any]):
        def __init__(self, difficulty: int) -> None:
            self.rows = torch.zeros(1000, 1000)
            self.difficulty = difficulty

    (found,) = differences(of(beside={"dataset": Rows(1)}), of(beside={"dataset": Rows(2)}))
    assert found.name == "dataset.difficulty"
    assert found.in_data
    loader, other = (torch.utils.data.DataLoader(Rows(difficulty), batch_size=10) for difficulty in (3, 4))
    assert names(of(loader=loader), of(loader=other)) == ["loader.dataset.difficulty"]


def test_how_far_an_iterator_of_a_loader_has_come_is_seen() -> None:
    def source(read: int) -> Any:
        iterator = iter(torch.utils.data.DataLoader(torch.arange(10), batch_size=2))  # type: ignore[arg-type]
        for _ in range(read):
            next(iterator)
        return iterator

    assert names(of(source=source(1)), of(source=source(1))) == []
    assert names(of(source=source(1)), of(source=source(2))) == ["source._num_yielded"]


def test_looking_takes_nothing_from_an_iterator() -> None:
    sources = [iter([1, 2]), itertools.cycle("ab"), zip([1], [2], strict=True), iter({1: 2}.items()), map(str, [1])]
    of(**{f"source{number}": each for number, each in enumerate(sources)})
    assert [next(each) for each in sources] == [1, "a", (1, 2), (1, 2), "1"]


def test_a_value_that_was_cut_off_differs_from_none() -> None:
    chain: Any = None
    for _ in range(100):
        chain = {"next": chain}
    cut = of(chain=chain)
    assert cut.names["chain"].digest is None
    assert names(cut, of(chain=None)) == ["chain"]
    assert names(cut, of(chain=chain)) == []


def test_a_collate_function_with_a_state_of_its_own_is_seen() -> None:
    class Collate:
        def __init__(self, batches: int) -> None:
            self.batches = batches

        def __call__(self, samples: list[int]) -> list[int]:
            return samples

    loaders = [torch.utils.data.DataLoader([1, 2], collate_fn=Collate(batches)) for batches in (0, 3)]  # type: ignore[arg-type]
    assert names(of(loader=loaders[0]), of(loader=loaders[1])) == ["loader.collate_fn.batches"]


def test_the_position_of_a_file_that_is_read_counts_and_that_of_a_log_does_not(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("one\ntwo\n")
    with path.open() as first, path.open() as second, path.open("a") as log:
        second.readline()
        assert names(of(lines=first), of(lines=second)) == ["lines"]
        before = of(log=log)
        log.write("three")
        assert names(before, of(log=log)) == []
    buffers = io.BytesIO(b"1"), io.BytesIO(b"2")
    assert names(of(buffer=buffers[0]), of(buffer=buffers[1])) == ["buffer"]


def test_an_iterator_that_cannot_be_looked_into_is_noted() -> None:
    class Source:
        def __iter__(self) -> Any:
            return self

        def __next__(self) -> int:
            return 1

    found = of(source=(each for each in Source()), tee=itertools.tee(each for each in Source())[0])
    assert "tee: an iterator that cannot be looked into" in found.opaque
    assert found.names["tee"].kind is Kind.UNSEEN


@pytest.mark.parametrize(
    ("limits", "what"),
    [
        (Limits(items=10, seconds=60.0), "items"),
        (Limits(depth=3, seconds=60.0), "depth"),
        (Limits(hashed_bytes=5_000, seconds=60.0), "bytes"),
        (Limits(seconds=-1.0), "time"),
    ],
)
def test_what_a_limit_cuts_off_is_no_difference(limits: Limits, what: str) -> None:
    def values(last: int) -> dict[str, Any]:
        deep: Any = [torch.full((100,), last)]
        for _ in range(10):
            deep = [deep, object()]
        return {"deep": deep, "large": [torch.full((1000,), last) for _ in range(20)], "number": 1}

    one, other = of(limits, **values(1)), of(limits, **values(2))
    assert one.cut == what
    assert one.names["number"].digest is not None
    if what in ("items", "time"):
        assert names(one, other) == []
    assert set(names(of(**values(1)), of(**values(2)))) == {"deep[0][0][0][0][0][0]", "large"}


def test_a_large_tensor_is_sampled_alike_on_both_sides() -> None:
    one = torch.zeros(3000, 3000)
    other = one.clone()
    assert digest(one) == digest(other)
    assert digest(one) != digest(other + 1)
    array = numpy.zeros((3000, 3000))
    assert digest(array) == digest(array.copy()) != digest(array + 1)


def test_what_travels_is_plain_and_small() -> None:
    values = {f"name{number}": [torch.zeros(3), {"a": number, "b": [number] * 20}] for number in range(500)}
    seen_ = of(**values)
    sent = msgspec.msgpack.encode(seen_.plain())
    assert len(sent) < 400_000
    assert Reach.of(msgspec.msgpack.decode(sent)) == seen_
    assert all(node.digest is not None and 0 <= node.digest < 1 << 63 for node in seen_.names.values())


def test_a_deep_value_with_a_second_name_further_within_travels() -> None:
    deep = {"a": {"b": {"c": {"d": {"e": {"f": [1, 2]}}}}}}
    seen_ = of(deep=deep, holder=[[[[deep]]]])
    assert Reach.of(msgspec.msgpack.decode(msgspec.msgpack.encode(seen_.plain()))) == seen_


@pytest.mark.parametrize(
    "sent", [None, 1, [], [{}, []], [{"a": [1]}, [], None], [{"a": ["x"] * 8}, [], None], [[], [], 1]]
)
def test_anything_else_that_comes_is_refused(sent: Any) -> None:
    with pytest.raises(PeerError, match="no digests of a script's values"):
        Reach.of(sent)


def test_nothing_of_the_script_is_kept() -> None:
    class Thing:
        pass

    def script() -> tuple[bool, Reach]:
        thing = Thing()
        thing.tensor = torch.zeros(3, requires_grad=True) * 2  # type: ignore[attr-defined]
        bound = names_bound(sys._getframe())
        seen_ = look(sys._getframe(), bound, (), Limits(seconds=60.0, items=1 << 30, names=1 << 30))
        gone = weakref.ref(thing)
        del thing
        gc.collect()
        return gone() is None, seen_  # also not by the frame, which keeps what `f_locals` has given

    is_gone, seen_ = script()
    assert is_gone
    assert seen_.names["thing"].parts[".tensor"].kind is Kind.TENSOR


def test_a_function_that_keeps_its_locals_has_them_still() -> None:
    def script() -> dict[str, Any]:
        first = 1
        arguments = locals()
        look(sys._getframe(), names_bound(sys._getframe()))
        assert first
        return arguments

    assert script()["first"] == 1


def test_a_container_that_another_thread_changes_has_no_digest_and_raises_nothing() -> None:
    class Changing(dict[Any, Any]):
        pass

    values = Changing({number: [] for number in range(2000)})
    over = threading.Event()

    def change() -> None:
        while not over.is_set():
            for number in range(50):
                values.pop(number, None)
            for number in range(50):
                values[number] = []

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(20):
            of(values=values)
    finally:
        over.set()
        thread.join()


def test_names_that_are_said_to_be_local_are_left_out() -> None:
    class Meter:
        def __init__(self, total: int, count: int) -> None:
            self.total, self.count = total, count

    local = LocalNames()
    running, meter = 0, Meter(0, 0)
    local.add(("running", "meter.total"), sys._getframe())
    one = of(running=1, meter=Meter(1, 1), runnings=1).without(local.has)
    other = of(running=2, meter=Meter(2, 1), runnings=2).without(local.has)
    assert names(one, other) == ["runnings"]
    assert names(one, of(meter=Meter(1, 2)).without(local.has)) == ["meter.count"]
    assert running == meter.total == 0


def test_changes_since_the_beginning_are_told_from_what_was_different_before() -> None:
    begun_here, begun_there = of(pid=1, step=0), of(pid=2, step=0)
    here, there = of(pid=1, step=5).since(begun_here), begun_there.since(begun_there)
    assert [(each.name, each.changed) for each in differences(here, there)] == [("step", True), ("pid", False)]
