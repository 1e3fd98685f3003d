"""One of `examples.frameworks`, slowed down so that something can happen to it: `train_framework.py NAME RESULT.pt`."""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[2]))  # `examples` is not installed

BODY_S = 0.02


def main(name: str, path: str) -> None:
    task = importlib.import_module("examples.frameworks.task")
    task.on_samples = lambda indices: time.sleep(BODY_S)
    _, document = importlib.import_module(f"examples.frameworks.{name}").train()
    temporary = Path(f"{path}.{time.time_ns()}")
    torch.save(document, temporary)
    temporary.replace(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
