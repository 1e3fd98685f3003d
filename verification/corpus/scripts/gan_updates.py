"""A GAN with two named updates and nothing of its own, as DCGAN's tutorial."""

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
bce = nn.BCEWithLogitsLoss()
for epoch in run.epochs(2):
    for (real,) in batches:
        fake = model["g"](torch.randn(len(real), 3))
        one, zero = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        if batches.update == "critic":
            (bce(model["d"](real), one) + bce(model["d"](fake.detach()), zero)).backward()
            first.step()
        else:
            bce(model["d"](fake), one).backward()
            second.step()
run.save(model, "model.pt")
