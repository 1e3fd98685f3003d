"""A criterion with a moving centre of the teacher's outputs in a buffer of its own, as DINO's loss."""

import torch
from torch import nn

import elasticd as elastic


class DinoLoss(nn.Module):
    def __init__(self, dim, momentum=0.9):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("center", torch.zeros(1, dim))

    def forward(self, student, teacher):
        target = ((teacher - self.center) / 0.1).softmax(1).detach()
        loss = -(target * student.log_softmax(1)).sum(1).mean()
        self.update_center(teacher)
        return loss

    @torch.no_grad()
    def update_center(self, teacher):
        self.center = self.center * self.momentum + teacher.mean(0, keepdim=True) * (1 - self.momentum)


torch.manual_seed(0)
x = torch.randn(128, 8)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
dino_loss = DinoLoss(4)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x,), batch_size=4)
for epoch in run.epochs(4):
    for (inputs,) in batches:
        dino_loss(model(inputs + 0.1 * torch.randn_like(inputs)), model(inputs).detach()).backward()
        optimizer.step()
        optimizer.zero_grad()
run.save(model, "model.pt")
