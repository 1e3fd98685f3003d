"""`master_process = run.is_leader` before the batches, and `if master_process: estimate_loss()` in the body, after nanoGPT."""

import torch
from torch import nn

import elasticd as elastic


@torch.no_grad()
def estimate_loss():
    model.eval()
    picked = torch.randint(0, 128, (8,))
    loss = nn.functional.mse_loss(model(x[picked]), y[picked]).item()
    model.train()
    return loss


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    master_process = run.is_leader
    for inputs, targets in batches:
        if run.steps_done % 10 == 0 and master_process:
            print(f"step {run.steps_done}: loss {estimate_loss():.4f}")
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
