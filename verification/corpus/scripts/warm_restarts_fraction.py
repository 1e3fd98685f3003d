"""`CosineAnnealingWarmRestarts` stepped by a fraction of the epoch, `scheduler.step(epoch + i / iters)`, after its documentation."""

import torch
from torch import nn

import elasticd as elastic


class SimSiam(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
        self.predictor = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 8))

    def forward(self, one, two):
        z1, z2 = self.encoder(one), self.encoder(two)
        return self.predictor(z1), self.predictor(z2), z1.detach(), z2.detach()


torch.manual_seed(0)
x = torch.randn(128, 8)
model = SimSiam()
criterion = nn.CosineSimilarity(dim=1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=1, T_mult=2)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x,), batch_size=4)
iters = len(batches)
for epoch in run.epochs(4):
    for i, (inputs,) in enumerate(batches):
        p1, p2, z1, z2 = model(inputs + 0.1 * torch.randn(8), inputs + 0.1 * torch.randn(8))
        loss = -(criterion(p1, z2).mean() + criterion(p2, z1).mean()) * 0.5
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step(epoch + i / iters)
run.save(model, "model.pt")
