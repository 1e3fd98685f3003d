"""A mixup object that an epoch turns off, `if epoch >= off_epoch: mixup_fn.enabled = False`, as timm's `train.py`."""

import numpy as np
import torch
from torch import nn

import elasticd as elastic


class Mixup:
    def __init__(self, alpha, prob):
        self.alpha, self.prob, self.enabled = alpha, prob, True

    def __call__(self, inputs, targets):
        lam = np.random.beta(self.alpha, self.alpha) if self.enabled and np.random.rand() < self.prob else 1.0
        return lam * inputs + (1 - lam) * inputs.flip(0), lam * targets + (1 - lam) * targets.flip(0)


torch.manual_seed(0)
x = torch.randn(128, 8)
y = nn.functional.one_hot((x[:, 0] > 0).long(), 2).float()
model = nn.Linear(8, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.03)
mixup_fn, off_epoch = Mixup(0.8, 0.9), 2
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    if epoch >= off_epoch:
        mixup_fn.enabled = False
    for inputs, targets in batches:
        inputs, targets = mixup_fn(inputs, targets)
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
