"""`best_model_wts = copy.deepcopy(model.state_dict())`, loaded behind the loop, as PyTorch's transfer learning tutorial."""

import copy

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = (x[:, 0] + torch.randn(128) > 0).long()
validation = (torch.randn(64, 8), torch.randint(0, 2, (64,)))
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
best_model_wts = copy.deepcopy(model.state_dict())
best_acc = 0.0
for epoch in run.epochs(5):
    for inputs, labels in batches:
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    epoch_acc = run.evaluate(lambda b: (model(b[0]).argmax(1) == b[1]).sum(), validation, batch_size=16) / 64
    if epoch_acc > best_acc:
        best_acc = epoch_acc
        best_model_wts = copy.deepcopy(model.state_dict())
model.load_state_dict(best_model_wts)
run.save(model, "model.pt")
