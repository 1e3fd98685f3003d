"""Variables that count loop bodies, as the source of a loop shows them. Their values: `test_script_variables`."""

from __future__ import annotations

import ast

import pytest

from elasticd.worker.source.effects import Effects
from elasticd.worker.variables.body_counters import counters_in, yields_in

FUNCTIONS = """
memory, seen = [], 0

def weight(n):
    parts = [1.0]
    parts.append(n / 10)
    return sum(parts)

def push(item, at):
    if at % 70 == 69:
        memory.clear()
        memory.append(item)
    return len(memory)

def push_twice(item, at):
    return push(item, at) + push(item, at + 1)

def count(n):
    global seen
    seen = n

class Criterion(Module):
    def forward(self, output, target, n):
        if n % 68 == 0:
            self.center = output.mean(0)
        return distance(output - self.center, target)

criterion = Criterion()
"""


def counters(body: str) -> list[tuple[str, int]]:
    loop = ast.parse("for x, y in batches:\n" + "".join(f"    {line}\n" for line in body.splitlines())).body[0]
    assert isinstance(loop, ast.For)
    return [tuple(each) for each in counters_in(loop, {"phase", "target"}, Effects([ast.parse(FUNCTIONS)]))]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("n += 1", [("n", 1)]),
        ("optimizer.step()\nn = n + 2", [("n", 2)]),
        ("self.steps += 1\nif self.steps % 100 == 0:\n    log(self.steps)", [("self.steps", 1)]),
        ("self.step += 1\nself.optimizer.step()\nwriter.add_scalar('loss', loss, self.step)", [("self.step", 1)]),
        ("with autocast():\n    loss = f(x)\n    n += 1", [("n", 1)]),
        ("n += 1\nif bad(x):\n    continue\nm += 1", [("n", 1)]),
    ],
)
def test_a_statement_that_each_body_reaches_counts_bodies(body: str, found: list[tuple[str, int]]) -> None:
    assert counters(body) == found


@pytest.mark.parametrize(
    "body",
    [
        "if good(x):\n    n += 1",
        "for z in x:\n    n += 1",
        "try:\n    n += 1\nexcept ValueError:\n    pass",
        "n += 1\nif late(x):\n    n = 0",
        "n += 1\nn += 1",
        "n += len(x)",
        "n += 0.5",
        "n += True",
        "n -= 1",
        "n = 1 + m",
        "counts['a'] += 1",
        "counts[0].n += 1",
        "def more():\n    n += 1",
    ],
)
def test_other_changes_do_not(body: str) -> None:
    assert counters(body) == []


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("yield x", 1),
        ("if i % 2:\n    yield x\nelse:\n    yield y", 1),
        ("with timer():\n    z = f(x)\n    yield z", 1),
        ("yield x\nif late(x):\n    continue", 1),
        ("yield x\nyield y", 2),
        ("f(x)", 0),
        ("if i % 2:\n    yield x", None),
        ("if bad(x):\n    continue\nyield x", None),
        ("for part in x:\n    yield part", None),
        ("yield from x", None),
    ],
)
def test_the_yields_of_a_pass_are_counted(body: str, found: int | None) -> None:
    assert yields_in(ast.parse(body).body) == found


@pytest.mark.parametrize(
    "body",
    [
        "weight = min(1.0, n / 100)\nloss = weight * f(x)\nloss.backward()\ntotal += loss.item()\nn += 1",
        "n += 1\nif n % 100 == 0:\n    print(n, loss)",
        "loss = f(x)\nif n > 10:\n    loss = loss + g(x)\nloss.backward()\nn += 1",
        "noise = schedule(n)\nloss = f(x + noise)\nloss.backward()\nhistory.append(loss.item())\nn += 1",
        "writer.add_scalar('loss', loss, n)\nn += 1",
        "loss = weight(n) * f(x)\nloss.backward()\nn += 1",
        "n += 1\nif n > 100 and not finite(loss):\n    raise ValueError(n)",
        "for t in range(5):\n    teaches = draw() < threshold(n)\n    value = x[t] if teaches else value_of(x)\nn += 1",
    ],
)
def test_what_bodies_compute_from_a_counter_ends_with_them(body: str) -> None:
    assert counters(body) == [("n", 1)]


@pytest.mark.parametrize(
    "body",
    [
        "n += 1\nif n % 4 == 0:\n    memory.clear()",
        "n += 1\nif n % 4 == 0:\n    p.copy_(p + 1)",
        "n += 1\nif n % 4 == 0:\n    target = model.state_dict()",
        "n += 1\nif n % 4 == 0:\n    run.save(model, path)",
        "phase = n // 4\nn += 1\nif phase % 2:\n    update(teacher)",
        "update(teacher, n)\nn += 1",
        "n += 1\nif good(x):\n    phase = n // 4",
        "model.temperature = 1 / (1 + n)\nn += 1",
        "n += 1\nif n % 4 == 0:\n    loss = 0\nelse:\n    seen += 1",
        "while n > late:\n    late += 1\nn += 1",
        "due = n % 4 == 0 and good(x)\nif due:\n    memory.clear()\nn += 1",
        "due = bool(n % 4 == 0 or good(x))\nonce = not due\nif once:\n    memory.clear()\nn += 1",
        "k: int = n % 4\nif k == 0:\n    memory.clear()\nn += 1",
        "if (k := n % 4) > 2:\n    print(k)\nif k == 0:\n    memory.clear()\nn += 1",
        "if trainer.state.n % 4 == 0:\n    memory.clear()\nstate.n += 1",
        "size = push(x, at=n)\nn += 1",
        "if n > 10 and push_twice(x, n) > 2:\n    print(n)\nn += 1",
        "loss = criterion(model(x), y, n)\nloss.backward()\nn += 1",
        "if n % 4 == 0:\n    loss = criterion(model(x), y, 0)\nelse:\n    loss = f(x)\nn += 1",
        "oldest = memory.pop(n % 4)\nn += 1",
        "print(count(n))\nn += 1",
    ],
)
def test_a_variable_by_which_bodies_decide_about_what_lasts_is_no_counter(body: str) -> None:
    assert counters(body) == []
