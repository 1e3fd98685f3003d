"""SimCLR whose views are gathered by `torch.distributed.all_gather`, as ports to DDP do."""

import torch
import torch.distributed as dist
from torch import nn

import elasticd as elastic


def gathered(own):
    parts = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own)
    parts[dist.get_rank()] = own
    return torch.cat(parts)


torch.manual_seed(0)
x = torch.randn(128, 8)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x,), batch_size=4)
for epoch in run.epochs(4):
    for (inputs,) in batches:
        views = [model(inputs + 0.1 * torch.randn_like(inputs)) for _ in range(2)]
        first, second = (gathered(nn.functional.normalize(view, dim=1)) for view in views)
        both = torch.cat([first, second])
        similar = (both @ both.T / 0.5).masked_fill(torch.eye(len(both), dtype=torch.bool), -1e9)
        nn.functional.cross_entropy(similar, torch.arange(len(both)).roll(len(first))).backward()
        optimizer.step()
run.save(model, "model.pt")
