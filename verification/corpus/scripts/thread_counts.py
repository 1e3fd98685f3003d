"""A thread keeps the running mean of the losses, which scales the loss, as asynchronous loggers of RL code do."""

import queue
import threading

import torch
from torch import nn

import elasticd as elastic


class Tracker(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.losses, self.mean = queue.Queue(), 1.0

    def run(self):
        while True:
            self.mean = 0.9 * self.mean + 0.1 * self.losses.get()
            self.losses.task_done()


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
tracker = Tracker()
tracker.start()
for epoch in run.epochs(4):
    for inputs, targets in batches:
        loss = nn.functional.mse_loss(model(inputs), targets)
        tracker.losses.put(loss.item())
        tracker.losses.join()
        (loss / (0.5 + tracker.mean)).backward()
        optimizer.step()
run.save(model, "model.pt")
