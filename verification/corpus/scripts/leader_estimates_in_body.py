"""`if steps % 10 == 0 and is_leader: estimate_loss()` at the top of the body, as nanoGPT's loop on its master process."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = []
    for _ in range(3):
        picked = torch.randint(0, 128, (8,))
        losses.append(nn.functional.mse_loss(model(x[picked]), y[picked]).item())
    model.train()
    return sum(losses) / len(losses)


run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        if run.steps_done % 10 == 0 and run.is_leader:
            print(f"step {run.steps_done}: loss {estimate_loss():.4f}")
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
