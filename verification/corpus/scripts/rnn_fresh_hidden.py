"""A GRU whose hidden state begins at zero in each batch, as most tutorials for sequence classification."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 5, 4)
y = (x.sum((1, 2)) > 0).long()
model = nn.ModuleDict({"rnn": nn.GRU(4, 8, batch_first=True), "out": nn.Linear(8, 2)})
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4, max_grad_norm=1.0)
for epoch in run.epochs(4):
    for inputs, labels in batches:
        h0 = torch.zeros(1, len(inputs), 8)
        _, hidden = model["rnn"](inputs, h0)
        nn.functional.cross_entropy(model["out"](hidden[-1]), labels).backward()
        optimizer.step()
run.save(model, "model.pt")
