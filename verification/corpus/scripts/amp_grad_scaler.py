"""Mixed precision with a `GradScaler` made elastic, as PyTorch's AMP recipe."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
run = elastic.join()
scaler = run.scaler(torch.amp.GradScaler("cpu"))
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = model(inputs)
        loss = nn.functional.mse_loss(output.float(), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
run.save(model, "model.pt")
