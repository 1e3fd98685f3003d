"""A mean teacher whose weights follow the student's and give a consistency loss, as in Mean Teacher and UDA ports."""

import copy

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = (x[:, 0] > 0).long()
model = nn.Linear(8, 2)
teacher = copy.deepcopy(model)
for p in teacher.parameters():
    p.requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, labels in batches:
        logits = model(inputs)
        consistency = nn.functional.mse_loss(logits.softmax(1), teacher(inputs + 0.1).softmax(1))
        (nn.functional.cross_entropy(logits, labels) + consistency).backward()
        optimizer.step()
        for t, p in zip(teacher.parameters(), model.parameters()):
            t.data.mul_(0.99).add_(p.data, alpha=0.01)
run.save(model, "model.pt")
