"""A NamedTuple of the training's state, replaced after each batch, as code that comes from JAX and Flax does."""

from typing import NamedTuple

import torch
from torch import nn

import elasticd as elastic


class TrainState(NamedTuple):
    step: int
    scale: float


def train_step(state, model, optimizer, batch):
    inputs, targets = batch
    loss = nn.functional.mse_loss(model(inputs), targets)
    if state.step >= 160:
        loss = loss + state.scale * model.weight.abs().sum()
    loss.backward()
    optimizer.step()
    return state._replace(step=state.step + 1), loss.item()


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
state = TrainState(step=0, scale=0.05)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(6):
    for batch in batches:
        state, loss = train_step(state, model, optimizer, batch)
run.save(model, "model.pt")
