"""An EMA class with a list of shadow parameters and a decay that follows `num_updates`, as in score_sde."""

import torch
from torch import nn

import elasticd as elastic


class ExponentialMovingAverage:
    def __init__(self, parameters, decay):
        self.decay = decay
        self.num_updates = 0
        self.shadow_params = [p.clone().detach() for p in parameters]

    def update(self, parameters):
        self.num_updates += 1
        decay = min(self.decay, (1 + self.num_updates) / (10 + self.num_updates))
        with torch.no_grad():
            for s, p in zip(self.shadow_params, parameters):
                s.sub_((1 - decay) * (s - p))

    def copy_to(self, parameters):
        for s, p in zip(self.shadow_params, parameters):
            p.data.copy_(s.data)


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
ema = ExponentialMovingAverage(model.parameters(), 0.99)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        ema.update(model.parameters())
run.finish()
ema.copy_to(model.parameters())
run.save(model, "model.pt")
