"""A temperature of Gumbel softmax that falls at each batch, as discrete VAEs (DALL-E's) do."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
model = nn.ModuleDict({"encoder": nn.Linear(8, 6), "decoder": nn.Linear(6, 8)})
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x,), batch_size=4)
temperature = 1.0
for epoch in run.epochs(4):
    for (inputs,) in batches:
        codes = nn.functional.gumbel_softmax(model["encoder"](inputs), tau=temperature)
        loss = nn.functional.mse_loss(model["decoder"](codes), inputs)
        loss.backward()
        optimizer.step()
        temperature = max(0.3, temperature * 0.99)
run.save(model, "model.pt")
