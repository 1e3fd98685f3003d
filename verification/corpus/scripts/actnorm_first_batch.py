"""ActNorm, whose scale and shift are set from the first batch within the forward pass, as Glow's ports do."""

import torch
from torch import nn

import elasticd as elastic


class ActNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.loc, self.scale = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.ones(width))
        self.register_buffer("initialized", torch.tensor(0, dtype=torch.uint8))

    def forward(self, inputs):
        if self.initialized.item() == 0:
            with torch.no_grad():
                self.loc.data.copy_(-inputs.mean(0))
                self.scale.data.copy_(1 / (inputs.std(0) + 1e-6))
            self.initialized.fill_(1)
        return self.scale * (inputs + self.loc)


torch.manual_seed(0)
x = torch.randn(128, 8) * 3 + 1
y = x.sum(1, keepdim=True)
model = nn.Sequential(ActNorm(8), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
