"""Timesteps drawn by their last losses once each has a few, as guided-diffusion's `LossSecondMomentResampler`."""

import numpy as np
import torch
from torch import nn

import elasticd as elastic


class LossSecondMomentResampler:
    def __init__(self, timesteps, history_per_term):
        self.timesteps, self.history_per_term = timesteps, history_per_term
        self._loss_history = np.zeros([timesteps, history_per_term])
        self._loss_counts = np.zeros([timesteps], dtype=int)

    def weights(self):
        if not self._warmed_up():
            return np.ones([self.timesteps])
        return np.sqrt(np.mean(self._loss_history**2, axis=-1))

    def sample(self, batch_size):
        p = self.weights() / np.sum(self.weights())
        t = np.random.choice(self.timesteps, size=(batch_size,), p=p)
        return torch.from_numpy(t), torch.from_numpy(1 / (self.timesteps * p[t])).float()

    def update_with_losses(self, ts, losses):
        for t, loss in zip(ts.tolist(), losses.tolist()):
            if self._loss_counts[t] == self.history_per_term:
                self._loss_history[t, :-1] = self._loss_history[t, 1:]
                self._loss_history[t, -1] = loss
            else:
                self._loss_history[t, self._loss_counts[t]] = loss
                self._loss_counts[t] += 1

    def _warmed_up(self):
        return (self._loss_counts == self.history_per_term).all()


torch.manual_seed(0)
x = torch.randn(128, 2)
model = nn.Sequential(nn.Linear(3, 16), nn.SiLU(), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
sampler = LossSecondMomentResampler(timesteps=4, history_per_term=64)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x,), batch_size=4)
for epoch in run.epochs(6):
    for (inputs,) in batches:
        t, weights = sampler.sample(len(inputs))
        noise = torch.randn_like(inputs)
        level = (t.float() / 4)[:, None]
        losses = ((model(torch.cat([(1 - level) * inputs + level * noise, level], 1)) - noise) ** 2).mean(1)
        (losses * weights).mean().backward()
        optimizer.step()
        sampler.update_with_losses(t, losses.detach())
run.save(model, "model.pt")
