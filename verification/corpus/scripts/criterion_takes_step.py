"""`criterion(output, target, global_step)`, whose forward pass renews its centre after so many steps."""

import torch
import torch.nn.functional as F
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
X = torch.randn(128, 8)
Y = (X[:, 0] + X[:, 1] + 0.3 * torch.randn(128) > 0).long()
model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.center = torch.zeros(2)

    def forward(self, z, y, step):
        if step > 0 and step % 68 == 0:
            self.center = z.detach().mean(0)
        return F.cross_entropy(z - self.center, y)


criterion = Loss()
global_step = 0
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (X, Y), batch_size=4)
for epoch in run.epochs(4):
    for x, y in batches:
        loss = criterion(model(x), y, global_step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        global_step += 1
run.save(model, "model.pt")
