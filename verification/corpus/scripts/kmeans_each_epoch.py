"""Cluster centres computed anew each epoch from features, as DeepCluster and PCL do."""

import torch
from torch import nn

import elasticd as elastic


def kmeans(features, k):
    centres = features[torch.randperm(len(features))[:k]].clone()
    for _ in range(5):
        label = torch.cdist(features, centres).argmin(1)
        for i in range(k):
            if (label == i).any():
                centres[i] = features[label == i].mean(0)
    return centres, label


torch.manual_seed(0)
x = torch.randn(128, 8)
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, torch.arange(128)), batch_size=4)
for epoch in run.epochs(4):
    with torch.no_grad():
        centres, label = kmeans(model(x), 5)
    for inputs, index in batches:
        logits = -torch.cdist(model(inputs), centres)
        nn.functional.cross_entropy(logits, label[index]).backward()
        optimizer.step()
run.save(model, "model.pt")
