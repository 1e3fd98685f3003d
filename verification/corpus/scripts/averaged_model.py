"""torch's `AveragedModel` as an exponential average, as its documentation shows."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        ema.update_parameters(model)
run.save(ema, "ema.pt")
run.save(model, "model.pt")
