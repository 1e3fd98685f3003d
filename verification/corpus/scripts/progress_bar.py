"""A progress bar of tqdm's kind with a smoothed loss, as nearly every notebook has."""

import torch
from torch import nn

import elasticd as elastic


class Bar:
    def __init__(self, items):
        self.items, self.n, self.smooth = items, 0, None

    def __iter__(self):
        for item in self.items:
            yield item
            self.n += 1

    def show(self, loss):
        self.smooth = loss if self.smooth is None else 0.9 * self.smooth + 0.1 * loss
        print(f"\r{self.n} loss {self.smooth:.3f}", end="")


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    bar = Bar(batches)
    for inputs, targets in bar:
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        bar.show(loss.item())
run.save(model, "model.pt")
