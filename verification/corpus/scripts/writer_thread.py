"""Two threads of torch and a thread that writes losses and a timer to a file, as asynchronous TensorBoard writers do."""

import queue
import threading
import time

import torch
from torch import nn

import elasticd as elastic


class Writer(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.events, self.written, self.last = queue.Queue(), 0, 0.0

    def add_scalar(self, tag, value, step):
        self.events.put((tag, value, step, time.time()))

    def run(self):
        while True:
            tag, value, step, now = self.events.get()
            self.written += 1
            self.last = now
            print(f"{tag} {step} {value:.4f}", file=open("/dev/null", "w"))


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
run = elastic.join(threads=2)
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
writer = Writer()
writer.start()
for epoch in run.epochs(4):
    for step, (inputs, targets) in enumerate(batches):
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        writer.add_scalar("train/loss", loss.item(), epoch * len(batches) + step)
run.save(model, "model.pt")
