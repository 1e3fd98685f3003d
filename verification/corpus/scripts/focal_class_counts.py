"""A class-balanced focal loss with running counts of classes seen so far, as long-tail repositories have."""

import torch
from torch import nn

import elasticd as elastic


class BalancedFocal(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.counts = torch.ones(classes)

    def forward(self, logits, labels):
        self.counts += torch.bincount(labels, minlength=len(self.counts))
        weights = self.counts.sum() / (len(self.counts) * self.counts)
        p = logits.softmax(1).gather(1, labels[:, None])[:, 0]
        return (weights[labels] * (1 - p) ** 2 * -p.log()).mean()


torch.manual_seed(0)
x = torch.randn(128, 8)
y = (x[:, 0] > 0.8).long()
model = nn.Linear(8, 2)
criterion = BalancedFocal(2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, labels in batches:
        criterion(model(inputs), labels).backward()
        optimizer.step()
run.save(model, "model.pt")
