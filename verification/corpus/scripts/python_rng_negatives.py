"""Negatives sampled by a `random.Random` of the script's own, as recommenders (BPR, NCF) do."""

import random

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
users = torch.randint(0, 10, (128,))
items = (users * 3 + torch.randint(0, 3, (128,))) % 20
model = nn.ModuleDict({"user": nn.Embedding(10, 6), "item": nn.Embedding(20, 6)})
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
sampler = random.Random(7)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (users, items), batch_size=4)
for epoch in run.epochs(4):
    for user, item in batches:
        negative = torch.tensor([sampler.randrange(20) for _ in user])
        u = model["user"](user)
        better = (u * model["item"](item)).sum(1) - (u * model["item"](negative)).sum(1)
        (-nn.functional.logsigmoid(better).mean()).backward()
        optimizer.step()
run.save(model, "model.pt")
