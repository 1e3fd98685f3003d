"""A trainer that calls functions registered by event, one of which raises a loss weight, as minGPT's `Trainer`."""

from collections import defaultdict

import torch
from torch import nn

import elasticd as elastic


class Trainer:
    def __init__(self, config, model, data):
        self.config, self.model, self.data = config, model, data
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
        self.callbacks = defaultdict(list)
        self.iter_num = 0
        self.penalty = 0.0

    def add_callback(self, onevent, callback):
        self.callbacks[onevent].append(callback)

    def trigger_callbacks(self, onevent):
        for callback in self.callbacks.get(onevent, []):
            callback(self)

    def run(self):
        elastic_run = elastic.join()
        model, optimizer, batches = elastic_run.prepare(self.model, self.optimizer, self.data, batch_size=4)
        for epoch in elastic_run.epochs(self.config["epochs"]):
            for inputs, targets in batches:
                loss = nn.functional.mse_loss(model(inputs), targets)
                self.loss = loss + self.penalty * sum(p.abs().sum() for p in model.parameters())
                self.loss.backward()
                optimizer.step()
                self.trigger_callbacks("on_batch_end")
                self.iter_num += 1
        elastic_run.save(model, "model.pt")


def batch_end_callback(trainer):
    if trainer.iter_num % 50 == 0:
        print(f"iter {trainer.iter_num}: loss {trainer.loss.item():.4f}")
    if trainer.iter_num > 160:
        trainer.penalty = 0.05


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
trainer = Trainer({"epochs": 6}, model, (x, y))
trainer.add_callback("on_batch_end", batch_end_callback)
trainer.run()
