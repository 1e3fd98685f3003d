"""A job that is heavy to move or slow to step: for campaigns.

    train_heavy.py OUTPUT [--layers L] [--steps S] [--pace SECONDS]

Its model has L layers of 256 MiB, and its optimizer a momentum for each parameter: a checkpoint has 512 MiB for each layer. A
micro-batch lasts `--pace`. What it writes is the digest of its state, and the steps that have been done.
"""

import argparse
import hashlib
import json
import time
from pathlib import Path

import torch
from torch import nn

import elasticd as elastic

WIDTH = 8192


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--pace", type=float, default=0.0)
    options = parser.parse_args()

    run = elastic.join(virtual_workers=2)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(options.layers)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    data = torch.utils.data.TensorDataset(
        torch.randn(2 * options.steps, WIDTH, generator=torch.Generator().manual_seed(1))
    )
    model, optimizer, batches = run.prepare(model, optimizer, data, batch_size=1)
    for _ in run.epochs(1):
        for (x,) in batches:
            time.sleep(options.pace)
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
        digest.update(optimizer.state[parameter]["momentum_buffer"].numpy().tobytes())
    if run.is_leader:
        Path(options.output).write_text(json.dumps({"digest": digest.hexdigest(), "steps": run.steps_done}))


if __name__ == "__main__":
    main()
