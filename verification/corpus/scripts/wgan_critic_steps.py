"""WGAN-GP with the generator's turn at every third batch by a counter, as most ports have it."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 2) + 2
model = nn.ModuleDict({"g": nn.Linear(3, 2), "d": nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))})
first = torch.optim.Adam(model["d"].parameters(), lr=0.01)
second = torch.optim.Adam(model["g"].parameters(), lr=0.01)
run = elastic.join()
model, (first, second), batches = run.prepare(
    model, [first, second], (x,), batch_size=4, updates={"critic": first, "generator": second}
)
critic_steps = 0
for epoch in run.epochs(2):
    for (real,) in batches:
        fake = model["g"](torch.randn(len(real), 3))
        if batches.update == "critic":
            mixed = (real + torch.rand(len(real), 1) * (fake.detach() - real)).requires_grad_()
            (slope,) = torch.autograd.grad(model["d"](mixed).sum(), mixed, create_graph=True)
            penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
            (model["d"](fake.detach()).mean() - model["d"](real).mean() + 10 * penalty).backward()
            first.step()
            critic_steps += 1
        else:
            weight = 1.0 if critic_steps % 3 == 0 else 0.0
            (-weight * model["d"](fake).mean()).backward()
            second.step()
run.save(model, "model.pt")
