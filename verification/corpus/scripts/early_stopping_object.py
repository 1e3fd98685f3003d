"""An `EarlyStopping` object with patience and a best validation loss ends the training, as Bjarten's early-stopping-pytorch."""

import numpy as np
import torch
from torch import nn

import elasticd as elastic


class EarlyStopping:
    def __init__(self, patience, delta):
        self.patience, self.delta = patience, delta
        self.counter, self.best_val_loss, self.early_stop = 0, np.inf, False

    def __call__(self, val_loss):
        if val_loss < self.best_val_loss - self.delta:
            self.best_val_loss, self.counter = val_loss, 0
        else:
            self.counter += 1
            self.early_stop = self.counter >= self.patience


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True) + torch.randn(128, 1)
validation = (torch.randn(32, 8), torch.randn(32, 1))
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
stopper = EarlyStopping(patience=3, delta=0.3)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(9):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    stopper(run.evaluate(lambda b: ((model(b[0]) - b[1]) ** 2).sum(), validation, batch_size=8) / 32)
    if stopper.early_stop:
        break
run.save(model, "model.pt")
