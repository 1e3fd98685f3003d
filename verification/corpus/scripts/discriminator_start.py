"""A second loss begins at a step, `disc_factor = adopt_weight(1.0, global_step, threshold=disc_start)`, as in VQGAN."""

import torch
from torch import nn

import elasticd as elastic


def adopt_weight(weight, global_step, threshold=0, value=0.0):
    if global_step < threshold:
        weight = value
    return weight


torch.manual_seed(0)
x = torch.randn(128, 8)
model = nn.Sequential(nn.Linear(8, 3), nn.Tanh(), nn.Linear(3, 8))
critic = nn.Linear(8, 1).requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
global_step = 0
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x,), batch_size=4)
for epoch in run.epochs(6):
    for (inputs,) in batches:
        decoded = model(inputs)
        disc_factor = adopt_weight(1.0, global_step, threshold=132)
        loss = nn.functional.l1_loss(decoded, inputs) - disc_factor * critic(decoded).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        global_step += 1
run.save(model, "model.pt")
