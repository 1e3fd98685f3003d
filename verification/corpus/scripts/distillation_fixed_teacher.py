"""Distillation from a teacher that never changes, as Hinton's and DistilBERT's loops."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
teacher = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).eval()
model = nn.Linear(8, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x,), batch_size=4)
for epoch in run.epochs(4):
    for (inputs,) in batches:
        with torch.no_grad():
            soft = (teacher(inputs) / 2).softmax(1)
        student = (model(inputs) / 2).log_softmax(1)
        nn.functional.kl_div(student, soft, reduction="batchmean").backward()
        optimizer.step()
run.save(model, "model.pt")
