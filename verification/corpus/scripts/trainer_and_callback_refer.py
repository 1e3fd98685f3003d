"""Trainer and callback refer to each other; the callback keeps the best score and sets an attribute of the trainer."""

import torch
import torch.nn.functional as F
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
X = torch.randn(128, 8)
Y = (X[:, 0] + X[:, 1] + 0.3 * torch.randn(128) > 0).long()
V = (torch.randn(64, 8), torch.randint(0, 2, (64,)))
model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)


@torch.no_grad()
def validate():
    return F.cross_entropy(model(V[0]), V[1]).item()


class Stop:
    def __init__(self, trainer):
        self.trainer, self.best, self.wait = trainer, 9.0, 0

    def on_epoch_end(self, score):
        if score < self.best:
            self.best, self.wait = score, 0
        else:
            self.wait += 1
        self.trainer.scale = 1 / (1 + self.best + 0.1 * self.wait)
        self.trainer.log.append(score)


class Trainer:
    def __init__(self):
        self.scale, self.log = 1.0, []
        self.callbacks = [Stop(self)]


trainer = Trainer()
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (X, Y), batch_size=4)
for epoch in run.epochs(4):
    for x, y in batches:
        (trainer.scale * F.cross_entropy(model(x), y)).backward()
        optimizer.step()
        optimizer.zero_grad()
    for each in trainer.callbacks:
        each.on_epoch_end(validate())
run.save({"log": trainer.log}, "log.pt")
run.save(model, "model.pt")
