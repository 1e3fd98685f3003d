"""Augmentation whose probability follows the discriminator's signs at every fourth batch, as StyleGAN2-ADA does."""

import torch
from torch import nn

import elasticd as elastic


class AugmentPipe(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("p", torch.zeros([]))

    def forward(self, x):
        chosen = (torch.rand(len(x), 1) < self.p).float()
        return x * (1 - 2 * chosen)


torch.manual_seed(0)
x = torch.randn(128, 8)
y = (x.sum(1, keepdim=True) > 0).float()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
augment_pipe = AugmentPipe()
signs, batch_idx = [], 0
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        logits = model(augment_pipe(inputs))
        nn.functional.binary_cross_entropy_with_logits(logits, targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        signs.append(logits.detach().sign().mean())
        batch_idx += 1
        if batch_idx % 4 == 0:
            adjust = torch.sign(torch.stack(signs).mean() - 0.1) * 0.1
            augment_pipe.p.copy_((augment_pipe.p + adjust).clamp(0, 1))
            signs.clear()
run.save(model, "model.pt")
