"""The trainer's state in a dataclass with slots, whose counter warms the loss up, as Hugging Face's `TrainerState`."""

import dataclasses

import torch
from torch import nn

import elasticd as elastic


@dataclasses.dataclass(slots=True)
class TrainerState:
    seen: int = 0
    scale: float = 0.1


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
trainer_state = TrainerState()
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        (nn.functional.mse_loss(model(inputs), targets) * trainer_state.scale).backward()
        optimizer.step()
        trainer_state.seen += len(inputs)
        trainer_state.scale = min(1.0, 0.1 + trainer_state.seen / 400)
run.save(model, "model.pt")
