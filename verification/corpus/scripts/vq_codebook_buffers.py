"""A VQ-VAE whose codebook is an exponential average in buffers, changed by way of `data`, as rosinality's and lucidrains'."""

import torch
from torch import nn

import elasticd as elastic


class Quantizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 4), nn.Linear(4, 8)
        self.register_buffer("embed", torch.randn(6, 4))
        self.register_buffer("size", torch.ones(6))
        self.register_buffer("average", self.embed.clone())

    def forward(self, x):
        z = self.encoder(x)
        nearest = torch.cdist(z, self.embed).argmin(1)
        chosen = self.embed[nearest]
        if self.training:
            one_hot = nn.functional.one_hot(nearest, 6).float()
            self.size.data.mul_(0.9).add_(one_hot.sum(0), alpha=0.1)
            self.average.data.mul_(0.9).add_(one_hot.T @ z.detach(), alpha=0.1)
            self.embed.data.copy_(self.average / self.size.clamp(min=1e-3).unsqueeze(1))
        return self.decoder(z + (chosen - z).detach()), (z - chosen.detach()).square().mean()


torch.manual_seed(0)
x = torch.randn(128, 8)
model = Quantizer()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x,), batch_size=4)
for epoch in run.epochs(4):
    for (inputs,) in batches:
        out, commitment = model(inputs)
        (nn.functional.mse_loss(out, inputs) + commitment).backward()
        optimizer.step()
run.save(model, "model.pt")
