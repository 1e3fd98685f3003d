"""The backward slice of a loop body's gradient: which lost values matter to it, now or later."""

from __future__ import annotations

import ast
import re
import textwrap

import pytest

from elasticd.worker.kept import Difference, Kind, Node, function_type
from elasticd.worker.source.slicing import Slice
from elasticd.worker.source.syntax import parse

LOOP = """
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, data, batch_size=4)
for epoch in run.epochs(4):
    for x, y, index in batches:
"""


def carries(
    body: str, name: str, kind: Kind, before: str = "", owner: str = "", in_data: bool = False, module: str = ""
) -> bool:
    indented = "".join(f"        {line}\n" for line in body.splitlines())
    tree = parse(f"{before}{LOOP}{indented}        optimizer.step()\n")
    node = Node(1, kind, "type")
    holders = (Kind.DATA,) if in_data else (Kind.OBJECT,) * bool(owner)
    trees = [tree, *([parse(module)] if module else [])]
    return Slice(trees, tree).carries(Difference(name, node, None, (owner,) if owner else (), holders))


NUMBERS = [
    "loss = f(model(x), n)\nloss.backward()\nn += 1",
    "w = 0.0 if n < 1000 else 1.0\nloss = f(model(x)) + w * g(x)\nloss.backward()\nn = n + 1",
    "loss = f(model(x))\nif n > 1000:\n    loss = loss + g(x)\nloss.backward()\nn += 1",
    "if n > 1000:\n    f(model(x)).backward()\nelse:\n    g(model(x)).backward()\nn += 1",
    "n += 1\nif n < 1000:\n    f(x).backward()\n    continue\ng(x).backward()",
    "with torch.set_grad_enabled(n > 1000):\n    h = encoder(x)\nf(h).backward()\nn += 1",
    "model.scale = min(1.0, n / 1000)\nf(model(x)).backward()\nn += 1",
    "f(model(x)).backward()\nrun.clip(1.0 if n > 1000 else 9.0)\nn += 1",
    "f(model(x)).backward()\nnn.utils.clip_grad_norm_(model.parameters(), 1.0 if n > 1000 else 9.0)\nn += 1",
    "f(model(x)).backward()\nif n > 1000:\n    clip_grad_norm_(model.parameters(), max_norm=1.0)\nn += 1",
    "from torch.nn.utils import clip_grad_norm_ as clip\nf(model(x)).backward()\nclip(model.parameters(), 1 + n)\nn += 1",
    "for p in model.parameters():\n    p.grad = p.grad * n\nn += 1",
    "scaler.scale(f(model(x)) * n).backward()\nn += 1",
    "run.log(n)\nf(model(x), step=n).backward()\nn += 1",
]


@pytest.mark.parametrize("body", NUMBERS)
def test_a_number_that_decides_about_the_loss_is_carried(body: str) -> None:
    assert carries(body, "n", Kind.PLAIN)


METER = """
class Meter:
    def __init__(self):
        {init}
    {other}(self, *state):
        self.total = 0.0
    def update(self, value):
        self.total = self.total + value
meter = Meter()
{before}
"""


@pytest.mark.parametrize(
    ("init", "other", "before", "carried"),
    [
        ("self.reset()", "def reset", "", True),
        ("self.total = 0.0", "def load_state_dict", "", True),
        ("self.total = 0.0", "def reset", "meter.reset()", True),
        ("self.total = 0.0", "def reset", "def begin():\n    meter.reset()\nbegin()", True),
        ("self.total = 0.0", "def on_batch", "", False),  # who calls it is not in the source
        ("self.total = 0.0", "def reset", "def begin():\n    meter.reset()\nfor _ in batches:\n    begin()", False),
    ],
)
def test_a_function_makes_a_value_anew_in_each_body_only_if_bodies_may_call_it(
    init: str, other: str, before: str, carried: bool
) -> None:
    meter = METER.format(init=init, other=other, before=before)
    body = "loss = f(model(x), meter.total)\nloss.backward()\nmeter.update(loss.item())"
    assert carries(body, "meter.total", Kind.PLAIN, before=meter, owner="Meter") is carried


@pytest.mark.parametrize(
    "body",
    [
        "loss = f(model(x))\nloss.backward()\nn += 1\nprint(n, loss)",
        "f(model(x)).backward()\nn += 1\nif n % 100 == 0:\n    run.save(model, path)",
        "f(model(x)).backward()\nn = 0.9 * n + 0.1 * loss.item()\nrun.report(loss=n)",
        "f(model(x)).backward()\nn += clip_grad_norm_(model.parameters(), 1.0).item()\nprint(n)",
        "with timer(n):\n    f(model(x)).backward()\nn += 1",
        "if n is None:\n    n = len(x)\n(f(model(x)) / n).backward()",
        "if not n:\n    n = x.device\nf(model(x.to(n))).backward()",
        "loss = f(model(x))\nwriter.add_scalar('loss', loss, n)\nloss.backward()\nn += len(x)",
        "out = model(x)\nf(out).backward()\nn += 1\nif n % 8 == 0:\n    out = model(fixed)\n    images.append(out)",
        "loss = f(model(x))\nloss.backward()\nn += 1\nif n % 8 == 0:\n    loss = n * loss.item()\n    print(loss)",
    ],
)
def test_a_number_for_logs_and_one_that_is_filled_in_once_are_not(body: str) -> None:
    assert not carries(body, "n", Kind.PLAIN)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Kind.TENSOR, "if epoch > 2:\n    l = f(m[index])\nl.backward()\nm[index] = model(x)"),
        (Kind.TENSOR, "if epoch > 2:\n    l = f(m)\nl.backward()\nm.mul_(0.9).add_(model(x))"),
        (Kind.TENSOR, "f(x @ m).backward()\nm[4:] = m[:-4].clone()\nm[:4] = x"),
        (Kind.ARRAY, "f(x, m.sum()).backward()\nm += x.numpy()"),
        (Kind.CONTAINER, "if len(m) == 1000:\n    l = f(m)\nl.backward()\nm.append(x)"),
        (Kind.CONTAINER, "f(x, [m.get(i, 1.0) for i in index]).backward()\nfor i in index:\n    m[i] = 1"),
        (Kind.CONTAINER, "f(x, m['a']).backward()\nm['a'] = 0.9 * m['a'] + x"),
    ],
)
def test_a_memory_is_carried(kind: Kind, body: str) -> None:
    assert carries(body, "m", kind)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Kind.TENSOR, "m.copy_(x)\nf(model(m)).backward()"),
        (Kind.TENSOR, "m[:] = x\nf(model(m)).backward()"),
        (Kind.TENSOR, "m = x.clone()\nf(model(m)).backward()"),
        (
            Kind.CONTAINER,
            "for i in index:\n    if i not in m:\n        m[i] = g(i)\nf([m[i] for i in index]).backward()",
        ),
        (Kind.CONTAINER, "try:\n    v = m[k]\nexcept KeyError:\n    v = m[k] = g(k)\nf(v).backward()"),
        (Kind.CONTAINER, "m.clear()\nm.append(model(x))\nf(m).backward()"),
        (Kind.CONTAINER, "m['out'] = model(x)\nf(m['out']).backward()"),
        (Kind.CONTAINER, "l = f(model(x))\nm.append(l.item())\nl.backward()"),
        (Kind.OBJECT, "f(m.sample(x)).backward()"),
    ],
)
def test_a_cache_scratch_memory_and_a_history_are_not(kind: Kind, body: str) -> None:
    assert not carries(body, "m", kind)


@pytest.mark.parametrize(
    ("call", "carried"),
    [
        ("sample = model(fixed)", True),
        ("model.train()\nsample = model(fixed)", True),
        ("sample = draw(model, fixed)", True),
        ("model.eval()\nsample = model(fixed)\nmodel.train()", False),
        ("sample = criterion(fixed, x)", False),
        ("sample = torch.randn(4)", False),
        ("sample = fixed.clone()", False),
    ],
)
def test_a_number_that_decides_when_a_model_with_statistics_is_called_is_carried(call: str, carried: bool) -> None:
    before = "criterion = nn.MSELoss()\ndef draw(net, noise):\n    return net(noise)\n"
    body = f"f(model(x)).backward()\nn += 1\nif n % 8 == 0:\n{textwrap.indent(call, '    ')}"
    tree = parse(f"{before}{LOOP}{textwrap.indent(body, 8 * ' ')}")
    difference = Difference("n", Node(1, Kind.PLAIN, "int"), None)
    assert Slice([tree], tree, statistics=True).carries(difference) is carried
    assert not Slice([tree], tree).carries(difference)


@pytest.mark.parametrize(
    ("call", "carried"),
    [
        ("model.eval()", True),
        ("show(model)", True),
        ("validate(model)", False),
        ("model.eval()\nprint(model(fixed))\nmodel.train()", False),
        ("eval(text)", False),
    ],
)
@pytest.mark.parametrize("first", ["", "model.train()\n"])
def test_a_number_that_decides_when_bodies_leave_the_training_mode_is_carried(
    call: str, carried: bool, first: str
) -> None:
    functions = "def show(net):\n    net.eval()\ndef validate(net):\n    net.eval()\n    test(net)\n    net.train()\n"
    body = f"{first}f(model(x)).backward()\nn += 1\nif n % 8 == 0:\n{textwrap.indent(call, '    ')}"
    tree = parse(f"{functions}{LOOP}{textwrap.indent(body, 8 * ' ')}")
    difference = Difference("n", Node(1, Kind.PLAIN, "int"), None)
    assert Slice([tree], tree, modes=True).carries(difference) is (carried and not first)
    assert not Slice([tree], tree).carries(difference)


def test_functions_and_methods_of_the_script_are_followed() -> None:
    gate = "def gate(step):\n    if step < 1000:\n        return 0.0\n    return 1.0\n"
    assert carries("(gate(n) * f(x)).backward()\nn += 1", "n", Kind.PLAIN, gate)
    logged = "def loss_of(x, step):\n    print(step)\n    return f(x)\n"
    assert not carries("loss_of(x, n).backward()\nn += 1", "n", Kind.PLAIN, logged)
    meter = (
        "class Meter:\n    def __init__(self):\n        self.count = self.seen = 0\n"
        "    def of(self, x):\n        self.count += 1\n        self.seen += 1\n"
        "        print(self.seen)\n        return x if self.count > 1000 else 0 * x\n"
        "meter = Meter()\n"
    )
    body = "meter.of(f(x)).backward()"
    assert carries(body, "meter.count", Kind.PLAIN, meter, "Meter")
    assert not carries(body, "meter.seen", Kind.PLAIN, meter, "Meter")


def test_attributes_of_modules_count_by_what_forward_reads() -> None:
    model = (
        "class Base(nn.Module):\n    def tick(self):\n        self.updates += 1\n"
        "class Net(Base):\n    def forward(self, x):\n        self.calls += 1\n"
        "        return x if self.updates > 1000 else 2 * x\n"
        "model = Net()\n"
    )
    body = "f(model(x)).backward()\nmodel.tick()"
    assert carries(body, "model.updates", Kind.PLAIN, model, "Net")
    assert not carries(body, "model.calls", Kind.PLAIN, model, "Net")


def test_what_each_body_makes_anew_is_not_kept() -> None:
    model = (
        "class Net(nn.Module):\n    def set_step(self, step):\n        self.step = step\n"
        "    def start(self):\n        self.hidden = torch.zeros(4)\n"
        "    def forward(self, x):\n        self.hidden = cell(x, self.hidden)\n"
        "        return self.hidden * self.step\n"
        "model = Net()\nweights = np.ones((2, 5))\n"
    )
    body = "model.set_step({})\nmodel.start()\nweights[0, epoch] = g(epoch)\nf(model(x), weights[0, epoch]).backward()"
    derived, counted = body.format("run.steps_done"), body.format("model.step + 1")
    assert not carries(derived, "model.step", Kind.PLAIN, model, "Net")
    assert carries(counted, "model.step", Kind.PLAIN, model, "Net")
    assert not carries(derived, "model.hidden", Kind.TENSOR, model, "Net")
    assert carries(
        derived.replace("model.start()\n", ""),
        "model.hidden",
        Kind.TENSOR,
        model.replace("zeros(4)", "z(self.hidden)"),
        "Net",
    )
    assert not carries(derived, "weights", Kind.ARRAY, model)
    assert carries(
        derived.replace("0, epoch]).b", "0, epoch - 1]).b").replace("weights[0, epoch] = g(epoch)\n", "")
        + "\nweights[0, epoch] = g(epoch)",
        "weights",
        Kind.ARRAY,
        model,
    )


def test_attributes_of_one_name_are_kept_apart_by_their_objects() -> None:
    before = (
        "class Meter:\n    def add(self, x):\n        self.step += 1\n        self.sum += x\n"
        "meter = Meter()\nstate = run.state(step=0)\nargs = parser.parse_args()\n"
    )
    body = (
        "loss = f(model(x)) * state.step * args.sum\nloss.backward()\nmeter.add(loss)\nstate.step += 1\nargs.sum += 1"
    )
    assert not carries(body, "meter.step", Kind.PLAIN, before, "Meter")
    assert not carries(body, "meter.sum", Kind.PLAIN, before, "Meter")
    assert carries(body, "args.sum", Kind.PLAIN, before, "Namespace")
    assert not carries(body, "other.sum", Kind.PLAIN, before, "Namespace")


def test_values_of_the_data_are_compared_by_the_samples() -> None:
    assert not carries("f(x, m).backward()\nm.append(x)", "m", Kind.CONTAINER, in_data=True)


def test_the_loop_may_be_in_a_function_and_iterate_over_a_generator_of_the_script() -> None:
    source = """
def counted(batches):
    seen = logged = 0
    for batch in batches:
        print(logged)
        if seen > 1000:
            yield batch
        seen += 1
        logged += 1

def main():
    n = 0
    for epoch in run.epochs(4):
        for x in counted(batches):
            f(model(x), n).backward()
            optimizer.step()
            n += 1
"""
    tree = ast.parse(source)
    sliced = Slice([tree], tree.body[1])
    assert sliced.carries(Difference("n", Node(1, Kind.PLAIN, "int"), None))
    counted = Slice([tree], tree.body[0])
    assert counted.carries(Difference("seen", Node(1, Kind.PLAIN, "int"), None))
    assert not counted.carries(Difference("logged", Node(1, Kind.PLAIN, "int"), None))


@pytest.mark.parametrize(
    ("end", "carried"),
    [
        ("return model, history", False),
        ("return model, [history, 1]", False),
        ("if quick:\n        return model, []\n    return model, history", False),
        ("if not history:\n        return model, []\n    return model, history", True),
        ("return history, model", True),
        ("return result(model, history)", True),
        ("yield model, history", True),
    ],
)
def test_of_a_tuple_that_a_function_returns_each_variable_gets_its_own_item(end: str, carried: bool) -> None:
    source = f"""
def train(model, batches):
    history = []
    for epoch in run.epochs(4):
        for x in batches:
            f(model(x)).backward()
            optimizer.step()
        history.append(test(model))
    {end}

for fold in folds:
    model, found = train(model, batches)
"""
    tree = ast.parse(source)
    sliced = Slice([tree], tree.body[0])
    assert sliced.carries(Difference("history", Node(1, Kind.CONTAINER, "list"), None)) is carried


def test_what_decides_when_the_loop_is_left_is_kept() -> None:
    source = """
class EarlyStopping:
    def __init__(self):
        self.counter, self.best, self.stop, self.calls = 0, 9.0, False, 0

    def __call__(self, loss):
        self.calls += 1
        if loss < self.best:
            self.best, self.counter = loss, 0
        else:
            self.counter += 1
            self.stop = self.counter >= 3

stopper = EarlyStopping()
for epoch in run.epochs(9):
    for x in batches:
        f(model(x)).backward()
        optimizer.step()
    stopper(run.evaluate(f, validation, batch_size=8))
    if stopper.stop:
        break
"""
    tree = ast.parse(source)
    sliced = Slice([tree], tree)
    node = Node(1, Kind.PLAIN, "int")
    for name, kept in {"counter": True, "best": True, "stop": True, "calls": False}.items():
        difference = Difference(f"stopper.{name}", node, None, ("EarlyStopping",), (Kind.OBJECT,))
        assert sliced.ends(difference) is kept, name
        assert not sliced.carries(difference), name


def test_what_decides_by_a_closure_whether_the_job_stops_is_kept() -> None:
    source = """
def stopper(patience):
    best, bad, calls = 9.0, 0, 0
    def check(value):
        nonlocal best, bad, calls
        calls += 1
        if value < best:
            best, bad = value, 0
        else:
            bad += 1
        return bad >= patience
    return check

should_stop = stopper(2)

@run.every(steps=2)
def validate():
    if should_stop(run.evaluate(f, validation, batch_size=8)):
        run.stop()

for epoch in run.epochs(9):
    for x in batches:
        f(model(x)).backward()
        optimizer.step()
"""
    tree = ast.parse(source)
    sliced = Slice([tree], tree)
    node = Node(1, Kind.PLAIN, "int")
    for name, kept in {"best": True, "bad": True, "calls": False}.items():
        owner = function_type("stopper.<locals>.check")
        assert sliced.ends(Difference(f"should_stop.{name}", node, None, (owner,), (Kind.OBJECT,))) is kept, name


def test_values_of_functions_that_are_handed_over_are_read_and_perhaps_changed() -> None:
    source = """
rng, seen, scale, limit, unused = Random(0), 0, 1.0, 2.0, 0

class Order:
    def __iter__(self):
        self.passes += 1
        return iter(shuffled(self.passes))

class Clip:
    def __call__(self):
        self.norm = 0.9 * self.norm

def collate(items):
    return scale * mixed(items)

def mixed(items):
    return items[rng.randrange(limit.get(len(items)))]

def hook(module, given, output):
    global seen
    seen += 1

order = Order()
model.register_forward_hook(hook)
model, optimizer, batches = run.prepare(
    model, optimizer, data, sampler=order, collate_fn=collate, before_update=Clip()
)
for epoch in run.epochs(9):
    for x in batches:
        f(model(x)).backward()
        optimizer.step()
"""
    tree = ast.parse(source)
    sliced = Slice([tree], tree)
    node = Node(1, Kind.PLAIN, "int")
    found = {name: Difference(name, node, None) for name in ("rng", "seen", "scale", "limit", "unused")}
    found["order.passes"] = Difference("order.passes", node, None, ("Order",), (Kind.OBJECT,))
    found["before_update.norm"] = Difference("before_update.norm", node, None, ("Clip",), (Kind.OBJECT,))
    assert [name for name, each in found.items() if sliced.of_samples(each)] == [
        "rng",
        "scale",
        "limit",
        "order.passes",
    ]
    assert [name for name, each in found.items() if sliced.of_samples(each, changed=True)] == ["rng", "order.passes"]
    assert [name for name, each in found.items() if sliced.of_hooks(each)] == ["seen", "before_update.norm"]


SUMS = """
def train_epoch(scale):
    correct = seen = n = 0
    total, rest = 0.0, 0.0
    for x, y in batches:
        out = model(x)
        out = out + head(out)
        loss = scale * f(out, y)
        loss.backward()
        optimizer.step()
        correct += hits(out, y)
        seen += len(x)
        total += loss.item()
        state.mean = state.mean + loss.item()
        n += 1
    print(total / n)
    return correct / seen * state.mean

easy = False
for epoch in run.epochs(4):
    easy = train_epoch(0.3 if easy else 1.0) > 0.8
"""


def test_variables_in_which_bodies_add_up_what_later_losses_depend_on_are_found() -> None:
    tree = parse(SUMS)
    header = SUMS.splitlines().index("    for x, y in batches:") + 1
    found = Slice([tree], tree).added_up([(tree, header)])
    lines = SUMS.splitlines()
    assert {name: lines[line - 1].split()[0] for name, _, line in found} == {"correct": "correct", "seen": "seen"}


AT_TIMES = [
    "if old is not None:\n    loss = f(x) + g(old)\nloss.backward()\nif bad(x):\n    old = h(x)",
    "if epoch == 2:\n    old = h(x)\nf(x, old).backward()",
    "if index > 9:\n    if bad(x):\n        old = h(x)\nf(x, old).backward()",
    "if index > 9:\n    if bad(x):\n        old = h(x)\n    else:\n        f(x, old).backward()",
    "loss = f(x)\nif bad(x):\n    loss = loss + old\nif good(x):\n    old = h(x)\nloss.backward()",
]


@pytest.mark.parametrize("body", AT_TIMES)
@pytest.mark.parametrize("name", ["old", "memory.old"])
def test_a_value_that_bodies_bind_at_times_is_kept(body: str, name: str) -> None:
    before = "class Memory:\n    old = None\nmemory = Memory()\n"
    owner = "Memory" if "." in name else ""
    assert carries(re.sub(r"\bold\b", name, body), name, Kind.TENSOR, before, owner)


def test_what_bodies_bind_at_times_is_found_without_values() -> None:
    tree = parse(f"{LOOP}        if bad(x):\n            old = h(x)\n        f(x, old).backward()\n")
    assert [found for found, _, _ in Slice([tree], tree).bound_at_times([(tree, LOOP.count("\n"))])] == ["old"]


@pytest.mark.parametrize(
    "body",
    [
        "if bad(x):\n    old = h(x)\nelse:\n    old = g(x)\nf(x, old).backward()",
        "if bad(x):\n    old = h(x)\nelif good(x):\n    old = g(x)\nelse:\n    old = x\nf(x, old).backward()",
        "old = g(x)\nif bad(x):\n    old = h(x)\nf(x, old).backward()",
        "mixed = bad(x)\nif mixed:\n    old = h(x)\nloss = f(x)\nif mixed:\n    loss = loss + old\nloss.backward()",
        "if bad(x):\n    old = h(x)\n    loss = f(x, old)\nelse:\n    loss = f(x)\nloss.backward()",
        "if model.training:\n    old = h(x)\nf(x, old).backward()",
        "if options.noisy:\n    old = h(x)\nf(x, old).backward()",
        "if len(x) > 4:\n    old = h(len(x))\nf(x, old).backward()",
        "if old is None:\n    old = h(x)\nf(x, old).backward()",
        "f(x).backward()\nif bad(x):\n    old = h(x)",
    ],
)
@pytest.mark.parametrize("name", ["old", "memory.old"])
def test_a_value_that_bodies_bind_before_they_read_it_is_not_kept(body: str, name: str) -> None:
    before = "class Memory:\n    old = None\nmemory = Memory()\noptions = parse()\n"
    owner = "Memory" if "." in name else ""
    assert not carries(re.sub(r"\bold\b", name, body), name, Kind.TENSOR, before, owner)


def test_methods_of_the_runtime_are_not_those_of_own_classes_with_the_same_names() -> None:
    methods = ("state(self):\n        return self.seen", "add(self, x):\n        self.seen = self.seen + [x]")
    own = "class Diary:\n" + "".join(f"    def {each}\n" for each in methods)
    body = "f(model(x) * state.scale + state.seen).backward()\ndiary.add(x)"
    before = f"{own}diary = Diary()\nstate = run.state(scale=1.0, seen=0)\n"
    assert not carries(body, "diary.seen", Kind.CONTAINER, before, "Diary")
    assert carries(body.replace("state.seen", "diary.state()"), "diary.seen", Kind.CONTAINER, before, "Diary")


GATE = (
    "def make(calls):\n    done = 0\n    def gate():\n        nonlocal done\n        done += 1\n"
    "        return float(done > calls)\n    return gate\ngate = make(1000)\n"
)
COUNTS = "def weigh(history, scale):\n    history['calls'] += 1\n    return scale if history['calls'] > 1000 else 0.0\n"
LEARNER = (
    "class Learner(nn.Module):\n    @property\n    def progress(self):\n        return self.seen / 1000\n"
    "    def tick(self):\n        self.seen += 1\nlearner = Learner()\n"
)
REMEMBERS = "def weigh(x, seen=[0]):\n    seen[0] += 1\n    return x if seen[0] > 1000 else 0 * x\n"


@pytest.mark.parametrize(
    "model", ["", "class Net(nn.Module):\n    def forward(self, x):\n        return x\nmodel = Net()\n"]
)
@pytest.mark.parametrize(
    ("before", "body", "name", "owner"),
    [
        (GATE, "(f(x) * gate()).backward()", "gate.done", "make.<locals>.gate()"),
        (
            f"{COUNTS}weight = partial(weigh, {{}})\n",
            "(f(x) * weight(0.1)).backward()",
            "weight(args)[0]['calls']",
            "tuple",
        ),
        (
            f"{COUNTS}weight = partial(weigh, scale=1, history={{}})\n",
            "weight().backward()",
            "weight(keywords)['history']",
            "dict",
        ),
        (REMEMBERS, "weigh(f(x)).backward()", "weigh(seen)[0]", ""),
        (LEARNER, "if learner.progress > 1:\n    x = g(x)\nf(x).backward()\nlearner.tick()", "learner.seen", "Learner"),
        (
            "",
            "if opt.n > 1000:\n    x = g(x)\nf(x).backward()\nsetattr(opt, 'n', getattr(opt, 'n') + 1)",
            "opt.n",
            "Namespace",
        ),
        ("", "vars(opt)['n'] += 1\nif opt.n > 1000:\n    x = g(x)\nf(x).backward()", "opt.n", "Namespace"),
        (
            "",
            "for k, v in table.get(opt.n, ()):\n    setattr(opt, k, v)\nf(x, opt.a).backward()\nopt.n += 1",
            "opt.n",
            "Namespace",
        ),
        (
            "",
            "match phase:\n    case 1:\n        n += 1\n        if n > 1000:\n            phase = 2\n"
            "    case 2:\n        x = g(x)\nf(x).backward()",
            "n",
            "",
        ),
        ("", "torch.manual_seed(n)\nf(x).backward()\nn += 1", "n", ""),
        (
            "",
            "f(x).backward()\nn += 1\nif n > 1000:\n    for group in optimizer.param_groups:\n        group['lr'] *= 0.1",
            "n",
            "",
        ),
        ("import settings as s\n", "(f(x) * s.gate()).backward()\ns.steps += 1", "settings.steps", ""),
        (
            "from settings import gate as g\nimport settings\n",
            "(f(x) * g()).backward()\nsettings.steps += 1",
            "settings.steps",
            "",
        ),
    ],
)
def test_values_are_found_where_the_source_hardly_shows_them(
    model: str, before: str, body: str, name: str, owner: str
) -> None:
    module = "steps = 0\ndef gate():\n    return float(steps > 1000)\n" if "settings" in before else ""
    assert carries(body, name, Kind.PLAIN, model + before, owner, module=module)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("n = next(it)\nif n > 1000:\n    x = g(x)\nf(x).backward()", True),
        ("l = f(x)\nm = it.send(l)\n(l / m).backward()", True),
        ("f(x).backward()\nprint(next(it))", False),
    ],
)
def test_an_iterator_is_carried_if_the_loss_depends_on_its_place(body: str, expected: bool) -> None:
    assert carries(body, "it", Kind.ITERATOR) is expected


@pytest.mark.parametrize(
    "body",
    [
        "f(x).backward()\nopt.n += 1\nlog['lr'] = opt.n",
        "f(x).backward()\nsetattr(opt, 'n', opt.n + 1)",
        "f(x).backward()\nopt.n += 1\nif opt.n % 10 == 0:\n    evaluate(model)",
    ],
)
def test_an_attribute_that_no_loss_reads_is_not_carried(body: str) -> None:
    assert not carries(body, "opt.n", Kind.PLAIN, "", "Namespace")


def test_a_counter_that_is_an_attribute_of_another_s_module_is_not_carried_by_a_call_of_it() -> None:
    own = (
        "class Own(nn.Module):\n    def forward(self, x):\n        return x\ndef build():\n    return nn.Linear(2, 2)\n"
    )
    body = "f(model(x)).backward()\nmodel.calls = getattr(model, 'calls', 0) + 1"
    for before in ("", f"{own}model = build()\n"):
        assert not carries(body, "model.calls", Kind.PLAIN, before, "Linear")


def test_a_value_counts_under_each_of_its_names() -> None:
    before = "class Tracker:\n    def weight(self):\n        return float(self.stats['seen'] > 1000)\n"
    before += "tracker = Tracker()\nstats = tracker.stats\n"
    body = "        (f(x) * tracker.weight()).backward()\n        stats['seen'] += 1\n"
    tree = parse(f"{before}{LOOP}{body}")
    node = Node(1, Kind.PLAIN, "int")
    other = Difference("tracker.stats['seen']", node, None, ("Tracker", "dict"))
    difference = Difference("stats['seen']", node, None, ("dict",))
    assert Slice([tree], tree).carries(difference._replace(also=(other,)))
    assert not Slice([tree], tree).carries(difference)


LAZY = """
class Attention(nn.Module):
    def forward(self, x):
        if not hasattr(self, "mask") or len(self.mask) < x.shape[1]:
            self.mask = torch.ones(x.shape[1], x.shape[1])
        return self.cosine(x, seq_len=x.shape[-2]) * self.mask

    def cosine(self, x, seq_len):
        if self.cached is None or self.cached.shape[0] < seq_len or self.cached.device != x.device:
            self.cached = torch.arange(seq_len).cos()
        if seq_len > self.seq_len_cached:
            self.seq_len_cached = seq_len
            self.sines = torch.arange(self.seq_len_cached).sin()
        known = getattr(self, "known", None)
        self.known = self.known if known is not None and len(known) == len(x) else torch.ones(len(x))
        return self.cached[:seq_len] + self.sines[:seq_len] + self.known

model = Attention()
"""


@pytest.mark.parametrize(
    ("name", "kind"),
    [(each, Kind.TENSOR) for each in ("mask", "cached", "sines", "known")] + [("seq_len_cached", Kind.PLAIN)],
)
def test_what_is_made_at_its_first_use_and_again_for_a_larger_input_is_not_kept(name: str, kind: Kind) -> None:
    assert not carries("f(model(x)).backward()", f"model.{name}", kind, LAZY, owner="Attention")


@pytest.mark.parametrize(
    "body",
    [
        "if n is None or loss > n:\n    n = loss\nf(model(x) / n).backward()",
        "if n is None:\n    n = r\nelse:\n    n = 0.9 * n + 0.1 * r\nf(model(x) - n).backward()",
        "n = r if n is None else n\nn = n if n > r else r + n\nf(model(x) - n).backward()",
        "if not hasattr(n, 'shape') or n < x.max():\n    n = x.max()\nf(model(x) / n).backward()",
    ],
)
def test_what_begins_at_its_first_use_and_follows_later_bodies_is_kept(body: str) -> None:
    assert carries(body, "n", Kind.PLAIN)


TRAINED = """
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, data, batch_size=4)
{functions}
best = 0
for epoch in run.epochs(4):
    total = count = 0
    for x, y in batches:
        loss = f(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
        meter.update(loss.item())
        count += 1
{between}
"""
VALIDATE = """
def validate(model):
    total = 0
    for x, y in others:
        total += f(model(x), y).item()
    return total
"""


def follows_from_bodies(between: str, functions: str = "") -> bool:
    indented = "".join(f"    {line}\n" for line in between.splitlines())
    tree = parse(TRAINED.format(functions=functions, between=indented))
    node = Node(1, Kind.PLAIN, "float")
    return Slice([tree], tree).follows_from_bodies(Difference("best", node, node), loops(tree))


def loops(tree: ast.Module) -> list[tuple[ast.AST, int]]:
    return [(tree, node.lineno) for node in ast.walk(tree) if isinstance(node, ast.For)]


@pytest.mark.parametrize(
    "between",
    [
        "best = max(best, total)",
        "mean = total / count\nif mean > best:\n    best = mean",
        "best = max(best, score(meter.average))",
        "losses.append(total)\nbest = min(losses)",
    ],
)
def test_a_value_that_follows_from_what_bodies_add_up_is_each_workers_own(between: str) -> None:
    assert follows_from_bodies(between)


@pytest.mark.parametrize(
    "between",
    [
        "best = max(best, validate(model))",
        "loss = validate(model)\nlosses.append(total)\nif loss < best:\n    best = loss",
        "total = count = 0\nfor x, y in others:\n    total += f(model(x), y).item()\n    count += 1\nbest = total / count",
        "best = max(best, optimizer.param_groups[0]['lr'])",
        "best += 1",
    ],
)
def test_a_value_of_a_validation_is_the_same_on_all_workers(between: str) -> None:
    assert not follows_from_bodies(between, VALIDATE)


def test_what_each_body_makes_before_it_reads_it_is_not_added_up() -> None:
    body = "        hidden = zeros(x)\n        out, hidden = model(x, hidden)\n        f(out, y).backward()\n"
    between = "    out, _ = model(others, zeros(others))\n    best = max(best, g(hidden))\n"
    tree = parse(f"best = 0\nfor epoch in run.epochs(4):\n    for x, y in batches:\n{body}{between}")
    node = Node(1, Kind.PLAIN, "float")
    assert not Slice([tree], tree).follows_from_bodies(Difference("best", node, node), loops(tree))
    rest = body.partition("\n")[2]
    tree = parse(f"best = hidden = 0\nfor epoch in run.epochs(4):\n    for x, y in batches:\n{rest}{between}")
    assert Slice([tree], tree).follows_from_bodies(Difference("best", node, node), loops(tree))


def test_a_function_for_both_phases_leaves_open_which_of_its_results_is_used() -> None:
    tree = parse(
        """
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, data, batch_size=4)
def run_epoch(loader, training):
    total = 0
    for x, y in loader:
        loss = f(model(x), y)
        if training:
            loss.backward()
            optimizer.step()
        total += loss.item()
    return total
for epoch in run.epochs(4):
    run_epoch(batches, True)
    best = max(best, run_epoch(others, False))
"""
    )
    node = Node(1, Kind.PLAIN, "float")
    assert not Slice([tree], tree).follows_from_bodies(Difference("best", node, node), loops(tree))


def test_loops_of_other_modules_in_which_the_job_does_not_train_do_not_count() -> None:
    tree, other = (
        parse(TRAINED.format(functions="", between="    best = helper.total")),
        parse(
            """
class Helper:
    def fit(self):
        self.total = 0
        for x, y in batches:
            loss = f(model(x), y)
            loss.backward()
            self.total += loss.item()
"""
        ),
    )
    node = Node(1, Kind.PLAIN, "float")
    sliced = Slice([tree, other], tree)
    assert sliced.follows_from_bodies(Difference("best", node, node), [*loops(tree), *loops(other)])
    assert not sliced.follows_from_bodies(Difference("best", node, node), loops(tree))


# The loop over batches with what is around it, and the names that its bodies leave to later ones
LEFT = [
    ("for i, (x, y) in enumerate(batches):\n    f(model(x), i).backward()", {"i"}),
    ("for i, (x, y) in tqdm(enumerate(batches)):\n    f(model(x), i).backward()", {"i"}),
    ("for i, (x, y) in zip(range(9), batches):\n    f(model(x), i).backward()", {"i"}),
    (
        "for i, x in enumerate(batches):\n    z = f(x)\n    z.backward()\n    if i % 9 == 0:\n        z = z.item()",
        set(),
    ),
    ("w = 1\nfor i, (x, y) in enumerate(batches):\n    f(model(x), w).backward()\n    w = 1 / (1 + i)", {"i", "w"}),
    ("h = None\nfor x, y in batches:\n    out, h = model(x, h)\n    f(out).backward()", {"h"}),
    ("for x, y in batches:\n    x = g(x)\n    f(model(x)).backward()", set()),
    ("n = 0\nfor x, y in batches:\n    z = f(x)\n    z.backward()\n    n += z.item()\nprint(n)", set()),
    ("n = 0\nfor x, y in batches:\n    z = f(x)\n    z.backward()\n    n += z.item()\nplateau.step(n)", {"n"}),
    ("it = iter(batches)\nwhile (x := next(it, None)) is not None:\n    f(x, n).backward()\n    n += 1", {"n"}),
    ("for x, y in batches:\n    f(model(x)).backward()\nfor _ in range(3):\n    n += g(next(tests))", set()),
    ("others = iter(data)\nfor x, y in batches:\n    f(x, next(others)).backward()", {"others"}),
    ("for (x, y), z in zip(batches, others):\n    f(x, z).backward()", {"z"}),
    ("for i, ((x, y), z) in enumerate(zip(batches, others)):\n    f(x, z).backward()", {"z"}),
    ("for (x, y), z in zip(batches, others):\n    f(x).backward()", set()),
    ("n = 0\nfor x, y in batches:\n    f(x).backward()\n    n += g(y)\nrun.save({'n': n}, 'n.pt')", {"n"}),
    (
        "n = 0\nfor x, y in batches:\n    f(x).backward()\n    n += g(y)\nkept = []\nkeep(kept, n)\nrun.save(kept, 'n.pt')",
        {"n"},
    ),
    ("meter = Meter()\nfor x, y in batches:\n    f(x, meter.total).backward()\n    meter.update(x)", {"total"}),
]


@pytest.mark.parametrize(("loops", "names"), LEFT)
def test_what_bodies_leave_to_later_ones_of_the_same_pass_is_read_from_the_source(loops: str, names: set[str]) -> None:
    meter = "class Meter:\n    def __init__(self):\n        self.total = 0\n    def update(self, x):\n        self.total += x\n"
    before = f"{meter}def keep(kept, value):\n    kept.append(value)\nn = 0\nfor epoch in run.epochs(4):\n"
    tree = parse(before + "".join(f"    {line}\n" for line in loops.splitlines()))
    place = next(node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "batches")
    assert {key.name for key, _, _ in Slice([tree], tree).left_in_pass((tree, place), (), ["batches"])} == names
