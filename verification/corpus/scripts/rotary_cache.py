"""Rotary embeddings whose cosines are computed again for a longer input, `if seq_len > self.max_seq_len_cached`, as LLaMA's ports."""

import torch
from torch import nn

import elasticd as elastic


class Rotary(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.frequencies = 1.0 / 100 ** (torch.arange(0, dim, 2) / dim)
        self.max_seq_len_cached = 0
        self.cos_cached, self.sin_cached = None, None

    def forward(self, x, seq_len):
        if seq_len > self.max_seq_len_cached or self.cos_cached.dtype != x.dtype:
            self.max_seq_len_cached = seq_len
            angles = torch.outer(torch.arange(seq_len), self.frequencies)
            both = torch.cat((angles, angles), -1)
            self.cos_cached, self.sin_cached = both.cos().to(x.dtype), both.sin().to(x.dtype)
        return self.cos_cached[:seq_len], self.sin_cached[:seq_len]


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.rotary = Rotary(dim)

    def rotated(self, x, cos, sin):
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-second, first), dim=-1) * sin

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        cos, sin = self.rotary(v, seq_len=x.shape[1])
        scores = self.rotated(q, cos, sin) @ self.rotated(k, cos, sin).transpose(1, 2)
        return (scores / q.shape[-1] ** 0.5).softmax(-1) @ v


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
