"""Thresholds by class from the samples that were sure so far, which an object counts, as FlexMatch's ports do."""

from collections import Counter

import torch
from torch import nn

import elasticd as elastic


class Thresholds:
    def __init__(self, samples, classes, cutoff=0.6):
        self.selected = torch.full((samples,), -1)
        self.classwise_acc = torch.zeros(classes)
        self.cutoff = cutoff

    def update(self):
        counts = Counter(self.selected.tolist())
        if max(counts.values()) < len(self.selected):
            for each in range(len(self.classwise_acc)):
                self.classwise_acc[each] = counts[each] / max(counts.values())

    def mask(self, probabilities, indices):
        confidence, predicted = probabilities.max(1)
        scaled = self.classwise_acc[predicted] / (2.0 - self.classwise_acc[predicted])
        sure = confidence >= self.cutoff * scaled
        self.selected[indices[sure]] = predicted[sure]
        self.update()
        return sure.float(), predicted


torch.manual_seed(0)
x = torch.randn(128, 8)
y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
thresholds = Thresholds(128, 3)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y, torch.arange(128)), batch_size=4)
for epoch in run.epochs(4):
    for inputs, labels, indices in batches:
        weak = model(inputs)
        mask, pseudo = thresholds.mask(weak.detach().softmax(1), indices)
        strong = model(inputs + 0.1 * torch.randn_like(inputs))
        unlabelled = (nn.functional.cross_entropy(strong, pseudo, reduction="none") * mask).mean()
        (nn.functional.cross_entropy(weak, labels) + unlabelled).backward()
        optimizer.step()
        optimizer.zero_grad()
run.save(model, "model.pt")
