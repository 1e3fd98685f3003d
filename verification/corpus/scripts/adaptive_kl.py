"""A controller of the KL penalty follows each batch's KL, as `AdaptiveKLController` of TRL's and lm-human-preferences' PPO."""

import copy

import numpy as np
import torch
from torch import nn

import elasticd as elastic


class AdaptiveKLController:
    def __init__(self, init_kl_coef, target, horizon):
        self.value, self.target, self.horizon = init_kl_coef, target, horizon

    def update(self, current, n_steps):
        error = np.clip(current / self.target - 1, -0.2, 0.2)
        self.value *= 1 + error * n_steps / self.horizon


torch.manual_seed(0)
x = torch.randn(128, 8)
rewards = torch.randn(128, 4)
model = nn.Linear(8, 4)
reference = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
kl_ctl = AdaptiveKLController(0.2, 0.01, 100)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, rewards), batch_size=4)
for epoch in run.epochs(4):
    for inputs, reward in batches:
        logs, old = model(inputs).log_softmax(1), reference(inputs).log_softmax(1)
        kl = (logs.exp() * (logs - old)).sum(1).mean()
        (kl_ctl.value * kl - (logs.exp() * reward).sum(1).mean()).backward()
        optimizer.step()
        kl_ctl.update(kl.item(), len(inputs))
run.save(model, "model.pt")
