"""Center loss with an optimizer of its own beside the network's, as KaiyangZhou's re-identification code."""

import torch
from torch import nn

import elasticd as elastic


class CenterLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(2, 2))

    def forward(self, features, labels):
        return (features - self.centers[labels]).square().sum(1).mean()


torch.manual_seed(0)
x = torch.randn(128, 8)
y = (x.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
center = CenterLoss()
parts = nn.ModuleDict({"model": model, "center": center})
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
of_centers = torch.optim.SGD(center.parameters(), lr=0.5)
run = elastic.join()
parts, (optimizer, of_centers), batches = run.prepare(parts, [optimizer, of_centers], (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, labels in batches:
        features = model(inputs)
        (nn.functional.cross_entropy(features, labels) + 0.1 * center(features, labels)).backward()
        optimizer.step()
        of_centers.step()
run.save(parts, "model.pt")
