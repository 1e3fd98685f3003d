"""Scripts whose workers are equal by their seeds, or not equal at all: `train_unequal.py KIND DIRECTORY [--slowly]`.

Each worker writes which samples its loop bodies have used, and what it has drawn before it joined. KIND says what it draws, or
where the worker with an odd number has other data.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import elasticd as elastic

KIND, DIRECTORY = sys.argv[1], Path(sys.argv[2])
LABELS = ["cat", "dog", "bird", "fish", "horse", "cow", "ant", "bee"] * 4
KINDS = ["full", "sliding", "linear", "conv", "mamba"]
PACE_S = 1.0 if "--slowly" in sys.argv else 0.05
ODD = int(os.environ.get("ELASTICD_WORKER", "0").rpartition(".")[2]) % 2 == 1

names = [f"image-{number:02d}.png" for number in range(32)]
labels = {label: number for number, label in enumerate(set(LABELS))}
if KIND == "shuffled":
    random.shuffle(names)
if KIND == "split":
    names = [names[index] for index in torch.utils.data.random_split(range(32), [24, 8])[0].indices]
if KIND == "reversed" and ODD:
    names.reverse()


class Files(torch.utils.data.Dataset[Any]):
    def __init__(self, files: list[str]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(self.files[index][6:8])]), self.files[index]


def main() -> None:
    layers = nn.ModuleDict({kind: nn.Linear(1, 1) for kind in set(KINDS)})
    optimizer = torch.optim.Adam(layers.parameters(), lr=1e-3)
    drawn = {"names": names, "labels": labels, "layers": list(layers), "weight": layers["conv"].weight.item()}
    (DIRECTORY / f"drawn.{os.getpid()}").write_text(json.dumps(drawn))
    run = elastic.join()
    model, optimizer, batches = run.prepare(layers, optimizer, Files(names), batch_size=2, shuffle=False)
    for epoch in run.epochs(2):
        for x, used in batches:
            with (DIRECTORY / f"used.{os.getpid()}").open("a") as file:
                file.write("".join(f"{epoch} {name} {run.steps_done}\n" for name in used))
            sum((number + 1) * layer(x).mean() for number, layer in enumerate(model.values())).backward()
            optimizer.step()
            time.sleep(PACE_S)
        tested = list(names)
        if KIND == "evaluated" and ODD:
            tested = [name.replace("image-", "photo-") for name in tested]
        run.evaluate(lambda batch: batch[0].sum(), Files(tested), batch_size=4)
    run.save({name: layer.weight for name, layer in model.items()}, DIRECTORY / f"model.{run.virtual_workers}.pt")


if __name__ == "__main__":
    main()
