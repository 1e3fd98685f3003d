"""A small ResNet-like network with BatchNorm and Dropout, as every CIFAR script."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 1, 6, 6)
y = (x.mean((1, 2, 3)) > 0).long()
model = nn.Sequential(
    nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(144, 2)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    model.train()
    correct = total = 0
    for inputs, labels in batches:
        logits = model(inputs)
        nn.functional.cross_entropy(logits, labels).backward()
        optimizer.step()
        correct, total = correct + int((logits.argmax(1) == labels).sum()), total + len(labels)
    print(f"accuracy {correct / total:.3f}")
run.save(model, "model.pt")
