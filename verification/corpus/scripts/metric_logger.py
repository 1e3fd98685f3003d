"""`for batch in metric_logger.log_every(batches, …)`: a generator around the batches that times and smooths, as DETR's."""

import time
from collections import defaultdict, deque

import torch
from torch import nn

import elasticd as elastic


class SmoothedValue:
    def __init__(self, window_size=20):
        self.deque = deque(maxlen=window_size)
        self.total, self.count = 0.0, 0

    def update(self, value, n=1):
        self.deque.append(value)
        self.count += n
        self.total += value * n

    def __str__(self):
        return f"{sum(self.deque) / len(self.deque):.4f} ({self.total / self.count:.4f})"


class MetricLogger:
    def __init__(self):
        self.meters = defaultdict(SmoothedValue)

    def update(self, **kwargs):
        for k, v in kwargs.items():
            self.meters[k].update(v)

    def log_every(self, iterable, print_freq, header):
        i, end = 0, time.time()
        iter_time, data_time = SmoothedValue(), SmoothedValue()
        for obj in iterable:
            data_time.update(time.time() - end)
            yield obj
            iter_time.update(time.time() - end)
            if i % print_freq == 0:
                print(header, i, iter_time, *(f"{name}: {meter}" for name, meter in self.meters.items()))
            i += 1
            end = time.time()


def train_one_epoch(model, optimizer, batches, epoch):
    metric_logger = MetricLogger()
    for inputs, targets in metric_logger.log_every(batches, 10, f"Epoch: [{epoch}]"):
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        metric_logger.update(loss=loss.item(), lr=optimizer.param_groups[0]["lr"])
    return {k: str(meter) for k, meter in metric_logger.meters.items()}


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    train_stats = train_one_epoch(model, optimizer, batches, epoch)
    scheduler.step()
    print({f"train_{k}": v for k, v in train_stats.items()})
run.save(model, "model.pt")
