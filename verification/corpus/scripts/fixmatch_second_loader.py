"""A second, unlabelled loader read by `next(iterator)` and begun again at its end, as FixMatch ports do."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = (x[:, 0] > 0).long()
unlabelled = torch.utils.data.DataLoader(torch.randn(60, 8), batch_size=4, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
iterator = iter(unlabelled)
for epoch in run.epochs(4):
    for inputs, labels in batches:
        try:
            free = next(iterator)
        except StopIteration:
            iterator = iter(unlabelled)
            free = next(iterator)
        with torch.no_grad():
            certain, pseudo = model(free).softmax(1).max(1)
        strong = model(free + 0.3 * torch.randn_like(free))
        second = (nn.functional.cross_entropy(strong, pseudo, reduction="none") * (certain > 0.6)).mean()
        (nn.functional.cross_entropy(model(inputs), labels) + second).backward()
        optimizer.step()
run.save(model, "model.pt")
