"""The examples of `docs/scripts.md` run unchanged, each section's in a separate process."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from ..forked import Scripts

PAGE = Path(__file__).parents[2] / "docs/scripts.md"
OPTIONAL = {
    "wds": "webdataset",
    "datasets": "datasets",
    "torchmetrics": "torchmetrics",
}  # names that the examples use, and their definitions

# Definitions that the reader has, by section.
COMMON = """
import copy, glob, io, json, math, os, tarfile, time
from collections import deque
import torch
from torch import nn
import elasticd as elastic

torch.manual_seed(1)
"""
BEFORE = {
    "Data with an index": "dataset = torch.utils.data.TensorDataset(torch.randn(60, 1), torch.randn(60, 1))",
    "Loops that are not yours": "dataset = torch.utils.data.TensorDataset(torch.randn(60, 1), torch.randn(60, 1))",
    "Losses that are evaluated several times": "dataset = torch.randn(60, 1), torch.randn(60, 1)",
    "Batches that grow": "dataset = torch.randn(60, 1), torch.randn(60, 1)",
    "Losses over the whole global batch": """
dataset = torch.randn(64, 3), torch.randn(64, 3)

class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, image, text):
        return self.image(image), self.text(text)
""",
    "Two updates from a batch": """
dataset = torch.utils.data.TensorDataset(torch.randn(60, 1), torch.randn(60, 1))
generator, discriminator = nn.Linear(3, 1), nn.Linear(1, 1)
""",
    "Data that is read in sequence": """
os.makedirs("data")
rows = [(float(number), 2.0 * number) for number in range(60)]
for shard in range(6):
    part = rows[10 * shard : 10 * shard + 10]
    with open(f"data/{shard}.csv", "w") as file:
        file.writelines(f"{x},{y}\\n" for x, y in part)
    with open(f"data/{shard}.jsonl", "w") as file:
        file.writelines(json.dumps({"x": [x], "y": [y]}) + "\\n" for x, y in part)
    with tarfile.open(f"data/{shard}.tar", "w") as archive:
        for x, y in part:
            for name, value in (("x", x), ("y", y)):
                member = tarfile.TarInfo(f"{x:04.0f}.{name}.json")
                content = json.dumps([value]).encode()
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
with open("corpus.jsonl", "w") as file:
    file.writelines(json.dumps({"x": [x], "y": [y]}) + "\\n" for x, y in rows)
""",
    "Evaluation, averages and decisions": """
numbers = torch.linspace(-1, 1, 60).reshape(-1, 1)
train_set = torch.utils.data.TensorDataset(numbers[:48], 2 * numbers[:48])
test_set = torch.utils.data.TensorDataset(numbers[48:], 2 * numbers[48:])
""",
    "State that the loop changes": "dataset = torch.randn(90, 1), torch.randn(90, 1)",
    "Values of your own": "dataset = test_set = torch.randn(64, 1), torch.randn(64, 1)",
}
# Checks of the names that each example defines.
AFTER = {
    "Values of your own": """
def check(names):
    assert names["run"].steps_done == 8
    if "state" in names:
        state = names["state"]
        assert (state.step, len(state.memory)) == (8, 8) and state.best < math.inf
        assert all(torch.equal(old, new) is False for old, new in zip(state.shadow, names["model"].parameters()))
    if "best_weights" in names:
        assert names["best"] < math.inf and names["patience"] < 2
    if "teacher" in names:
        assert not torch.equal(names["teacher"].weight, names["model"].weight)
""",
    "Loops that are not yours": """
def check(names):
    assert names["run"].steps_done == 2 * 4
""",
    "Data with an index": """
def check(names):
    assert names["run"].steps_done >= 2 * (60 // (4 * 4))
""",
    "Losses that are evaluated several times": """
def check(names):
    assert names["run"].steps_done == 2 * 4
    (state,) = names["optimizer"].state.values()
    assert state["func_evals"] > 2 * 2 * 4
""",
    "Batches that grow": """
def check(names):
    assert names["run"].steps_done == 3 * (4 + 2 + 1)
    assert names["scheduler"].last_epoch == 9 * 4
""",
    "Two updates from a batch": """
def check(names):
    assert names["run"].steps_done == 2 * 2 * 4
""",
    "Data that is read in sequence": """
def numbers(sample):
    sample = sample["x"] if isinstance(sample, dict) else sample[0]
    return float(sample[0])

def check(names):
    if "batches" in names:
        assert names["run"].steps_done >= 2 * 60 // (4 * 4)
    shards = names["dataset"] if "dataset" in names else names["shards"]
    found = [numbers(sample) for shard in range(len(shards.shards)) for sample in shards.open(shard)]
    assert sorted(found) == [float(number) for number in range(60)], found
""",
    "Evaluation, averages and decisions": """
def check(names):
    run, model = names["run"], names["model"]
    by_hand = ((model(numbers[48:]) - 2 * numbers[48:]) ** 2).sum().item()
    if "error" in names:
        assert abs(float(names["error"].compute()) * 12 - by_hand) < 1e-4
    if "total" in names:
        assert abs(names["total"]["loss"] - by_hand) < 1e-4 and names["total"]["count"] == 12
    if "best" in names:
        assert names["bad"] == 3 and run.steps_done < 300, (names["bad"], run.steps_done)
        assert abs(names["loss"] - by_hand) < 1e-4, (names["loss"], by_hand)
    if "validate" in names:
        assert run.steps_done == 6 and run.means["loss"] > 0
""",
    "State that the loop changes": """
def check(names):
    steps = names["run"].steps_done
    if "averaged" in names:
        assert steps == 18
        assert int(names["averaged"].n_averaged) == names["warm_up"].last_epoch == steps
        assert names["plateau"].last_epoch == 3
        assert names["optimizer"].param_groups[0]["weight_decay"] == 1e-4 * 17
    else:
        assert steps == 12
        assert not torch.equal(names["average"].weight, nn.Linear(1, 1).weight)
""",
}


def sections() -> dict[str, list[str]]:
    """The examples of the page, by heading."""
    found: dict[str, list[str]] = {}
    for section in PAGE.read_text().split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        if examples := re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            found[heading] = examples
    return found


def needed(example: str) -> dict[str, str]:
    return {name: module for name, module in OPTIONAL.items() if re.search(rf"\b{name}\.", example)}


def available(example: str) -> bool:
    return all(importlib.util.find_spec(module) is not None for module in needed(example).values())


@pytest.mark.parametrize("heading", sections())
def test_the_examples_of_a_section_run(scripts: Scripts, heading: str, tmp_path: Path) -> None:
    examples = [example for example in sections()[heading] if available(example)]
    lines = [COMMON, BEFORE.get(heading, ""), AFTER.get(heading, "def check(names): pass")]
    lines += [f"import {module} as {name}" for name, module in needed("\n".join(examples)).items()]
    for example in examples:
        lines += [
            "model = nn.Linear(1, 1)",
            "optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)",
            "loss_fn = nn.MSELoss()",
            "names = dict(globals())",
            f"exec(compile({example!r}, 'docs/scripts.md', 'exec'), names)",
            "check(names)",
        ]
    script = tmp_path / "examples.py"
    script.write_text("\n".join(lines) + "\n")
    environment = {"ELASTIC_VIRTUAL_WORKERS": "4", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = scripts.run(script, cwd=tmp_path, variables=environment)
    assert done.returncode == 0, done.stderr
