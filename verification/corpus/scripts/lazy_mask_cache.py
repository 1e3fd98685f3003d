"""Attention whose causal mask is made at its first use, and again for a longer input, as `_cached_mask` of many transformers."""

import torch
from torch import nn

import elasticd as elastic


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def mask(self, length):
        if not hasattr(self, "_cached_mask") or len(self._cached_mask) < length:
            self._cached_mask = torch.full((length, length), float("-inf")).triu(1)
        return self._cached_mask[:length, :length]

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5 + self.mask(x.shape[1])
        return scores.softmax(-1) @ v


torch.manual_seed(0)
x = torch.randn(128, 12, 8)
y = x.mean(1)
model = Attention(8)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        length = 4 + 2 * int(torch.randint(0, 5, ()))
        nn.functional.mse_loss(model(inputs[:, :length])[:, -1], targets).backward()
        optimizer.step()
        optimizer.zero_grad()
run.save(model, "model.pt")
