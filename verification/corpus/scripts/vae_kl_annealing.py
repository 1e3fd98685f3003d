"""An annealer object counts its own steps for the weight of a VAE's KL term, as in several VAE repositories."""

import torch
from torch import nn

import elasticd as elastic


class Annealer:
    def __init__(self, total):
        self.total = total
        self.current = 0

    def weight(self):
        return min(1.0, self.current / self.total)

    def step(self):
        self.current += 1


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(8, 4)
        self.decoder = nn.Linear(2, 8)

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        kl = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(-1).mean()
        return self.decoder(z), kl


torch.manual_seed(0)
x = torch.randn(128, 8)
model = Vae()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
annealer = Annealer(80)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x,), batch_size=4)
for epoch in run.epochs(4):
    for (inputs,) in batches:
        output, kl = model(inputs)
        (nn.functional.mse_loss(output, inputs) + annealer.weight() * kl).backward()
        optimizer.step()
        annealer.step()
run.save(model, "model.pt")
