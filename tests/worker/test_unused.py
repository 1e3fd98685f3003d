"""Values that reach displays alone, and others, by the script's source."""

from __future__ import annotations

import textwrap

import pytest

from elasticd.worker.kept import Difference, Kind, Node
from elasticd.worker.source.syntax import parse
from elasticd.worker.source.unused import Uses

METER = """
class Meter:
    def __init__(self, name):
        self.name, self.total, self.count, self.ratio = name, 0.0, 0, 0.0

    def update(self, value, n=1):
        self.total += value * n
        self.count += n
        self.ratio = self.total / self.count

    @property
    def average(self):
        return self.total / self.count

    def __str__(self):
        return "{name} {ratio:.3f}".format(**self.__dict__)

def reset():
    model.reset()

def begin_anew():
    reset()

def show():
    print("shown")

class Rate:
    def __init__(self):
        self.value = 1.0

    def fall(self):
        self.value *= 0.9

n = 0
meter, rate = Meter("loss"), Rate()
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, data, batch_size=4)
for epoch in run.epochs(4):
    for x, y in batches:
        loss = f(model(x), y)
        loss.backward()
        optimizer.step()
        meter.update(loss.item(), len(x))
        n += 1
{body}
{between}
"""


def is_without_effect(name: str, owners: tuple[str, ...], body: str = "", between: str = "", before: str = "") -> bool:
    text = METER.replace("{body}", textwrap.indent(body, 8 * " ")).replace(
        "{between}", textwrap.indent(between, 4 * " ")
    )
    tree = parse(before + text)
    return Uses([tree], tree).is_without_effect(Difference(name, Node(1, Kind.PLAIN, "int"), None, owners))


LOGGED = [
    "print(f'{n} {meter}')",
    "if n % 10 == 0:\n    print(meter.average, n)",
    "logger.info('%s %d', meter, n)",
    "shown = f'{n}: {meter.total / meter.count}'\nif n > 3:\n    print(shown)",
    "with torch.no_grad():\n    print(n, meter.count)",
    "writer.add_scalar('loss', meter.average, n)",
    "steps = []\nsteps.append((n, meter.average))",
    "if n > 3 and meter.count > 3:\n    show()",
    "with open(path, 'a') as file:\n    file.write(f'{n} {meter.count}')",
]
ACTS = [
    "if n > 3 and meter.average < 1:\n    run.stop()",
    "(loss * n * meter.average).backward()",
    "torch.save({'n': n, 'mean': meter.average}, path)",
    "send(n, meter.average)",
    "if n > 3 and meter.count > 3:\n    model.reset()",
    "if n > 3 and meter.count > 3:\n    reset()",
    "if n > 3 and meter.count > 3:\n    begin_anew()",
    "(loss * rate.value).backward()\nif n > 3 and meter.count > 3:\n    rate.fall()",
    "for p in model.parameters():\n    p.data.mul_(n * meter.average)",
    "for p in model.parameters():\n    p -= n * meter.count",
    "for group in optimizer.param_groups:\n    group['lr'] = 1 / (n + meter.count)",
    "raise ValueError(n + meter.count)",
    "n > 3 and meter.count > 3 and reset()",
    "for k in range(4):\n    loss = loss + g(x)\n    if n > 3 and meter.count > k:\n        break\nloss.backward()",
    "try:\n    first = table[n + meter.count]\nexcept KeyError:\n    model.reset()",
    "scheduler = LambdaLR(optimizer, lambda step: 0.9 ** (n + meter.count))\nscheduler.step()",
    "handle = model.register_forward_hook(Scale(n, meter.count))",
    "model.load_state_dict(kept[n + meter.count])",
    "print(eval('n * meter.count'))",
    "with scaled(n, meter.total, meter.count):\n    g(x)",
    "model.scale = n * meter.average",
    "first = model.layers[0]\nfirst.rate = n + meter.count",
    "steps = all_steps['train']\nsteps.append(n + meter.count)",
    "assert n < 100 and meter.average > 0",
    "old = reset() if n > 3 and meter.count > 3 else None",
    "old = n + meter.count > 3 and reset()",
    "all_of_them = [reset() for _ in range(n + meter.count)]",
    "all_of_them = [reset() for k in range(4) if k < n + meter.count]",
    "n + meter.count > 3 and run.stop()",
    "if n + meter.count > 3:\n    del model.head",
    "data.level = n + meter.count",
    "data.append(n + meter.count)",
    "scheduler = LambdaLR(optimizer, lr_lambda=lambda epoch: 1 / (n + meter.count))",
    "if n + meter.count > 3:\n    averaged.update_parameters(model)",
    "torch.nn.utils.clip_grad_norm_(model.parameters(), n + meter.count)",
    "plateau.step(n + meter.count)",
    "trial.report(n + meter.count, step=1)\nif trial.should_prune():\n    break",
    "with contextlib.suppress(ZeroDivisionError):\n    part = 1 / (n + meter.count)\n    model.reset()",
    "if n + meter.count > 3:\n    import plugin",
    "if n + meter.count > 3:\n    del weights['b']",
]


@pytest.mark.parametrize("body", LOGGED)
@pytest.mark.parametrize(
    ("name", "owners"), [("n", ()), ("meter.count", ("Meter",)), ("shown.meter.total", ("function", "Meter"))]
)
def test_what_only_displays_read_has_no_effect(body: str, name: str, owners: tuple[str, ...]) -> None:
    assert is_without_effect(name, owners, body)
    assert is_without_effect(name, owners, between=body)


@pytest.mark.parametrize("body", ACTS)
@pytest.mark.parametrize(("name", "owners"), [("n", ()), ("meter.count", ("Meter",))])
def test_what_other_statements_read_may_act(body: str, name: str, owners: tuple[str, ...]) -> None:
    assert not is_without_effect(name, owners, body)
    assert not is_without_effect(name, owners, between=body)


@pytest.mark.parametrize(
    ("name", "owners", "body"),
    [
        ("meter.count", ("Meter",), "pickle.dump(meter, file)"),
        ("meters['loss'].count", ("dict", "Meter"), "torch.save({'meters': meters}, path)"),
        ("meter.count", ("Meter",), "logged = vars(meter)\nsend(logged)"),
        ("meter.count", ("dict",), ""),
        ("bar.n", ("tqdm",), ""),
        ("unknown", (), ""),
    ],
)
def test_objects_that_others_get_may_act_by_any_part(name: str, owners: tuple[str, ...], body: str) -> None:
    assert not is_without_effect(name, owners, body)


def test_attributes_of_a_class_with_a_base_of_others_may_act() -> None:
    before = "class Timer(threading.Thread):\n    def tick(self):\n        self.ticks += 1\n"
    assert not is_without_effect("timer.ticks", ("Timer",), before=before)
    assert is_without_effect("timer.ticks", ("Timer",), before=before.replace("(threading.Thread)", ""))


@pytest.mark.parametrize("owner", ["model", "Net"])
def test_a_value_that_decides_about_a_method_may_act(owner: str) -> None:
    before = "class Net(nn.Module):\n    def forward(self, x):\n        return x\nmodel = Net()\n"
    body = f"if n + meter.count > 3:\n    {owner}.forward = other"
    assert not is_without_effect("n", (), body, before=before)
    assert not is_without_effect("meter.count", ("Meter",), body, before=before)


@pytest.mark.parametrize(
    ("parameter", "line"),
    [
        ("*values", "push(n, meter.count)"),
        ("*values", "push(*[n, meter.count])"),
        ("first, *values", "push(0, n, meter.count)"),
        ("**values", "push(n=n, count=meter.count)"),
        ("**values", "push(**{'n': n, 'count': meter.count})"),
        ("values", "push(**{'values': (n, meter.count)})"),
        ("*, values", "push(values=(n, meter.count))"),
    ],
)
def test_what_a_function_gets_reaches_the_parameters_that_unpack_it(parameter: str, line: str) -> None:
    before = f"kept = []\ndef push({parameter}):\n    kept.append(values)\n"
    body = f"{line}\n(loss * kept[-1]).backward()"
    assert not is_without_effect("n", (), body, before=before)
    assert not is_without_effect("meter.count", ("Meter",), body, before=before)
    assert is_without_effect("n", (), line, before=before)


@pytest.mark.parametrize("name", ["__setattr__", "__setitem__", "__iadd__", "__add__"])
def test_nothing_is_known_of_a_script_whose_classes_act_where_it_assigns(name: str) -> None:
    before = f"class Options:\n    def {name}(self, *given):\n        model.scale = given\n"
    assert not is_without_effect("n", (), before=before)
    assert is_without_effect("n", (), before=before.replace(name, "show"))


def test_nothing_is_known_of_a_script_with_a_setter() -> None:
    before = "class Options:\n    @rate.setter\n    def rate(self, given):\n        model.scale = given\n"
    assert not is_without_effect("n", (), before=before)


def test_results_of_functions_that_others_call_may_act() -> None:
    before = "class Scale:\n    def {}(self):\n        return self.rate\n    def fall(self):\n        self.rate -= 1\n"
    assert not is_without_effect("scale.rate", ("Scale",), before=before.format("__len__"))
    assert is_without_effect("scale.rate", ("Scale",), before=before.format("__str__"))


def test_variables_of_a_generator_are_found_by_its_name() -> None:
    body = "    for x in batches:\n        yield x\n        print(end)\n        end = end + 1\n"
    before = f"def timed(batches):\n    end = 0\n{body}"
    assert is_without_effect("timed.end", (), before=before)
    assert not is_without_effect("timed.end", (), before=before.replace("yield x", "yield x, end"))


def test_what_a_function_that_others_call_changes_may_act() -> None:
    before = "class Scale:\n    calls = 0\n    def hook(self, module, inputs):\n        self.calls += 1\n"
    line = "        module.scale = self.calls\n"
    assert is_without_effect("scale.calls", ("Scale",), before=before)
    assert not is_without_effect("scale.calls", ("Scale",), before=before + line)


def displays(text: str, name: str) -> bool:
    tree = parse(text)
    return Uses([tree], tree).is_display(name)


SHOWN = """
for epoch in run.epochs(2):
    running, seen, pool, best, beta = 0.0, 0, [], 0.0, 1.0
    for i, (x, y) in enumerate(batches):
        loss = model(x).mean() * beta
        loss.backward()
        optimizer.step()
        running += loss.item()
        seen += 1
        meter.update(loss.item(), len(x))
        pool.append(x)
        best = max(best, loss.item())
        if seen % 10 == 0:
            rate = running / seen
            print(rate, meter)
            running = 0.0
        if best > 1:
            beta = 0.5
    mix(pool)
"""


@pytest.mark.parametrize("name", ["running", "seen", "rate", "meter"])
def test_variables_that_only_logs_read_are_known(name: str) -> None:
    assert displays(SHOWN, name)


@pytest.mark.parametrize("name", ["pool", "best", "beta", "loss", "model"])
def test_variables_that_other_statements_read_are_known(name: str) -> None:
    assert not displays(SHOWN, name)


KEPT = """
def push(item, at):
    memory.append((item, at))
    return len(memory)

def set_rate(options, value):
    options["lr"] = value

for epoch in run.epochs(2):
    rate, decay, third, step, last = next(rates), 0.5 * decay, 0.1 * epoch, 0, next(others)
    for group in optimizer.param_groups:
        group["lr"] = rate
    first = optimizer.param_groups[0]
    first["weight_decay"] = decay
    if third > 0.1:
        first["momentum"] = 0.5
    set_rate(first, last)
    for x in batches:
        f(model(x), memory).backward()
        optimizer.step()
        size = push(x, step)
        step += 1
"""


@pytest.mark.parametrize("name", ["rate", "rates", "decay", "third", "step", "others", "last"])
def test_variables_from_which_an_object_under_another_name_gets_a_value_are_not_for_displays_alone(name: str) -> None:
    assert not displays(KEPT, name)
    assert displays(KEPT, "size")
