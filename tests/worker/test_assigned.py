"""Analysis of a script's source: changed names, initial values, temporaries; and their use in messages."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from elasticd.worker.kept import Difference, Kind, Node
from elasticd.worker.source.assigned import Source, Sources
from elasticd.worker.source.syntax import parse
from elasticd.worker.variables import advice


def sources(text: str, function: str = "<module>") -> Sources:
    """The loop over epochs begins in the line that calls epochs()."""
    line = next(number for number, each in enumerate(text.split("\n"), 1) if ".epochs(" in each)
    return Sources(Source("train.py", ast.parse(text)), (), line, function)


def body(lines: str, before: str = "", head: str = "", tail: str = "", header: str = "x, y in batches") -> Sources:
    def indented(text: str, by: int) -> str:
        return "".join(f"{' ' * by}{line}\n" for line in text.split("\n") if line)

    loop = f"for epoch in run.epochs(2):\n{indented(head, 4)}    for {header}:\n{indented(lines, 8)}"
    return sources(f"{before}\n{loop}        optimizer.step()\n{indented(tail, 4)}")


@pytest.mark.parametrize(
    ("lines", "temporary"),
    [
        ("n = f(x)", True),
        ("n += 1", False),
        ("n = n + 1", False),
        ("n = f(lambda: n)", False),
        ("n.append(x)", False),
        ("n[0] = x", False),
        ("n.x = x", False),
        ("print(n)\nn = 1", False),
        ("if x:\n    n = 1\nprint(n)", False),
        ("if x:\n    n = 1\nelse:\n    n = 2\nprint(n)", True),
        ("if x:\n    continue\nn = 1", True),
        ("if x:\n    n = 1\nelse:\n    raise ValueError\nprint(n)", True),
        ("with f() as n:\n    n.x", True),
        ("with f():\n    n = 1\nn.x", True),
        ("try:\n    n = 1\nexcept E:\n    pass\nprint(n)", False),
        ("while x:\n    n = 1\nprint(n)", False),
        ("for n in x:\n    pass", True),
        ("a, (n, *b) = x", True),
        ("z = [n for n in x]\nn = 1", True),
        ("z = [n for z in x]\nn = 1", False),
        ("def closure():\n    return n\nn = closure()", False),
        ("def n():\n    pass", True),
        ("def closure():\n    n = 2\n    return n\nn = closure()", True),
        ("import n", True),
        ("n: int = 1", True),
        ("del n", False),
        ("match x:\n    case 1:\n        n = 1\nprint(n)", False),
    ],
)
def test_a_name_that_each_body_binds_before_it_reads_it_is_a_temporary(lines: str, temporary: bool) -> None:
    assert ("n" in body(lines).temporaries()) is temporary


@pytest.mark.parametrize(
    ("lines", "carried"),
    [
        ("if x:\n    n = 1\nprint(n)", True),
        ("if x:\n    n = 1\nelse:\n    n = 2\nprint(n)", False),
        ("if x:\n    n = 1\n    print(n)", False),
        ("n = 0\nif x:\n    n = 1\nprint(n)", False),
        ("try:\n    n = 1\nexcept E:\n    pass\nprint(n)", False),
        ("for n in x:\n    if n:\n        print(n)", False),
    ],
)
def test_a_name_that_bodies_bind_in_some_steps_and_read_in_others_is_carried(lines: str, carried: bool) -> None:
    assert ("n" in body(lines).sometimes) is carried


def test_an_error_of_a_newcomers_script_is_told_with_the_line_that_makes_the_value() -> None:
    loop = body("if x:\n    n = 1\nprint(n)")
    told = advice.of_error(NameError("name 'n' is not defined", name="n"), loop)
    assert told.startswith(
        "NameError: name 'n' is not defined: the loop assigns n in some steps or epochs only (train.py:"
    )
    assert "state = run.state(n=...)" in told
    assert "run.state(...)" in advice.of_error(KeyError("first"), loop)
    assert "run.mean(…)" in advice.of_error(IndexError("list index out of range"), loop)


def test_an_unbound_name_has_a_reason_only_where_the_loop_assigns_it_in_functions_too() -> None:
    loop = body("if x:\n    n = 1\nprint(n)")

    def main(x: bool) -> None:
        if x:
            n = 1
        print(n)

    with pytest.raises(UnboundLocalError) as raised:
        main(False)
    reason = advice.of_unbound(raised.value, loop)
    assert reason is not None
    assert reason.startswith("the loop assigns n in some steps or epochs only (train.py:")
    assert advice.of_unbound(NameError("name 'm' is not defined", name="m"), loop) is None


def test_targets_of_headers_are_temporaries_and_what_only_functions_read_is_none() -> None:
    found = body("n = f(x)", header="i, (x, y) in enumerate(batches)").temporaries()
    assert {"epoch", "i", "x", "y", "n"} <= found
    used = body("n = f(x)", before="def show():\n    print(n)")
    assert "n" not in used.temporaries()


def test_what_an_epoch_binds_and_its_bodies_read_is_no_temporary() -> None:
    found = body(
        "total += x", head="total = 0\nstart = now()", tail="value = evaluate()\nprint(value, start)"
    ).temporaries()
    assert "total" not in found
    assert "start" not in found
    assert "value" in found


SCRIPT = """
import copy, math
class Base:
    def reset(self):
        self.inherited = 1
class EMA(Base):
    decay = 0.9
    def __init__(self, parameters):
        self.num_updates = 0
        self.shadow = [each.clone() for each in parameters]
        self.fixed = 1
    def update(self, parameters):
        self.num_updates += 1
        for old, new in zip(self.shadow, parameters):
            old.lerp_(new, 0.1)
def count():
    global counted
    counted += 1
def train():
    counted = 1
    step, best, other = 0, math.inf, 1
    hidden = None
    ema = EMA(model.parameters())
    buffer: list = []
    while other < 1:
        other += 1
    for epoch in run.epochs(3):
        teacher = copy.deepcopy(model)
        labels = predict(model, data)
        for x, y in batches:
            step += 1
            buffer.append(x)
            hidden = model(x, hidden)
            ema.decay = 0.5
            stats["best"] = 1
            table[0].add_(1)
            optimizer.step()
        if y < best:
            best = y
    step = 0
counted = 0
"""


@pytest.mark.parametrize(
    ("name", "owners", "line"),
    [
        ("step", (), 31),
        ("best", (), 39),
        ("other", (), 26),
        ("hidden", (), 33),
        ("buffer", (), 32),
        ("buffer[3]", ("list",), 32),
        ("stats['best']", ("dict",), 35),
        ("table", (), 36),
        ("teacher.0.weight", ("Sequential", "Linear"), 28),
        ("ema.num_updates", ("EMA",), 13),
        ("ema.shadow[0]", ("EMA", "list"), 15),
        ("ema.fixed", ("EMA",), 11),
        ("ema.decay", ("EMA",), 34),
        ("ema.inherited", ("EMA",), 5),
        ("ema.unknown", ("EMA",), 34),
        ("ema", (), 34),
        ("nothing", (), None),
    ],
)
def test_the_line_that_changes_a_name_is_the_last_in_the_loop_or_in_a_method_or_before(
    name: str, owners: Any, line: int | None
) -> None:
    place = sources(SCRIPT, "train").where(name, owners)
    assert (None if place is None else (place.file, place.line)) == (None if line is None else ("train.py", line))


def test_what_a_name_begins_with_is_written_as_in_the_script() -> None:
    found = sources(SCRIPT, "train")
    assert found.initial("step") == "0"
    assert found.initial("best") == "math.inf"
    assert found.initial("buffer") == "[]"
    assert found.initial("hidden") == "None"
    assert found.initial("ema.num_updates", ("EMA",)) == "0"
    assert found.initial("ema.shadow", ("EMA",)) is None  # it reads an argument
    assert found.at_epochs("teacher") == "copy.deepcopy(model)"
    assert found.at_epochs("labels") == "predict(model, data)"
    assert found.at_epochs("step") is None


def test_what_an_epoch_computes_only_if_the_loop_has_improved_is_no_value_of_each_epoch() -> None:
    tail = "acc = evaluate(model)\nif acc > best:\n    best = acc\n    weights = copy(model)\nif use:\n    teacher = copy(model)"
    found = body("pass", before="best, weights, use, teacher = 0, copy(model), True, None", tail=tail)
    assert found.at_epochs("weights") is None
    assert found.at_epochs("teacher") == "copy(model)"


def test_a_name_of_another_module_is_found_under_the_name_by_which_it_is_imported() -> None:
    found = body("settings.step += 1", before="import shared.settings as settings")
    place = found.where("shared.settings.step")
    assert place is not None
    assert place.line == 4


def test_access_by_a_constant_name_is_read_as_plain_access() -> None:
    text = "setattr(a, 'n', getattr(a, 'n', 0) + vars(b)['m'])\nvars(a)['k'] += globals()['g']\nsetattr(a, key, 1)"
    assert ast.unparse(parse(text)) == "a.n = a.n + b.m\na.k += g\nsetattr(a, key, 1)"


def test_a_script_whose_source_is_not_there_has_neither_lines_nor_temporaries() -> None:
    nothing = Sources(Source.read("/nowhere/train.py"))
    assert nothing.temporaries() == frozenset()
    assert nothing.where("step") is None
    assert nothing.initial("step") is None
    assert Source.read(__file__) is not None


NUMBER = Node(1, Kind.PLAIN, "int", "5")
WORKERS = ("s-1.0", "s-1.3")


def number(name: str, changed: bool = True) -> Difference:
    return Difference(name, NUMBER._replace(changed=changed), NUMBER._replace(digest=2, shown="0", changed=False))


def test_names_come_first_and_then_code_before_the_loop() -> None:
    found, script = [number("step")], sources(SCRIPT, "train")
    assert advice.explain(found, WORKERS, script) == (
        "step is 5 on s-1.0 and 0 on s-1.3 (train.py:31); register it: run.state(step=0)"
    )
    assert advice.explain([], WORKERS, script).startswith("code before the loop, or at an epoch's beginning, has made")
    assert advice.explain([], WORKERS, script, opaque=["it: an iterator"]).endswith("(it: an iterator)")


TIMES = """
import time
from time import perf_counter
begun, limit, total, seen, step = time.time(), time.time() + 3600, 0, 0, 0
for epoch in run.epochs(2):
    lasted = 0.0
    for x in batches:
        now = perf_counter()
        lasted, begun = now - begun, now
        total += int(now - begun)
        seen += 1
        step = step + 1
        shift = seen
        score = rate(time.time())
        self.took = round(time.time() - begun, 2)
        self.count = self.count + 1
        optimizer.step()
"""


def test_variables_that_clocks_set_are_known() -> None:
    found = sources(TIMES)
    times = ["begun", "limit", "total", "lasted", "now", "trainer.took", "trainer.took[0]"]
    assert all(map(found.is_time, times))
    assert not any(map(found.is_time, ["seen", "step", "shift", "score", "trainer.count", "took", "x", "epoch"]))


def test_a_counter_of_loop_bodies_is_named_where_gradients_differ() -> None:
    script = sources("for epoch in run.epochs(2):\n    for i, x in enumerate(batches):\n        optimizer.step(i)\n")
    assert "i (train.py:2) counts the loop bodies of each worker alone" in advice.explain([], WORKERS, script)
    assert "counts the loop bodies" not in advice.explain(
        [], WORKERS, sources("for epoch in run.epochs(2):\n    seen = 0\n")
    )


def test_of_many_names_three_are_told() -> None:
    text = advice.sentences([number(f"name{each}") for each in range(5)], WORKERS, Sources(None))
    assert text.count("register it") == 3
    assert text.endswith("; and 2 more")
    assert "name0 is 5 on s-1.0 and 0 on s-1.3; register it: run.state(name0=0)" in text


def test_what_was_different_before_the_loop_is_told_as_such() -> None:
    text = advice.sentence(number("labels", changed=False), WORKERS, sources(SCRIPT, "train"))
    assert "was different before the loop: make it after elastic.join()" in text
    assert "sorted(...)" in text


def test_state_with_a_batch_s_length_is_one_of_each_virtual_worker() -> None:
    tensor = Node(1, Kind.TENSOR, "Tensor", "a tensor [1, 20, 8]", (1, 20, 8))
    found = Difference("memory", tensor, tensor._replace(digest=2))
    assert "run.per_virtual_worker(memory=" in advice.sentence(found, WORKERS, Sources(None), batch_size=20)
    assert "run.state(memory=memory)" in advice.sentence(found, WORKERS, Sources(None), batch_size=16)


def test_a_copy_of_the_weights_that_is_nothing_at_first_belongs_to_the_job() -> None:
    nothing = Node(2, Kind.PLAIN, "NoneType", "None")
    weights = Node(1, Kind.CONTAINER, "OrderedDict", "an OrderedDict of 4", (4, 8))
    text = advice.sentence(Difference("stopping.best_state", weights, nothing), WORKERS, Sources(None), batch_size=4)
    assert text.endswith("register it: run.state(best_state=None)")
    saved = body("if loss < best:\n    best_weight = model.weight.clone()", tail="run.save(best_weight, 'best.pt')")
    tensor = Node(1, Kind.TENSOR, "Tensor", "a tensor [4, 8]", (4, 8))
    text = advice.sentence(Difference("best_weight", tensor, nothing), WORKERS, saved, batch_size=4)
    assert text.endswith("register it: run.state(best_weight=None)")


@pytest.mark.parametrize(
    ("lines", "averaged"),
    [
        ("total += loss.item()", True),
        ("if loss.item() < total:\n    total = loss.item()", True),
        ("total += 1", False),
        ("total = 0.9 * total", False),
    ],
)
def test_what_follows_from_the_batches_of_one_worker_and_is_saved_is_averaged(lines: str, averaged: bool) -> None:
    script = body(lines, before="total = 0.0", tail="run.save({'loss': total}, 'last.pt')")
    text = advice.sentence(number("total"), WORKERS, script)
    assert "register it: run.state(total=0.0)" in text
    assert (advice.AVERAGED in text) is averaged
    unsaved = advice.sentence(number("total"), WORKERS, body(lines, before="total = 0.0", tail="print(total)"))
    assert unsaved.endswith("register it: run.state(total=0.0)")


def test_each_line_to_write_has_a_name_that_the_runtime_accepts_and_no_two_have_one() -> None:
    found = [number("self._best"), number("losses.sum"), number("scores.sum"), number("_")]
    text = advice.sentences(found[:3], WORKERS, Sources(None))
    assert [
        each for each in ("run.state(best=0)", "run.state(sum=0)", "run.state(scores_sum=0)") if each not in text
    ] == []
    assert "run.state(_=0)" in advice.sentence(found[3], WORKERS, Sources(None))  # there is no other name


CRITERION = """
class Center(nn.Module):
    def forward(self, x):
        self.center = 0.9 * self.center + x
        return x - self.center

criterion, average = Center(), Center()
for epoch in run.epochs(2):
    for x in batches:
        criterion(x).backward()
        optimizer.step()
        average.mean.lerp_(criterion.mean, 0.1)
"""


def test_a_buffer_that_a_forward_pass_changes_belongs_to_the_model_and_another_one_is_registered() -> None:
    tensor = Node(1, Kind.TENSOR, "Tensor", "a tensor [1, 4]", (1, 4))
    name = ("criterion.center", "average.mean")
    center, mean = (Difference(each, tensor, tensor, ("Center",), (Kind.MODULE,)) for each in name)
    text = advice.sentence(center, WORKERS, sources(CRITERION))
    assert text.endswith('torch.nn.ModuleDict({"model": model, "criterion": criterion})')
    assert advice.sentence(mean, WORKERS, sources(CRITERION)).endswith('run.register("average", average)')


def test_fields_of_dataclasses_begin_with_what_they_are_made_of() -> None:
    text = (
        "@dataclass\nclass Metrics:\n    losses: list = field(default_factory=list)\n    best: float = field(default=1.0)\n"
        "    kinds: dict = field(default_factory=lambda: {'a': 0})\n\n"
        "metrics = Metrics()\nfor epoch in run.epochs(2):\n    step()\n"
    )
    found = {name: sources(text).initial(f"metrics.{name}", ("Metrics",)) for name in ("losses", "best", "kinds")}
    assert found == {"losses": "list()", "best": "1.0", "kinds": "{'a': 0}"}


def test_a_place_in_a_loader_is_begun_anew() -> None:
    place = number("val_iter._num_yielded")._replace(owners=("_SingleProcessDataLoaderIter",), holders=(Kind.DATA,))
    assert advice.sentence(place, WORKERS, Sources(None)).endswith(
        "begin it anew in each epoch: val_iter = iter(...), of the same loader"
    )


def test_a_mode_of_the_modules_that_differs_is_to_be_set_in_each_body() -> None:
    mode = Node(1, Kind.PLAIN, "bool", "False")
    text = advice.sentence(Difference(advice.MODE, mode, mode._replace(digest=2, shown="True")), WORKERS, Sources(None))
    assert text == (
        "model.training is False on s-1.0 and True on s-1.3; set it in each loop body, before the forward pass: model.train()"
    )


def test_derived_tensors_are_computed_once_at_an_epoch_s_beginning() -> None:
    tensor = Node(1, Kind.TENSOR, "Tensor", "a tensor [24]", (24,))
    found = Difference("labels", tensor, tensor._replace(digest=2))
    text = advice.sentence(found, WORKERS, sources(SCRIPT, "train"))
    assert text == (
        "labels (a tensor [24], train.py:29) differs between s-1.0 and s-1.3; compute it once for all workers: "
        "labels = run.epoch_begin(lambda: predict(model, data))"
    )


def test_an_object_that_cannot_be_looked_into_is_registered_with_its_state() -> None:
    thing = Node(1, Kind.OBJECT, "Env", "an Env")
    text = advice.sentence(Difference("env", thing, thing._replace(digest=2)), WORKERS, Sources(None))
    assert text.endswith('register it before prepare(): run.register("env", env)')


@pytest.mark.parametrize(
    ("name", "owners", "told"),
    [
        ("meter.count", ("Meter",), "register it: run.state(count=0), or with its object: run.state(meter=meter)"),
        ("self.count", ("Meter",), "register it: run.state(count=0)"),
        ("show.meter.count", ("show()", "Meter"), "register it: run.state(count=0)"),
        (
            "timed.meter.count",
            ("Meter",),
            "each worker's timed() has its own: what it yields must follow from the batch and run.steps_done alone",
        ),
    ],
)
def test_an_object_is_proposed_where_a_line_before_the_loop_can_name_it(
    name: str, owners: tuple[str, ...], told: str
) -> None:
    before = (
        "class Meter:\n    def __init__(self):\n        self.count = 0\n    def update(self):\n        self.count += 1\n"
        "def timed(batches):\n    meter = Meter()\n    for x in batches:\n        yield x\n        meter.update()\n"
    )
    found = number(name)._replace(owners=owners, holders=(Kind.OBJECT,) * len(owners))
    text = advice.sentence(found, WORKERS, body("meter.update()", before=before, header="x in timed(batches)"))
    assert text.partition("); ")[2] == told
