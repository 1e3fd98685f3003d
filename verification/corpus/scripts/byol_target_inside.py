"""BYOL with its target network as a part of the module, moved after each update, as lightly's and lucidrains' versions."""

import copy

import torch
from torch import nn

import elasticd as elastic


class Byol(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = nn.Linear(8, 4)
        self.predictor = nn.Linear(4, 4)
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, x):
        one = self.predictor(self.online(x + 0.1 * torch.randn_like(x)))
        with torch.no_grad():
            two = self.target(x + 0.1 * torch.randn_like(x))
        return 2 - 2 * nn.functional.cosine_similarity(one, two).mean()

    @torch.no_grad()
    def move(self):
        for t, p in zip(self.target.parameters(), self.online.parameters()):
            t.mul_(0.9).add_(p, alpha=0.1)


torch.manual_seed(0)
x = torch.randn(128, 8)
model = Byol()
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x,), batch_size=4)
for epoch in run.epochs(4):
    for (inputs,) in batches:
        model(inputs).backward()
        optimizer.step()
        model.move()
run.save(model, "model.pt")
