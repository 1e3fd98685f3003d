"""An environment that goes on from batch to batch while its policy learns, as CleanRL's vectorized loops do."""

import numpy as np
import torch
from torch import nn

import elasticd as elastic


class PointMass:
    """Four points that an action moves; an episode lasts 20 steps."""

    def __init__(self, seed):
        self.rng = np.random.RandomState(seed)
        self.reset()

    def reset(self):
        self.position, self.t = self.rng.uniform(-1, 1, size=(4, 2)), 0
        return torch.tensor(self.position, dtype=torch.float32)

    def step(self, action):
        self.position, self.t = self.position + 0.1 * action, self.t + 1
        reward = -(self.position**2).sum(1)
        done = self.t >= 20
        observation = self.reset() if done else torch.tensor(self.position, dtype=torch.float32)
        return observation, torch.tensor(reward, dtype=torch.float32), done


torch.manual_seed(0)
envs = PointMass(seed=1)
model = nn.Linear(2, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
next_obs = envs.reset()
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, list(range(128)), batch_size=4)
for epoch in run.epochs(4):
    for _ in batches:
        distribution = torch.distributions.Normal(model(next_obs), 0.5)
        action = distribution.sample()
        next_obs, reward, done = envs.step(action.numpy())
        advantage = reward - reward.mean()
        (-(distribution.log_prob(action).sum(1) * advantage).mean()).backward()
        optimizer.step()
run.save(model, "model.pt")
