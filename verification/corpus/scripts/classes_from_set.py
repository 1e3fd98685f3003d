"""Class numbers from `list(set(names))`, as in many scripts for folders of images."""

import torch
from torch import nn

import elasticd as elastic

names = ["cat", "dog", "bird", "fish", "horse", "cow", "ant", "bee"] * 16
classes = list(set(names))
number = {name: i for i, name in enumerate(classes)}
torch.manual_seed(0)
x = torch.randn(128, 8)
y = torch.tensor([number[name] for name in names])
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, labels in batches:
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
run.save(model, "model.pt")
